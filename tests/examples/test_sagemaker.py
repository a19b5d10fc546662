"""A script that was written for SageMaker."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from support.driving import in_background, job_text, running
from support.playing import playing, said, told

SCRIPT = """
    import json, os, sys
    facts = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "SM_CURRENT_HOST")]
    hosts = json.loads(os.environ["SM_HOSTS"])
    assert facts[2] in hosts and json.loads(os.environ["SM_HPS"]) == {"epochs": 2}, hosts
    print(f"rank {facts[0]} of {facts[1]} on {len(hosts)} hosts: {sys.argv[1:]}", flush=True)
"""


@in_background
async def test_hosts_are_true_after_one_is_lost_and_the_model_is_there(tmp_path: Path) -> None:
    async with playing(tmp_path, "11-sagemaker", nodes=3) as run:
        await said(run, r"epoch \d+ is saved")
        assert told(run, r"host (\d) of 3 begins after epoch (\d+)") == {(0, 0), (1, 0), (2, 0)}
        run.backend.nodes.kill("node-0")
        assert await run.finish() == "Complete", run.story()
        begun = told(run, r"host (\d) of 2 begins after epoch (\d+)")
        assert {host for host, _ in begun} == {0, 1}
        assert min(epoch for _, epoch in begun) >= 5
        assert len(re.findall(r"host (\d) learnt 3\.00 -2\.00 1\.00", run.output())) == 2
        model = torch.load(tmp_path / "opt/ml/model/model.pth")
        assert model["epoch"] == 200


@in_background
async def test_torch_distributed_is_torchrun(tmp_path: Path) -> None:
    conventions = "{distribution: torch_distributed, hyperparameters: {epochs: '2'}}"
    text = job_text("[train.py]", replicas=2, processesPerWorker=2, sagemaker=conventions)
    async with running(tmp_path, text, nodes=2, script=SCRIPT) as run:
        assert await run.finish() == "Complete", run.story()
        found = re.findall(r"rank (\d) of 4 on 2 hosts: \['--epochs', '2'\]", run.output())
        assert sorted(found) == list("0123")
