"""Deterministic mode at L2: whoever comes and goes, the parameters are the same to the bit."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.driving import Run, in_background, job_text, running

SCRIPT = """
    import hashlib, os, pathlib, sys, time
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from ddpjob_trainer import ElasticBatchSampler, Loop

    end = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(203, 7)
    net = torch.nn.Sequential(
        torch.nn.Linear(7, 33), torch.nn.GELU(), torch.nn.Dropout(0.3), torch.nn.Linear(33, 3)
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.9)
    data = TensorDataset(inputs, inputs.sum(1))
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, 20))
    loop = Loop(
        net, optimizer, scheduler=scheduler, loader=loader, epochs=20, deterministic=8
    )
    for step in loop:
        with step:
            optimizer.zero_grad()
            for values, sums in step.parts():
                step.backward((loop.model(values).sum(1) - sums).square().mean())
            optimizer.step()
            if not end.exists():
                time.sleep(0.05 * 2 ** (step.number / 30))
    flat = torch.cat([each.flatten() for each in net.state_dict().values()]).numpy()
    pathlib.Path(f"final-{os.getpid()}").write_text(hashlib.sha256(flat.tobytes()).hexdigest())
"""
SPEC = {"elastic": "{joinPolicy: Immediate, settleSeconds: 0.2}"}


def finals(folder: Path) -> set[str]:
    """What the processes ended with that came to the end."""
    found = [path.read_text() for path in folder.glob("final-*")]
    assert found
    return {*found}


@in_background
async def test_the_same_bits_whoever_comes_and_goes(tmp_path: Path) -> None:
    """One process alone, against 6, 4, 6 and 4 in turn, two of which are killed in mid-step."""
    alone, elastic = tmp_path / "alone", tmp_path / "elastic"
    for folder in (alone, elastic):
        folder.mkdir()
    text = job_text("[torchrun, train.py, end]", replicas=1, processesPerWorker=1, **SPEC)
    async with running(alone, text, nodes=1, script=SCRIPT) as undisturbed:
        await asyncio.gather(finish(undisturbed), change(elastic))
    assert finals(alone) == finals(elastic)


async def finish(run: Run) -> None:
    assert await run.finish() == "Complete", run.story()


async def change(folder: Path) -> None:
    text = job_text("[torchrun, train.py, end]", processesPerWorker=2, minReplicas=1, **SPEC)
    async with running(folder, text, nodes=3, script=SCRIPT) as run:
        await run.until_stepping(1)
        run.backend.nodes.kill("node-0")
        await run.until_stepping(2)
        run.backend.nodes.add()
        await run.until_stepping(3)
        run.backend.nodes.drain("node-1")
        await run.until_stepping(4)
        assert run.history() == [("started", 6), ("lost", 4), ("joined", 6), ("left", 4)]
        await finish(run)
