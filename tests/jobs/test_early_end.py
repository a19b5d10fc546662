"""Live processes that end before the last step, whatever their exit code, fail the job."""

from __future__ import annotations

from pathlib import Path

from support.beside import two_at_once
from support.driving import job_text, running

SCRIPT = """
    import os, torch
    from ddpjob_trainer import Loop

    torch.set_num_threads(1)
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in (loop := Loop(net, optimizer, steps=1000)):
        with step:
            loop.model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
        if step.number == 30 and step.rank == 1:
            os._exit(0)
"""


@two_at_once
async def test_a_process_of_several_ends_in_the_middle(tmp_path: Path) -> None:
    """torchrun waits for the others of its worker, which wait for the one that ended."""
    spec = {
        "replicas": 1, "processesPerWorker": 2, "elastic": "{settleSeconds: 0.2}",
        "failurePolicy": "{maxRestarts: {application: 0}}",
    }  # fmt: skip
    text = job_text("[torchrun, train.py]", **spec)
    async with running(tmp_path, text, nodes=1, script=SCRIPT) as run:
        assert await run.finish() == "Failed"
        failure = run.report.failure
        assert failure is not None
        assert failure.rank == 1
        words = "rank 1 (probe-worker-000-1) ended after step 31, before the last step."
        assert words in failure.summary
        assert "loop.stop()" in failure.summary
