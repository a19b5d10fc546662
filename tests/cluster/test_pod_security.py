"""Jobs in namespaces that enforce the Pod Security standard *restricted*, on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cluster.control_plane import ControlPlane
from ddpjob_operator.kube.client import KubeClient
from support.reconciling.life import training
from support.reconciling.stage import Play, Stage, staged

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
TRAIN = {"name": "trainer", "image": "trainer", "command": ["torchrun", "train.py"]}


class NoLimits:
    """Nothing is limited here."""

    async def allow_pods(self, count: int | None) -> None:
        raise NotImplementedError


@pytest.fixture
def play(apiserver: ControlPlane, namespace: str) -> Play:
    """Lets a story happen in a restricted namespace, beside a privileged one."""
    other = f"{namespace}-other"
    apiserver.create_namespace(namespace, RESTRICTED)
    apiserver.create_namespace(other)

    def run(story: Callable[[Stage], Awaitable[None]]) -> None:
        async def main() -> None:
            kube = await KubeClient.connect(str(apiserver.kubeconfig))
            try:
                async with staged(Stage(kube, (namespace, other), NoLimits())) as stage:
                    await story(stage)
            finally:
                await kube.close()

        asyncio.run(main())

    return run


def test_a_plain_job_is_admitted(play: Play) -> None:
    async def story(stage: Stage) -> None:
        view = await training(stage, "000-1", "001-1")
        assert view.condition("Stalled") == {}
        for name in view.workers:
            assert view.pods[name]["spec"]["securityContext"]["runAsNonRoot"] is True

    play(story)


def test_images_that_run_as_root_work_in_other_namespaces(play: Play) -> None:
    async def story(stage: Stage) -> None:
        other = stage.other_namespace
        await stage.create(namespace=other)
        view = await stage.until(lambda v: v.trains("000-1", "001-1"), "it runs", namespace=other)
        for name in view.workers:
            assert "runAsNonRoot" not in view.pods[name]["spec"]["securityContext"]

    play(story)


def test_a_template_that_wants_more_is_refused_with_the_reason(play: Play) -> None:
    async def story(stage: Stage) -> None:
        root = {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}}
        await stage.create(template={"spec": {"securityContext": root, "containers": [TRAIN]}})
        view = await stage.until(lambda view: view.is_stalled("PodRefused"), "it is in the status")
        assert "violates PodSecurity" in view.condition("Stalled")["message"]
        assert view.workers == []

    play(story)
