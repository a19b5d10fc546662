"""What a pass costs does not grow with the square of the workers, by counts."""

from __future__ import annotations

from collections.abc import Iterable

from ddpjob_operator.controller.keys.job_keys import JobKeys
from ddpjob_operator.controller.metrics.catalogue import CONTROLLER, PASSES
from ddpjob_operator.manifests.parse import Pod
from ddpjob_protocol.keys.credentials import JobKey
from support.builders import make_job
from support.keys import OPERATOR_KEY
from support.reconciling.in_memory import play_in_memory
from support.reconciling.life import training
from support.reconciling.stage import Stage

WORKERS = 40


class CountingKeys(JobKeys):
    """Counts how often the pods of a job are looked through for its key."""

    calls = 0

    def key_of(self, uid: str, pods: Iterable[Pod]) -> JobKey:
        self.calls += 1
        return super().key_of(uid, pods)


def test_a_pass_derives_the_key_of_its_job_once_for_all_new_pods() -> None:
    async def story(stage: Stage) -> None:
        await stage.stop_operator()
        stage.keys = keys = CountingKeys(OPERATOR_KEY)
        await stage.start_operator()
        names = [f"{index:03d}-1" for index in range(WORKERS)]
        await training(stage, *names, maxReplicas=WORKERS)
        passes = stage.metric(PASSES.name, controller=CONTROLLER, result="success")
        assert 0 < keys.calls <= passes

    play_in_memory(story)


def test_the_groups_of_a_spec_are_resolved_once_and_those_of_a_copy_again() -> None:
    spec = make_job(replicas=2).spec
    assert spec.groups() is spec.groups()
    assert [group.replicas for group in spec.model_copy(update={"replicas": 5}).groups()] == [5]
    assert [group.replicas for group in spec.groups()] == [2]
