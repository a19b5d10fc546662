"""A job in snapshot mode that hangs in a step: it restarts and completes from its snapshot."""

from __future__ import annotations

import re
from pathlib import Path

from jobs.test_hanging import QUICK, RESTARTS, _impatient
from support.driving import in_background, job_text, running

__all__ = ["_impatient"]  # a fixture
SPEC = {**QUICK, **RESTARTS, "snapshot": "{everySteps: 4}"}

# Rank 1 hangs once, in its step 11, after a snapshot.
SCRIPT = """
    import os, pathlib, time
    import torch, torch.distributed as dist
    from ddpjob_trainer import Snapshots, step_done

    def sleep_for_ever():
        while True:
            time.sleep(0.1)

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    snapshots, hung = Snapshots(), pathlib.Path("hung")
    loaded = snapshots.load(model=model)
    first = loaded.step if loaded else 0
    print("begins after step", first, flush=True)
    for step in range(first + 1, 21):
        if step == 11 and dist.get_rank() == 1 and not hung.exists():
            hung.touch()
            sleep_for_ever()
        model(torch.ones(1, 4)).sum().backward()
        step_done(step, 20)
        if snapshots.due(step):
            snapshots.save(step, model=model)
    dist.barrier()
    dist.destroy_process_group()
"""


@in_background
async def test_a_job_that_hangs_completes_from_its_snapshot(tmp_path: Path) -> None:
    """The stacks of all ranks are collected before the restart."""
    text = job_text("[python, train.py]", replicas=2, **SPEC)
    async with running(tmp_path, text, script=SCRIPT) as run:
        assert await run.finish() == "Complete"
        assert run.history() == [("started", 2), ("failed", 2)]
        assert run.report.failures == 1
        log = run.output()
        assert log.count("the job hangs in membership 1.1.1; stacks of this worker:") == 2
        assert "in sleep_for_ever" in log
        begun = re.findall(r"begins after step (\d+)", log)
        assert sorted(begun)[:2] == ["0", "0"]
        assert sorted(begun)[2:] in (["4", "4"], ["8", "8"])  # a busy disk skips a save
