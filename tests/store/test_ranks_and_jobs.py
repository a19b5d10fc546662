"""Several processes and one bucket; whole jobs that keep their snapshots there."""

from __future__ import annotations

import json
from pathlib import Path

from store.objects_of import bucket
from store.server import Server
from support.command import run_to_end, started, write_job
from support.forked import Forks


def test_one_rank_writes_and_one_of_each_node_reads(
    forks: Forks, uri: str, server: Server, tmp_path: Path, python_env: dict[str, str]
) -> None:
    before = len(server.requests())
    script = Path(__file__).with_name("three_ranks.py")
    ranks = [forks.start(script, rank, tmp_path, uri, env=python_env) for rank in range(3)]
    assert [rank.wait() for rank in ranks] == [0, 0, 0]
    expected = [[None, [0.0] * 4], [6, [60.0] * 4], [5, [50.0] * 4]]
    for rank in range(3):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == expected
    found = json.loads((tmp_path / "names.json").read_text())
    assert len([name for name in found if name.startswith("step-")]) == 4, "of one writer"
    read = [
        name.rpartition("/jobs/digits/")[0] or name
        for operation, name in server.requests()[before:]
        if operation == "GetObject" and "/step-000000000005/" in name and "tensors" in name
    ]
    assert len(read) == 4, "header and tensors, by ranks 0 and 2; rank 1 gets them from one of both"


SCRIPT = """
    import pathlib
    import time
    import torch
    from ddpjob_trainer import Snapshots, step_done
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    last = 8
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    snapshots = Snapshots()
    loaded = snapshots.load(model=model)
    first = loaded.step if loaded else 0
    print("resumes from", first, flush=True)
    for step in range(first, last):
        with torch.no_grad():
            model.bias.fill_(step + 1)
        torch.distributed.barrier()
        if snapshots.due(step + 1):
            snapshots.save(step + 1, model=model, wait=True)
        step_done(step + 1, total=last)
        while step + 1 in (4, 6) and not pathlib.Path("end").exists():
            time.sleep(0.05)
            torch.distributed.barrier()
    snapshots.wait()
    torch.distributed.destroy_process_group()
"""
TRAIN = "[torchrun, train.py]"


def test_a_job_resumes_from_the_bucket(uri: str, tmp_path: Path) -> None:
    """A node is lost, and then the whole job: all there is is the bucket."""
    spec = {"snapshot": f"{{uri: '{uri}', everySteps: 2, keep: 2}}", "replicas": 2}
    write_job(tmp_path, TRAIN, SCRIPT, **spec)
    chaos = ("run", "--local", "job.yaml", "--nodes", "3", "--chaos", "kill=step4")
    with started(tmp_path, *chaos) as command:
        command.until(lambda: "resumes from 4" in command.logs, "resumes after the loss")
        command.until(lambda: bucket(uri).complete()[:1] == [6], "saved in the bucket")
        command.until(lambda: command.report["snapshot_step"] == 6, "told")
        command.kill()
        command.until(lambda: not command.processes(), "agents and processes end with it")
    assert [*(command.state / "snapshots").iterdir()] == []
    (tmp_path / "end").touch()
    code, again = run_to_end(tmp_path)
    assert code == 0, again.output
    assert "resumes from 6" in again.logs
    assert bucket(uri).complete() == [8, 6]


def test_fresh_leaves_a_bucket_alone(uri: str, tmp_path: Path) -> None:
    write_job(tmp_path, TRAIN, SCRIPT, snapshot=f"{{uri: '{uri}'}}")
    code, command = run_to_end(tmp_path, "run", "--local", "job.yaml", "--fresh")
    assert code == 2
    assert f"--fresh cannot move the snapshots in {uri}; use another prefix" in command.output
