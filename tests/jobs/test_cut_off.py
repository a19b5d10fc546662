"""A worker that is cut off from the job trains on, and what it saves must not be gone on from.

Its node's packets are dropped, in a network namespace. Needs root. The deadline for its heartbeat is
never reached: the kernel of its node acknowledges nothing, and it is lost for that.
"""

from __future__ import annotations

import json
from pathlib import Path

from support.beside import two_at_once
from support.driving import Run, job_text, running
from support.ledger import SCRIPT as LIVE
from support.ledger import Ledger
from support.networks import networks

SCRIPT = """
    import os, pathlib, sys, time
    import torch, torch.distributed as dist
    from ddpjob_trainer import Snapshots, step_done

    end = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    snapshots = Snapshots()
    loaded = snapshots.load(model=model)
    step, seen = loaded.step if loaded else 0, torch.zeros(1)
    while not seen.item():
        seen = torch.tensor([float(end.exists())])
        dist.all_reduce(seen)
        time.sleep(0.1)
        step += 1
        step_done(step, 1_000_000)
        if snapshots.due(step):
            snapshots.save(step, model=model)
"""
SPEC = {
    "replicas": 2,
    "elastic": "{joinPolicy: Immediate, settleSeconds: 0.2, orphanSeconds: 600, "
    "heartbeatSeconds: 3600}",
    "snapshot": "{everySteps: 10, keep: 1000}",
}


def snapshots(run: Run) -> dict[int, int]:
    """Step of each, and the number of its writer's fence."""
    manifests = run.state.snapshots.glob("step-*/*/manifest-*.json")
    read = [json.loads(path.read_text()) for path in manifests]
    return {each["step"]: each["fence"] for each in read}


async def cut_off(folder: Path, script: str, told: str) -> None:
    """A worker that is alone in its membership is cut off; another takes its place; it comes back."""
    with networks() as net:
        text = job_text("[torchrun, train.py, end]", **SPEC)
        async with running(folder, text, nodes=1, script=script, network=net) as run:
            await run.until_stepping(1)
            alone = run.backend.nodes.on("node-0")
            assert alone is not None
            await run.until(lambda: len(snapshots(run)) > 3, "snapshots of the first worker")
            net.cut("node-0")
            run.backend.nodes.add()
            log = run.state.logs / f"{alone.name}.log"
            await run.until(lambda: told in log.read_text(), "it learns at a save")
            assert [cause for cause, _ in run.history()][-1] == "lost"
            begun = run.report.memberships[-1]
            await run.until(lambda: max(snapshots(run).values()) > 1, "snapshots of the second one")
            await run.until(
                lambda: run.report.memberships[-1].resumed_step is not None, "where it began"
            )
            resumed = run.report.memberships[-1].resumed_step
            assert resumed is not None
            assert begun.id == run.report.memberships[-1].id
            old = [step for step, fence in snapshots(run).items() if fence == 1]
            assert max(old) == resumed, "all that the first one saved, and no more"
            net.mend("node-0")
            await run.until(lambda: run.report.memberships[-1].world_size == 2, "it is back")
            await run.until_stepping(len(run.report.memberships))
            assert await run.finish() == "Complete", run.story()
            assert run.report.failures == 0, "that it was overtaken is nobody's failure"


@two_at_once
async def test_a_cut_off_worker_adds_nothing(tmp_path: Path) -> None:
    """At L1. Nothing stops it before it saves; then its script ends with the error."""
    await cut_off(tmp_path, SCRIPT, told="FencedError")


@two_at_once
async def test_one_whose_processes_stay_adds_nothing_either(tmp_path: Path) -> None:
    """At L2. It waits, and goes on with the others from their state once it can hear them."""
    ledger = Ledger(tmp_path)
    await cut_off(tmp_path, LIVE, told="is fenced")
    ledger.close()
    finals = ledger.finals()
    assert len(finals) == 2
    assert finals[0] == finals[1]
