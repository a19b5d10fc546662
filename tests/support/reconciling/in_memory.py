"""A stage on the API server in memory, in fake time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta

from ddpjob_operator.kube.interface import ApiError
from support import fake_time
from support.fake_kube import FakeKube, Target
from support.fake_objects import JSON, PODS, Objects
from support.reconciling.stage import Stage, staged

POLICIES = ("Always", "IfNotPresent", "Never")


class CheckingKube(FakeKube):
    """Checks pods as an API server does, as far as a story needs it."""

    def __init__(self, objects: Objects | None = None) -> None:
        super().__init__(objects)
        self.quota: int | None = None

    async def allow_pods(self, count: int | None) -> None:
        self.quota = count

    def _answer(self, method: str, target: Target, query: Mapping[str, str], body: JSON) -> JSON:
        if method == "POST" and target.resource is PODS and target.name is None:
            self._admit(str(target.namespace), body)
        return super()._answer(method, target, query, body)

    def _admit(self, namespace: str, pod: JSON) -> None:
        name, used = pod["metadata"]["name"], len(self.pods(namespace))
        for i, container in enumerate(pod["spec"]["containers"]):
            if (policy := container.get("imagePullPolicy", "Always")) not in POLICIES:
                what = f'spec.containers[{i}].imagePullPolicy: Unsupported value: "{policy}"'
                raise ApiError(422, "Invalid", f'Pod "{name}" is invalid: {what}')
        if self.quota is not None and used >= self.quota:
            what = f"requested: pods=1, used: pods={used}, limited: pods={self.quota}"
            message = f'pods "{name}" is forbidden: exceeded quota: few, {what}'
            raise ApiError(403, "Forbidden", message)


def play_in_memory(
    story: Callable[[Stage], Awaitable[None]],
    kube: CheckingKube | None = None,
    begin: datetime | None = None,
) -> None:
    """Let a story happen, from now on or from another time on.

    Metrics have the real time, and so have the services if the story happens now.
    """

    async def main() -> None:
        server = kube or CheckingKube()
        stage = Stage(server, ("default", "elsewhere"), server)
        stage.clock = clock = asyncio.get_running_loop().time
        first = begin or datetime.now(UTC)
        stage.now = lambda: first + timedelta(seconds=clock())
        if begin is not None:
            stage.nodes.now = lambda: stage.now().timestamp()
        stage.patience, stage.longest_pause = 3600.0, 5.0  # which cost nothing
        async with staged(stage):
            await story(stage)

    fake_time.run(main())
