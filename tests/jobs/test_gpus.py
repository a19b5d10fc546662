"""GPUs of this machine, handed out to simulated workers; processes print what they may see."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpjob_operator.cli.common import ExitCode
from support.command import RUN, Command, in_process, started, write_job
from support.driving import SCRIPT

SEES = """
    name = os.environ["DDPJOB_WORKER"]
    seen = pathlib.Path(os.environ["DDPJOB_SNAPSHOT_DIR"], name + ".sees")
    partial = seen.with_suffix(".partial")
    partial.write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    partial.rename(seen)
"""
COMMAND = "[python3, train.py, end]"


@pytest.fixture
def _three_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with three GPUs."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    lines = "".join(f"echo 'GPU {i}: NVIDIA L4 (UUID: GPU-{i})'\n" for i in range(3))
    program.write_text(f"#!/bin/sh\n{lines}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def write(folder: Path, **spec: object) -> None:
    head, loop, rest = SCRIPT.partition("    step = 0\n")
    write_job(folder, COMMAND, head + SEES + loop + rest, **spec)


def seen(command: Command) -> dict[str, str]:
    """What each worker sees."""
    files = (command.state / "snapshots").glob("*.sees")
    return {path.stem.removeprefix("probe-"): path.read_text() for path in files}


def expect(command: Command, **workers: str) -> None:
    expected = {name.replace("_", "-"): devices for name, devices in workers.items()}
    command.until(lambda: seen(command) == expected, f"{expected}, not {seen(command)}")


@pytest.mark.usefixtures("_three_gpus")
def test_each_worker_uses_gpus_of_its_own(tmp_path: Path) -> None:
    spot = "[{name: spot, replicas: 1, gpusPerWorker: 2}]"
    write(tmp_path, replicas=1, gpusPerWorker=1, extraWorkerGroups=spot)
    chaos = "kill:node-1=step3,join=step4"
    with started(tmp_path, *RUN, "--chaos", chaos) as command:
        command.until(lambda: len(seen(command)) == 3, "a worker in the place of the lost one")
        sees = seen(command)
        [new] = [name for name in sees if name.endswith("-2")]
        assert sees.pop(new) == sees[f"{new[:-1]}1"], "the devices of the lost one"
        assert sorted(",".join(sees.values()).split(",")) == ["0", "1", "2"], "each one once"
        (tmp_path / "end").touch()
        assert command.wait() == ExitCode.OK, command.output
    assert "GPUs 0, 1, 2: 1 for each worker of worker, 2 for each worker of spot\n" in (
        command.output
    )


@pytest.mark.usefixtures("_three_gpus")
def test_a_job_that_asks_for_none_gets_none(tmp_path: Path) -> None:
    write(tmp_path, replicas=1)
    with started(tmp_path) as command:
        expect(command, worker_000_1="")
        (tmp_path / "end").touch()
        assert command.wait() == ExitCode.OK, command.output
    assert "GPUs 0, 1, 2 are not used: the job asks for none" in command.output


def test_inherited_devices_are_divided_below_a_warm_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b,GPU-a")
    write(tmp_path)
    write_job(
        tmp_path,
        "[torchrun, train.py, end]",
        (tmp_path / "train.py").read_text(),
        replicas=2,
        gpusPerWorker=1,
    )
    with started(tmp_path) as command:
        expect(command, worker_000_1="GPU-b", worker_001_1="GPU-a")
        (tmp_path / "end").touch()
        assert command.wait() == ExitCode.OK, command.output
    assert "cold" not in command.logs


@pytest.mark.usefixtures("_three_gpus")
def test_too_few_gpus_are_reported_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, replicas=4, gpusPerWorker=1)
    code, output = in_process(tmp_path, monkeypatch, capsys, *RUN)
    assert code == ExitCode.INVALID
    assert output == (
        "job.yaml: 4 workers need 4 GPUs (gpusPerWorker), and there are 3 (nvidia-smi -L); lower "
        "gpusPerWorker or replicas, --nodes 3 so that the other workers wait, --share-gpus so that "
        "workers share GPUs, or pass --no-gpus to run on CPUs\n"
    )
    assert not (tmp_path / ".ddpjob").exists()
