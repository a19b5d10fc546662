"""No shared storage: each worker has a directory of its own, and any node may be lost."""

from __future__ import annotations

from pathlib import Path

from support.beside import two_at_once
from support.driving import Run, job_text, running

SCRIPT = """
    import os, pathlib, sys, time
    import torch, torch.distributed as dist

    os.environ["DDPJOB_SNAPSHOT_DIR"] += "/" + os.environ["DDPJOB_WORKER"]  # as an emptyDir has it
    from ddpjob_trainer import Snapshots, step_done

    end = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model, steps = torch.nn.Linear(4, 1), torch.zeros(1)
    model.register_buffer("steps", steps)
    snapshots = Snapshots(check_replicas=False)
    loaded = snapshots.load(model=model)
    step, seen = loaded.step if loaded else 0, torch.zeros(1)
    assert step == int(steps), (step, steps)
    while not seen.item():
        seen = torch.tensor([float(end.exists())])
        dist.all_reduce(seen)
        time.sleep(0.05)
        step += 1
        steps.fill_(step)
        step_done(step, 1_000_000)
        if snapshots.due(step):
            snapshots.save(step, model=model)
"""
SPEC = {
    "replicas": 3,
    "minReplicas": 1,
    "processesPerWorker": 2,
    "elastic": "{joinPolicy: Immediate, settleSeconds: 0.2}",
    "snapshot": "{everySteps: 10}",
}


async def lose(run: Run, node: str) -> None:
    """Once there is a snapshot of this membership; nothing that was reported may be lost with it."""
    since = run.report.memberships[-1].snapshot_step or 0
    await run.until(lambda: (run.report.snapshot_step or 0) > since, "a snapshot is safe")
    count = len(run.report.memberships)
    run.backend.nodes.kill(node)
    safe = run.report.snapshot_step
    await run.until_stepping(count + 1)
    resumed = run.report.memberships[-1].resumed_step
    assert resumed is not None
    assert safe is not None
    assert resumed >= safe


@two_at_once
async def test_any_node_may_be_lost(tmp_path: Path) -> None:
    """That of rank 0, then another; a newcomer has copies, too, and goes on alone in the end."""
    text = job_text("[torchrun, train.py, end]", **SPEC)
    async with running(tmp_path, text, nodes=3, script=SCRIPT) as run:
        await run.until_stepping(1)
        await lose(run, "node-0")
        run.backend.nodes.add()
        await run.until_stepping(3)
        await lose(run, "node-1")
        await lose(run, "node-2")
        assert [cause for cause, _ in run.history()] == [
            "started",
            "lost",
            "joined",
            "lost",
            "lost",
        ]
        assert await run.finish() == "Complete", run.story()
        assert run.report.failures == 0
