"""`ddpjob snapshots`, from the outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch.distributed import checkpoint

from ddpjob_trainer import Snapshots
from ddpjob_trainer.__main__ import main
from ddpjob_trainer.snapshots.model.manifest import TENSORS, name_of
from support.pages import shell_lines
from trainer.runs import Run, assert_same
from trainer.snapshots.layout import committed, folder_of


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Steps 1, 2, 3; 2 is damaged."""
    path = tmp_path / "snapshots"
    snapshots = Snapshots(path, 9)
    for step in (1, 2, 3):
        run = Run()
        run.train(step)
        schedule = torch.optim.lr_scheduler.MultiStepLR(run.optimizer, [2])
        snapshots.save(step, **run.parts(), scheduler=schedule, wait=True)
    damaged = folder_of(path, 2) / TENSORS
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    return path


def test_list(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder_of(directory, 1) / TENSORS).unlink()
    assert main(["list", str(directory)]) == 0
    heads, *lines = capsys.readouterr().out.splitlines()
    assert heads.split() == ["STEP", "SIZE", "AGE", "WRITER", "STATE"]
    assert [line.split()[0] for line in lines] == ["3", "2", "1"]
    sizes = {line[heads.index("SIZE") : heads.index("AGE")].split()[1] for line in lines}
    assert sizes <= {"B", "kB"}
    assert lines[0].endswith("   -        complete")
    assert lines[2].endswith("unusable: it is incomplete: tensors.safetensors is missing")
    assert main(["list", str(directory), "-o", "json"]) == 0
    newest, _, oldest = json.loads(capsys.readouterr().out)
    size = (folder_of(directory, 3) / TENSORS).stat().st_size
    assert newest["step"] == 3
    assert newest["size"] >= size
    assert abs(datetime.fromisoformat(newest["written"]).timestamp() - time.time()) < 3600
    assert (newest["writer"], newest["state"], newest["reason"]) == ("", "complete", "")
    assert (oldest["state"], oldest["reason"]) == (
        "unusable",
        "it is incomplete: tensors.safetensors is missing",
    )


def test_list_marks_snapshots_that_do_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPJOB_SNAPSHOT_DIR", str(tmp_path))
    monkeypatch.setenv("DDPJOB_JOB_UID", "job")
    monkeypatch.setenv("DDPJOB_MEMBERSHIP", "1.1.1")
    old = Snapshots()
    old.save(5, **Run().parts(), wait=True)
    old.save(9, **Run().parts(), wait=True)
    (tmp_path / name_of(9)).rename(tmp_path / "late")
    monkeypatch.setenv("DDPJOB_MEMBERSHIP", "1.1.2")
    Snapshots().load(**Run().parts())
    (tmp_path / "late").rename(tmp_path / name_of(9))
    assert main(["list", str(tmp_path)]) == 0
    _, newest, older = capsys.readouterr().out.splitlines()
    assert newest.endswith("membership 1.1.1   fenced: does not count")
    assert older.endswith("membership 1.1.1   complete")
    assert main(["prune", str(tmp_path), "--keep", "3"]) == 0
    assert committed(tmp_path) == [5]


def test_verify(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(directory)]) == 1
    newest, damaged, oldest = capsys.readouterr().out.splitlines()
    assert newest.split() == ["3", "whole"]
    assert "2  it is damaged: the checksum of tensors.safetensors" in damaged
    assert oldest.split() == ["1", "whole"]
    assert main(["verify", str(directory), "--step", "3"]) == 0
    assert main(["verify", str(directory), "--step", "4"]) == 1
    assert "there is no such snapshot" in capsys.readouterr().err


def test_prune(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", str(directory), "--keep", "2"]) == 0
    assert capsys.readouterr().out.split() == ["1", "deleted"]
    with pytest.raises(SystemExit, match="2"):
        main(["prune", str(directory), "--keep", "0"])


def test_export(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exported file needs no code of ours."""
    assert main(["export", str(directory), str(tmp_path / "model.pt")]) == 0
    assert "step 3 is in" in capsys.readouterr().out
    run = Run()
    run.train(3)
    again = Run(seed=1)
    again.model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert_same(again.weights(), run.weights())
    assert main(["export", str(directory), str(tmp_path / "model.pt")]) == 1
    assert "is there already" in capsys.readouterr().err
    assert main(["export", str(directory), str(tmp_path / "all.pt"), "--step", "1", "--all"]) == 0
    everything = torch.load(tmp_path / "all.pt", weights_only=True)
    assert everything["step"] == 1
    assert everything["optimizer"]["param_groups"][0]["momentum"] == 0.9
    assert main(["export", str(directory), str(tmp_path / "2.pt"), "--step", "2"]) == 1
    assert "it is damaged" in capsys.readouterr().err
    assert not (tmp_path / "2.pt").exists()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process loads
def test_other_programs_read_what_is_exported(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run()
    run.train(3)
    file, folder = tmp_path / "model.safetensors", tmp_path / "dcp"
    assert main(["export", str(directory), str(file), "--format", "safetensors"]) == 0
    again = Run(seed=1)
    again.model.load_state_dict(safetensors.torch.load_file(file))
    assert_same(again.weights(), run.weights())
    with safetensors.safe_open(file, "pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    assert main(["export", str(directory), str(folder), "--format", "dcp"]) == 0
    again = Run(seed=2)
    checkpoint.load(again.model.state_dict(), checkpoint_id=folder, no_dist=True)
    assert_same(again.weights(), run.weights())
    assert main(["export", str(directory), str(tmp_path / "all"), "--format", "dcp", "--all"]) == 0
    everything = {"step": 0, "optimizer": Run().optimizer.state_dict()}
    checkpoint.load(everything, checkpoint_id=tmp_path / "all", no_dist=True)
    assert everything["step"] == 3
    capsys.readouterr()
    other = str(tmp_path / "all.safetensors")
    assert main(["export", str(directory), other, "--format", "safetensors", "--all"]) == 1
    assert "holds tensors only, and extra is none. Leave out --all" in capsys.readouterr().err


def test_a_missing_snapshot_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(tmp_path / "none")]) == 1
    assert f"there is no directory {tmp_path}/none" in capsys.readouterr().err
    assert main(["list", str(tmp_path)]) == 0
    assert f"no snapshots in {tmp_path}" in capsys.readouterr().err
    assert main(["export", str(tmp_path), str(tmp_path / "file")]) == 1


def test_it_is_a_command_of_ddpjob(directory: Path) -> None:
    command = [str(Path(sys.executable).with_name("ddpjob")), "snapshots", "list", str(directory)]
    done = subprocess.run(command, env=os.environ, check=True, stdout=subprocess.PIPE, text=True)
    assert len(done.stdout.splitlines()) == 4


@pytest.mark.parametrize("words", [["list"], ["--help"], ["verify", "--step", "1"]])
def test_a_full_disk_under_stdout_is_told(directory: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "ddpjob_trainer", *words]
    command += [str(directory)] if "--help" not in words else []
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 74
    assert done.stderr == (
        "stdout cannot be written: [Errno 28] No space left on device; the output is incomplete\n"
    )


def test_a_reader_that_has_gone_ends_it_quietly(directory: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "ddpjob_trainer", "list", str(directory)]
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_commands_of_the_page_work_as_they_stand(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With and without what is in brackets; they find the damaged snapshot, and delete none of 3."""
    given = {"DIR": str(directory), "N": "3"}
    lines = [line for line in shell_lines().values() if line.startswith("snapshots ")]
    assert len(lines) == 4
    for line in lines:
        options = re.findall(r"\[(.*?)\]", line)
        for chosen in ("", *options):
            words = [*re.sub(r"\[.*?\]", "", line).split()[1:], *chosen.split()]
            given["FILE"] = str(tmp_path / f"model{len(list(tmp_path.iterdir()))}.pt")
            code = main([given.get(word, word) for word in words])
            assert code == (1 if words == ["verify", "DIR"] else 0), words
            assert capsys.readouterr().out or words[0] == "prune", words
    assert len(list(tmp_path.glob("model*.pt"))) == 3
    assert committed(directory) == [1, 2, 3]
