"""In live mode a script's own error ends the job with its traceback, whatever words it has."""

from __future__ import annotations

from pathlib import Path

from support.beside import two_at_once
from support.driving import Run, job_text, running

HEAD = """
    import pathlib, torch
    from ddpjob_trainer import Loop, Snapshots

    torch.set_num_threads(1)
    snapshots = Snapshots("gloo-demo/snapshots")
    def model(width):
        net = torch.nn.Linear(3, width)
        return net, torch.optim.SGD(net.parameters(), lr=0.1)
"""
WORDS = f"""{HEAD}
    net, optimizer = model(3)
    loop = Loop(net, optimizer, steps=10)
    for step in loop:
        with step:
            optimizer.zero_grad()
            loop.model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            if step.number == 3 and step.rank == 0:
                raise RuntimeError("NCCL or gloo: vocabulary file igloo.txt is missing")
"""
MISFIT = f"""{HEAD}
    if not pathlib.Path("gloo-demo/snapshots").exists():
        net, optimizer = model(2)
        snapshots.save(1, model=net, optimizer=optimizer, wait=True)
    net, optimizer = model(3)
    for step in Loop(net, optimizer, steps=10, snapshots=Snapshots("gloo-demo/snapshots")):
        raise SystemExit("it trains on a state that does not fit")
"""


async def failed(folder: Path, script: str) -> Run:
    """The failed job of one script, on one node, with no restart to spare."""
    text = job_text("[torchrun, train.py]", replicas=1, processesPerWorker=1).replace(
        "name: probe", "name: gloo-demo"
    )
    text += "  failurePolicy: {maxRestarts: {application: 0}}\n"
    async with running(folder, text, nodes=1, script=script) as run:
        assert (await run.finish()) == "Failed", run.story()
        return run


@two_at_once
async def test_an_error_that_mentions_gloo_reaches_the_user(tmp_path: Path) -> None:
    run = await failed(tmp_path, WORDS)
    assert "in <module>" in run.output()
    assert "RuntimeError: NCCL or gloo: vocabulary file igloo.txt is missing" in run.output()
    assert run.report.failure is not None
    assert "lost its connection" not in run.report.failure.summary


@two_at_once
async def test_a_misfit_in_a_job_named_after_gloo_reaches_the_user(tmp_path: Path) -> None:
    run = await failed(tmp_path, MISFIT)
    assert "in <module>" in run.output()
    assert "does not fit" in run.output()
    assert "size mismatch for weight" in run.output()
    assert len(run.report.memberships) == 1, run.story()
