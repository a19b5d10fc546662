"""Live jobs of two workers on one GPU: `ddpjob run --local --share-gpus`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpjob_operator.cli.common import ExitCode
from support.command import RUN, started, write_job

STEPS = 300
LIVE = f"""
    import hashlib, json, os, pathlib, sys, time
    import torch
    from ddpjob_trainer import Loop

    end = pathlib.Path(sys.argv[1])
    torch.manual_seed(os.getpid())  # whoever starts gets rank 0's parameters, or a survivor's
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3))).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.001)
    for step in (loop := Loop(net, optimizer, steps={STEPS})):
        with step:
            numbers = torch.Generator().manual_seed(step.number)
            batch = torch.randn(12, 64, generator=numbers)[step.rank :: step.world_size].cuda()
            loss = (loop.model(batch) - batch.roll(1, 1)).pow(2).sum() * step.world_size / 12
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not end.exists():
                time.sleep(0.1)
    weights = b"".join(each.detach().cpu().numpy().tobytes() for each in net.parameters())
    facts = [hashlib.sha256(weights).hexdigest(), step.world_size]
    pathlib.Path(f"final-{{os.getpid()}}.json").write_text(json.dumps(facts))
"""


@pytest.mark.parametrize(
    ("chaos", "causes", "world_size"),
    [
        pytest.param("kill=step10", {"lost"}, 1, id="one is killed"),
        pytest.param("kill=step10,join=step20", {"lost", "joined"}, 2, id="another one joins"),
    ],
)
def test_a_live_job_ends_with_equal_parameters(
    tmp_path: Path, chaos: str, causes: set[str], world_size: int
) -> None:
    write_job(tmp_path, "[torchrun, train.py, end]", LIVE, replicas=2, gpusPerWorker=1)
    with started(tmp_path, *RUN, "--share-gpus", "--chaos", chaos) as command:
        command.until(lambda: command.report and causes <= {*command.causes}, f"{causes}")
        step = command.report["step"] or 0
        command.until(lambda: (command.report["step"] or 0) > step + 5, "steps after that")
        (tmp_path / "end").touch()
        assert command.wait() == ExitCode.OK, command.output
    ends = [json.loads(path.read_text()) for path in tmp_path.glob("final-*.json")]
    assert [size for _, size in ends] == [world_size] * world_size
    assert len({digest for digest, _ in ends}) == 1
