"""Each sample of an epoch once, by a ledger, while workers come and go and loaders fetch ahead."""

from __future__ import annotations

import collections
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil

from support.beside import two_at_once
from support.driving import Run, job_text, running
from support.ledger import Ledger, Row

SAMPLES = 403
BATCH = 12
EPOCHS = 10
STEPS = EPOCHS * -(-SAMPLES // BATCH)

PREAMBLE = f"""
    import json, os, pathlib, socket, sys, time
    import torch, torch.distributed as dist
    from torch.utils.data import DataLoader
    from ddpjob_trainer import ElasticBatchSampler, Loop, Snapshots, step_done

    ledger = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ledger.connect("ledger.sock")
    end, EPOCHS = pathlib.Path(sys.argv[1]), {EPOCHS}

    def tell(what, step, ids=()):
        facts = (what, step, dist.get_rank(), dist.get_world_size(), os.getpid(), json.dumps(ids))
        ledger.send(json.dumps((os.environ["DDPJOB_MEMBERSHIP"], *facts)).encode())

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-9)
    loader = DataLoader(
        torch.arange({SAMPLES}), batch_sampler=ElasticBatchSampler({SAMPLES}, {BATCH}), num_workers=2
    )
"""
LIVE = """
    loop = Loop(net, optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for part in step.parts():
                tell("begun", step.number, part.tolist())  # killed later, it may have taken part
                step.backward(loop.model(part[:, None].float()).mean())
            optimizer.step()
            if not end.exists():
                time.sleep(0.1 * 2 ** (step.number / 80))
        if step.done:
            tell("done", step.number)
"""

SAVED = """
    dist.init_process_group("gloo")
    snapshots, batches = Snapshots(), loader.batch_sampler
    loaded = snapshots.load(model=net, optimizer=optimizer, data=batches)
    step = loaded.step if loaded else 0
    while batches.epoch < EPOCHS:
        for numbers in loader:
            tell("begun", step, numbers.tolist())
            dist.all_reduce(torch.zeros(1))
            with batches.part():
                pass
            tell("done", step)
            step += 1
            step_done(step, 1_000_000)
            if snapshots.due(step):
                snapshots.save(step, model=net, optimizer=optimizer, data=batches)
            if not end.exists():
                time.sleep(0.1 * 2 ** (step / 80))
    dist.barrier()
    dist.destroy_process_group()
"""

# Reports no steps, and stands still in the midst of the first epoch until somebody ends it.
HELD_AT = 25
HELD = f"""
    EPOCHS = 2
    dist.init_process_group("gloo")
    snapshots, batches = Snapshots(), loader.batch_sampler
    loaded = snapshots.load(model=net, optimizer=optimizer, data=batches)
    step = loaded.step if loaded else 0
    is_first = not loaded
    while batches.epoch < EPOCHS:
        for numbers in loader:
            tell("begun", step, numbers.tolist())
            dist.all_reduce(torch.zeros(1))
            with batches.part():
                pass
            step += 1
            if snapshots.due(step):
                snapshots.save(step, model=net, optimizer=optimizer, data=batches, wait=True)
            tell("done", step - 1)
            while is_first and step == {HELD_AT}:
                time.sleep(0.02)
    dist.barrier()
    dist.destroy_process_group()
"""

SPEC = {
    "elastic": "{joinPolicy: Immediate, settleSeconds: 0.2}",
    "failurePolicy": "{backoffSeconds: 0.1}",
    "processesPerWorker": 1,
}


@contextlib.asynccontextmanager
async def reading(folder: Path, script: str, **spec: object) -> AsyncIterator[tuple[Run, Ledger]]:
    """A job of three workers with one process each, and two loading processes for each of these."""
    ledger = Ledger(folder)
    try:
        text = job_text("[torchrun, train.py, end]", **SPEC, **spec)
        async with running(folder, text, nodes=3, script=script) as run:
            yield run, ledger
    finally:
        ledger.close()


def trained_on(ledger: Ledger, step: int) -> list[int]:
    """What the membership that did this step for good trained on in it."""
    deciding = [course for course in ledger.courses() if course.first <= step][-1].membership
    rows = [r for r in ledger.rows() if (r.membership, r.what, r.step) == (deciding, "begun", step)]
    assert len(rows) == rows[0].world_size
    return [sample for row in rows for sample in json.loads(row.value)]


def check_each_epoch(ledger: Ledger, epochs: int = EPOCHS) -> None:
    per_epoch = STEPS // EPOCHS
    for first in range(0, epochs * per_epoch, per_epoch):
        seen = collections.Counter(
            sample
            for step in range(first, first + per_epoch)
            for sample in trained_on(ledger, step)
        )
        assert seen == collections.Counter(range(SAMPLES))


@two_at_once
async def test_each_sample_once_at_l2(tmp_path: Path) -> None:
    """A node is killed, another one comes; a training process dies, while its loaders live."""
    async with reading(tmp_path, PREAMBLE + LIVE) as (run, ledger):
        await run.until_stepping(1)
        run.backend.nodes.kill("node-0")
        await run.until_stepping(2)
        run.backend.nodes.add()
        await run.until_stepping(3)
        training_process(run, "node-1").send_signal(signal.SIGKILL)
        await run.until(lambda: [c for c, _ in run.history()][3:] == ["failed", "joined"], "back")
        await run.until_stepping(5)
        run.backend.nodes.drain("node-2")
        await run.until_stepping(6)
        assert run.history()[-1] == ("left", 2)
        assert await run.finish() == "Complete", run.story()
        check_each_epoch(ledger)


@two_at_once
async def test_each_sample_once_at_l1_while_changes_are_planned(tmp_path: Path) -> None:
    """No snapshot is due but those of the agreed steps."""
    snapshot = "{everySteps: 1000000}"
    async with reading(tmp_path, PREAMBLE + SAVED, snapshot=snapshot) as (run, ledger):
        await run.until_stepping(1, steps=2)
        run.backend.nodes.drain("node-0")
        await run.until_stepping(2, steps=2)
        run.backend.nodes.add()
        await run.until_stepping(3)
        assert run.history() == [("started", 3), ("left", 2), ("joined", 3)]
        assert await run.finish() == "Complete", run.story()
        assert not any(ledger.void_steps())
        check_each_epoch(ledger)


@two_at_once
async def test_a_loss_at_l1_repeats_as_many_steps_as_are_told(tmp_path: Path) -> None:
    """Also where the lost one is rank 0, and nobody reports steps: all know how far they were."""
    snapshot = "{everySteps: 10}"
    async with reading(tmp_path, PREAMBLE + HELD, snapshot=snapshot) as (run, ledger):

        def held() -> list[Row]:
            return [r for r in ledger.rows() if (r.what, r.step) == ("done", HELD_AT - 1)]

        await run.until(lambda: len(held()) == 3, "all three are held")
        [first] = [row.pid for row in held() if row.rank == 0]
        nodes = [f"node-{n}" for n in range(3)]
        [lost] = [node for node in nodes if training_process(run, node).pid == first]
        run.backend.nodes.kill(lost)
        assert await run.finish() == "Complete", run.story()
        assert [cause for cause, _ in run.history()] == ["started", "lost"]
        check_each_epoch(ledger, epochs=2)
        assert repeated(ledger) == 5 * BATCH
        assert run.report.repeated_steps == run.task.result().restarts.repeated_steps == 5
        assert "from the snapshot of step 20; 5 steps are done again" in run.console.getvalue()


def repeated(ledger: Ledger) -> int:
    """Samples of the first epoch in steps that were done, beyond once each."""
    done = {(row.membership, row.step) for row in ledger.rows() if row.what == "done"}
    samples = collections.Counter(
        sample
        for row in ledger.rows()
        if row.what == "begun" and (row.membership, row.step) in done and row.step < STEPS // EPOCHS
        for sample in json.loads(row.value)
    )
    return samples.total() - len(samples)


def training_process(run: Run, node: str) -> psutil.Process:
    """The one whose children load."""
    pod = run.backend.nodes.on(node)
    assert pod is not None
    assert pod.process is not None
    trains = [
        each
        for each in psutil.Process(pod.process.pid).children(recursive=True)
        if "train.py" in each.cmdline()[1:3]
    ]
    [found] = [each for each in trains if each.ppid() not in {one.pid for one in trains}]
    return found
