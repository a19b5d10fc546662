"""An operator of another version takes over: jobs run on to their end, and nothing is forgotten."""

from __future__ import annotations

from typing import Any

from support.fake_objects import JOBS
from support.reconciling.in_memory import CheckingKube, play_in_memory
from support.reconciling.stage import Stage
from support.reconciling.view import View

KEY = JOBS, "default", "digits"
OF_TOMORROW = {
    "progress": {"step": "many"},
    "history": [{"membership": "1.1.1", "since": {"seconds": 3}}],
    "rendezvousTerm": 1,
}


async def meanwhile(stage: Stage, kube: CheckingKube, **changes: Any) -> None:
    """Another version writes while this one is down."""
    await stage.stop_operator()
    kube.objects.change(KEY, **changes)
    kube.tell()
    await stage.start_operator()


async def run(stage: Stage, **spec: Any) -> None:
    await stage.create(**spec)
    await stage.until(lambda view: view.trains("000-1", "001-1"), "it runs")


def test_a_complete_job_with_an_unreadable_status_stays_complete() -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        await run(stage)
        stage.service().finish()
        await stage.until(lambda view: view.state == "Complete" and not view.pods, "the end")
        await meanwhile(stage, kube, status=OF_TOMORROW)
        after = await stage.calm()
        assert after.pods == {}
        assert after.condition("Complete")["status"] == "True"
        assert after.status["progress"] == OF_TOMORROW["progress"] | after.status["progress"]
        assert after.status["progress"]["step"] == "many"

    play_in_memory(story, kube)


def test_a_job_whose_end_cannot_be_read_is_left_alone() -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        await run(stage)
        stage.service().finish()
        await stage.until(lambda view: view.state == "Complete" and not view.pods, "the end")
        unreadable = {"conditions": [{"type": "Complete", "status": "Certainly"}]}
        await meanwhile(stage, kube, status=unreadable)
        after = await stage.calm()
        assert after.pods == {}
        assert after.status["conditions"] == unreadable["conditions"]

    play_in_memory(story, kube)


def test_a_running_job_with_an_unreadable_status_runs_on_and_the_status_stays() -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        await run(stage)
        before = await stage.calm()
        unreadable = {"snapshot": {"step": "newest"}}
        await meanwhile(stage, kube, status=unreadable)
        await stage.delete_pod("digits-worker-001-1", vanishes=True)
        after = await stage.until(lambda view: view.trains("000-1", "001-2"), "a replacement")
        assert after.status["snapshot"] == unreadable["snapshot"]
        assert after.status["rendezvousTerm"] == before.status["rendezvousTerm"]
        assert after.rendezvous == before.rendezvous

    play_in_memory(story, kube)


def test_a_running_job_whose_spec_is_refused_runs_to_its_end() -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        await run(stage)
        refused = {"fieldOfTomorrow": {"a": 1}, "minReplicas": 5}  # more than replicas
        await meanwhile(stage, kube, spec=refused)
        await stage.delete_pod("digits-worker-001-1", vanishes=True)
        view = await stage.until(lambda v: "digits-worker-001-2" in v.workers, "a replacement")
        [told] = [each for each in view.status["warnings"] if each["reason"] == "InvalidSpec"]
        assert "fieldOfTomorrow" in told["message"]
        stage.service().finish()
        await stage.until(lambda view: view.state == "Complete", "the end")

    play_in_memory(story, kube)


def test_a_running_job_keeps_its_agent_until_it_starts_again() -> None:
    def images(view: View) -> set[str]:
        specs = [pod["spec"] for pod in view.pods.values()]
        return {each.get("initContainers", each["containers"])[0]["image"] for each in specs}

    async def story(stage: Stage) -> None:
        old = stage.agent_image
        await run(stage)
        await stage.stop_operator()
        stage.agent_image = "agent:2"
        await stage.start_operator()
        await stage.delete_pod("digits-worker-001-1", vanishes=True)
        await stage.until(lambda view: view.trains("000-1", "001-2"), "a replacement")
        await stage.delete_pod("digits-rendezvous-1", vanishes=True)
        view = await stage.until(lambda view: view.rendezvous == ["digits-rendezvous-2"], "it too")
        assert images(view) == {old}
        assert view.status["agentImage"] == old
        await stage.change(suspend=True)
        await stage.until(lambda view: not view.pods, "it is suspended")
        await stage.change(suspend=False)
        view = await stage.until(lambda view: view.state == "Running", "it runs again")
        assert images(view) == {"agent:2"}

    play_in_memory(story)
