"""The agent under real torchrun and gloo: what the plain-Python table cannot show."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from ddpjob_operator.cli.common import ExitCode
from ddpjob_operator.local.simulated.environment import ENV_FORKSERVER
from ddpjob_operator.local.simulated.processes import marked, rank_of
from ddpjob_protocol.environment import ENV_WORKER
from support.command import run_to_end, started, write_job
from support.driving import Run, job_text, running

if TYPE_CHECKING:
    from pathlib import Path

# All processes stop at the same step, the one after which one of them has seen the file.
SCRIPT = """
    import os, pathlib, sys, time
    import torch
    import torch.distributed as dist
    from ddpjob_trainer import step_done

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    end, step, seen = pathlib.Path(sys.argv[1]), 0, torch.zeros(1)
    while not seen.item():
        step += 1
        seen = torch.tensor([float(end.exists())])
        dist.all_reduce(seen)
        step_done(step, 1_000_000, world=float(dist.get_world_size()))
        time.sleep(0.1)
    dist.barrier()
    dist.destroy_process_group()
"""
COMMAND = "[torchrun, train.py, end]"
SPEC = {"elastic": "{joinPolicy: Immediate, settleSeconds: 0.2}", "processesPerWorker": 1}
GROUPS = "[{name: small, replicas: 1, processesPerWorker: 1}]"


def ranks(run: Run) -> dict[tuple[str, int], int]:
    """Process id by worker and rank of everything that trains."""
    return {
        (process.environ()[ENV_WORKER], rank): process.pid
        for process in marked(run.backend.job.metadata.uid)
        if (rank := rank_of(process)) is not None
    }


async def service_comes_back(run: Run, boot: int) -> None:
    """Kill the service; its next boot must find everybody still at work."""
    run.backend.service.kill()
    await run.until(lambda: run.report.boot == boot, "the service is back")
    await run.until(lambda: len(run.report.workers) == 2, "both agents are back")
    await run.until(lambda: bool(run.report.step), "steps are reported again")
    step = run.report.step or 0
    await run.until(lambda: (run.report.step or 0) > step + 20, "it goes on")


async def ranks_are_reported(run: Run) -> None:
    """Wait until the status has each worker with the first of its ranks, as the processes do."""
    workers = sorted(
        (min(n for w, n in ranks(run) if w == worker), worker) for worker, _ in ranks(run)
    )
    expected = list(dict.fromkeys(workers))

    def reported() -> bool:
        found = run.backend.status.membership
        return (
            found is not None and [*zip(found.first_ranks, found.workers, strict=False)] == expected
        )

    await run.until(reported, f"ranks {expected}")


def test_service_killed_under_a_running_torchrun_job(tmp_path: Path) -> None:
    """Relay: nobody restarts, and the next changes work: a loss, and a join.

    torchrun sorts by address, so rank 0 is not at the first member.
    """

    async def body() -> None:
        address = "[{name: PET_LOCAL_ADDR, value: 127.0.0.%s}]"
        groups = GROUPS.replace("}]", f", env: {address % 9}}}]")
        spec = {**SPEC, "replicas": 1, "processesPerWorker": 2, "extraWorkerGroups": groups}
        spec["env"] = address % 2
        async with running(tmp_path, job_text(COMMAND, **spec), 2, SCRIPT) as run:
            await run.until_stepping(1)
            before = ranks(run)
            assert sorted(rank for _, rank in before) == [0, 1, 2]
            await ranks_are_reported(run)
            members = run.report.membership.members if run.report.membership else ()
            assert members[0].worker != run.report.ranks[0].worker
            await service_comes_back(run, boot=2)
            await service_comes_back(run, boot=3)
            await run.until(lambda: len(run.report.ranks) == 2, "the ranks are relearned")
            assert ranks(run) == before
            assert run.history() == [("started", 3)]
            run.backend.nodes.kill("node-1")
            await run.until_stepping(2)
            assert run.history() == [("started", 3), ("lost", 2)]
            assert run.report.metrics["world"] == 2
            run.backend.nodes.add()
            await run.until_stepping(3)
            assert run.history() == [("started", 3), ("lost", 2), ("joined", 3)]
            assert run.report.metrics["world"] == 3
            await ranks_are_reported(run)
            assert str(run.report.membership and run.report.membership.id) == "1.3.3"
            assert (run.report.failures, run.report.losses) == (0, 1)
            assert await run.finish() == "Complete", run.story()

    asyncio.run(body())


def test_one_of_several_processes_killed(tmp_path: Path) -> None:
    """The whole membership starts again, once, and the killed rank is blamed."""

    async def body() -> None:
        policy = {"failurePolicy": "{backoffSeconds: 0.1}"}
        spec = {**SPEC, **policy, "replicas": 1, "processesPerWorker": 2}
        spec["extraWorkerGroups"] = GROUPS
        async with running(tmp_path, job_text(COMMAND, **spec), 2, SCRIPT) as run:
            await run.until_stepping(1)
            worker = run.backend.nodes.on("node-0")
            assert worker is not None
            victim = max(rank for name, rank in ranks(run) if name == worker.name)
            run.backend.nodes.kill_process("node-0")
            await run.until_stepping(2)
            assert run.history() == [("started", 3), ("failed", 3)]
            failure = run.report.failure
            assert failure is not None
            blamed = f"rank {victim} ({worker.name}) was killed by SIGKILL"
            assert failure.summary == blamed, run.story()
            assert (run.report.failures, run.report.losses) == (1, 0)
            assert await run.finish() == "Complete", run.story()

    asyncio.run(body())


def warm_parents(run: Run) -> list[psutil.Process]:
    """Of all workers: those that have imported torch, and wait."""
    everybody = [p for p in marked(run.backend.job.metadata.uid) if ENV_WORKER in p.environ()]
    return [p for p in everybody if any("ddpjob_agent.forkserver" in word for word in p.cmdline())]


def test_killed_warm_parent_costs_no_more_than_a_cold_start(tmp_path: Path) -> None:
    """The processes go on; what starts next starts cold, meets warm ones, and says so once."""

    async def body() -> None:
        spec = {**SPEC, "replicas": 2}
        async with running(tmp_path, job_text(COMMAND, **spec), 2, SCRIPT) as run:
            await run.until_stepping(1)
            before = ranks(run)
            parents = {parent.environ()[ENV_WORKER]: parent for parent in warm_parents(run)}
            for (worker, _), process in before.items():
                assert psutil.Process(process).ppid() == parents[worker].pid
            survivor = run.backend.nodes.on("node-0")
            assert survivor is not None
            victim = parents[survivor.name]
            victim.kill()
            await run.until(lambda: not victim.is_running(), "the warm parent is gone")
            step = run.report.step or 0
            await run.until(lambda: (run.report.step or 0) > step + 20, "training goes on")
            assert ranks(run) == before
            assert run.history() == [("started", 2)]
            run.backend.nodes.add()
            run.backend.nodes.kill("node-1")
            await run.until(lambda: run.history()[1:][-1:] == [("joined", 2)], "two again")
            await run.until_stepping(len(run.history()))
            assert await run.finish() == "Complete", run.story()
            told = "the command is started cold: the process that has imported torch is gone"
            assert run.output().count(told) == 1, run.story()

    asyncio.run(body())


def test_torch_is_imported_once_for_all_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once more for a group that would import it differently; a killed node changes nothing."""
    monkeypatch.delenv(ENV_FORKSERVER)

    def importers() -> int:
        """Processes that have imported torch, not been forked from one that had."""
        everybody = psutil.Process().children(recursive=True)
        return len(
            [p for p in everybody if "ddpjob_agent.forkserver.server import" in str(p.cmdline())]
        )

    others = importers()

    async def body() -> None:
        other = GROUPS.replace("}]", ", env: [{name: OTHER, value: '1'}]}]")
        spec = {**SPEC, "replicas": 2, "extraWorkerGroups": other}
        async with running(tmp_path, job_text(COMMAND, **spec), 3, SCRIPT) as run:
            await run.until_stepping(1)
            assert importers() - others == 2
            parents = {parent.environ()[ENV_WORKER]: parent.pid for parent in warm_parents(run)}
            assert len(parents) == 3
            for (worker, _), process in ranks(run).items():
                assert psutil.Process(process).ppid() == parents[worker]
            first = next(
                pod.node for name, pod in run.backend.nodes.pods.items() if "-000-" in name
            )
            assert first is not None
            run.backend.nodes.kill(first)
            await run.until_stepping(2)
            run.backend.nodes.add()
            await run.until_stepping(3)
            assert run.history() == [("started", 3), ("lost", 2), ("joined", 3)]
            assert importers() - others == 2
            assert len(warm_parents(run)) == 3
            assert await run.finish() == "Complete", run.story()

    asyncio.run(body())


@pytest.mark.parametrize("shared", [True, False], ids=["a_server_of_others", "its_own_server"])
def test_a_killed_command_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shared: bool
) -> None:
    """Nor does it where agents are forked by a process that lives on."""
    if not shared:
        monkeypatch.delenv(ENV_FORKSERVER)
    write_job(tmp_path, COMMAND, SCRIPT, replicas=2, processesPerWorker=1)
    with started(tmp_path) as command:
        command.until_stepping()
        below = command.process.children(recursive=True)
        processes = command.processes()
        command.process.kill()
        assert command.wait() == -signal.SIGKILL
        command.until(
            lambda: not any(p.is_running() for p in (*below, *processes)), "all have ended"
        )


@pytest.mark.parametrize(
    ("command", "spec", "told"),
    [
        (COMMAND, {"elastic": "{warmStart: false}"}, "warm starts are switched off"),
        ("[sh, -c, 'exec torchrun train.py end']", {}, "the command is not torchrun"),
    ],
    ids=["switched_off", "not_torchrun"],
)
def test_cold_start_says_why(
    tmp_path: Path, command: str, spec: dict[str, object], told: str
) -> None:
    async def body() -> None:
        text = job_text(command, **{**SPEC, "replicas": 1, **spec})
        async with running(tmp_path, text, 1, SCRIPT) as run:
            await run.until_stepping(1)
            assert warm_parents(run) == []
            assert run.output().count(f"the command is started cold: {told}") == 1
            assert await run.finish() == "Complete", run.story()

    asyncio.run(body())


@pytest.mark.parametrize("program", ["python3", "torchrun"])
def test_a_wrapped_command_without_torchrun_is_reported(tmp_path: Path, program: str) -> None:
    """It completes, but its workers have trained by themselves."""
    write_job(tmp_path, f"[./run.sh, {program}]", "", replicas=2, launcher="torchrun")
    wrapper = tmp_path / "run.sh"
    wrapper.write_text("#!/bin/sh\n$1 train.py\n")
    wrapper.chmod(0o755)
    code, command = run_to_end(tmp_path)
    assert code == ExitCode.OK, command.output
    status = json.loads((command.state / "status.json").read_text())
    alone = ["NotDistributed"] if program == "python3" else []
    assert [each["reason"] for each in status.get("warnings", [])] == alone
    assert command.output.count("does not use torchrun's rendezvous") == len(alone)
