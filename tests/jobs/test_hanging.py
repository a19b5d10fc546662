"""Processes that hang, in real jobs: the job is reported as stalled, and who it waits for."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.spec.failure_policy import FailurePolicy
from ddpjob_operator.local.simulated.processes import marked
from ddpjob_protocol.environment import ENV_WORKER
from ddpjob_protocol.messages.control import Policy
from support.beside import two_at_once
from support.driving import Run, job_text, running
from support.ledger import SCRIPT, Ledger
from support.planning import DOES_NOT_HOLD, told

QUICK = {"elastic": "{settleSeconds: 0.2}", "processesPerWorker": 1}
RESTARTS = {"failurePolicy": "{onHang: Restart, backoffSeconds: 0.1}"}
SECONDS = 8.0  # without a step; longer than a process may be silent, so that it is seen to be

# Ranks go on by themselves until one of them has slept for long enough.
SLEEPER = """
    import os, pathlib, sys, time
    from ddpjob_trainer import step_done

    end, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])

    def sleep_for_ever():
        while not end.exists():
            time.sleep(0.1)

    for step in range(1, 21):
        if rank == 1 and step == 8 or step == 11:
            sleep_for_ever()
        step_done(step, 20)
        time.sleep(0.02)
"""


@pytest.fixture(autouse=True, scope="module")
def _impatient() -> Iterator[None]:
    """Jobs whose service waits for seconds where it would wait for a minute."""
    usual = DDPJob.policy

    def policy(job: DDPJob) -> Policy:
        return dataclasses.replace(usual(job), stall_seconds=SECONDS)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(DDPJob, "policy", policy)
        yield


def last_worker(run: Run) -> tuple[str, psutil.Process]:
    """The last one by rank, and its process."""
    assert run.report.membership is not None
    name = run.report.membership.members[-1].worker
    everybody = marked(run.backend.job.metadata.uid)
    mine = [process for process in everybody if process.environ().get(ENV_WORKER) == name]
    (training,) = [process for process in mine if "train.py" in process.cmdline()[1:3]]
    return name, training


def stalled(run: Run) -> tuple[str, str, str]:
    """The condition of this name: status, reason, message."""
    return told(run.backend.status, "Stalled")


@two_at_once
async def test_a_process_is_stopped_and_goes_on(tmp_path: Path) -> None:
    """L2: the others wait for it in their collectives. It is restarted alone, or goes on."""
    text = job_text("[torchrun, train.py, end]", replicas=3, **QUICK, **RESTARTS)
    with contextlib.closing(Ledger(tmp_path)):
        async with running(tmp_path, text, script=SCRIPT) as run:
            await run.until_stepping(1)
            await run.until(
                lambda: (run.report.step or 0) > 20, "it is known how long a step takes"
            )
            worker, victim = last_worker(run)
            victim.send_signal(signal.SIGSTOP)
            restarted = [("started", 3), ("failed", 2), ("joined", 3)]
            await run.until(lambda: run.history() == restarted, "the worker is restarted")
            assert run.report.failures == 1
            [hung] = run.report.warnings
            assert (hung.reason, hung.worker) == ("HangStacks", worker)

            spec = run.backend.job.spec.model_copy(update={"failure_policy": FailurePolicy()})
            run.backend.job = run.backend.job.model_copy(update={"spec": spec})
            steps = run.report.step or 0
            await run.until(lambda: (run.report.step or 0) > steps + 20, "all train again")
            worker, victim = last_worker(run)
            victim.send_signal(signal.SIGSTOP)
            await run.until(lambda: stalled(run)[0] == "True", "it is stalled")
            _, reason, message = stalled(run)
            assert reason == "NoProgress"
            assert f"; rank 2 ({worker}): no sign of life: stopped" in message
            assert run.backend.status.state == "Stalled"
            assert f"event NoProgress: {message}" in " ".join(run.console.getvalue().split())
            victim.send_signal(signal.SIGCONT)
            await run.until(lambda: stalled(run) == DOES_NOT_HOLD, "it goes on")
            assert await run.finish() == "Complete"
            assert run.history() == restarted
            assert "ProgressResumed" in run.console.getvalue()


@two_at_once
async def test_a_process_sleeps_at_a_step(tmp_path: Path) -> None:
    """L0 with `step_done`: each process is named by how far it is, and the line it is at."""
    text = job_text("[torchrun, train.py, end]", replicas=1, **{**QUICK, "processesPerWorker": 2})
    async with running(tmp_path, text, nodes=1, script=SLEEPER) as run:
        await run.until(lambda: bool(run.backend.status.conditions), "it begins")
        await run.until(lambda: stalled(run)[0] == "True", "it is stalled")
        text = "when step 10 was done"
        point = "rank 1 (probe-worker-000-1): behind, after step 7, at train.py:9 in sleep_for_ever"
        assert text in stalled(run)[2]
        assert point in stalled(run)[2]
        assert await run.finish() == "Complete"
        assert stalled(run) == DOES_NOT_HOLD


@two_at_once
async def test_a_job_that_hangs_is_restarted_after_its_stacks_were_collected(
    tmp_path: Path,
) -> None:
    """The first membership hangs: one rank sleeps, and one is stopped. The second one completes."""
    text = job_text("[python, train.py, end]", replicas=2, **QUICK, **RESTARTS)
    async with running(tmp_path, text, script=SLEEPER) as run:
        await run.until(lambda: bool(run.backend.status.progress), "it has done a step")
        await run.until(lambda: run.report.step == 10, "the job hangs")
        _, stopped = last_worker(run)
        stopped.send_signal(signal.SIGSTOP)
        await run.until(lambda: run.history() == [("started", 2), ("failed", 2)], "it restarts")
        assert run.report.failures == 1
        await run.until(lambda: bool(run.backend.status.warnings), "the status has the stacks")
        [hung] = run.backend.status.warnings
        assert (hung.reason, hung.worker) == ("HangStacks", "probe-worker-001-1")
        assert "T (stopped)" in hung.message
        log = run.output()
        assert log.count("the job hangs in membership 1.1.1; stacks of this worker:") == 2
        assert "in sleep_for_ever" in log
        assert "no Python stack; in the kernel: " in log
        assert await run.finish() == "Complete"
