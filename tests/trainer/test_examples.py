"""The examples do what their pages promise, started the way users start them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ddpjob_protocol.environment import ENV_REPORT_SOCKET, ENV_SNAPSHOT_DIR, ENV_SNAPSHOT_EVERY
from support.forked import Forks, Program
from trainer.runs import assert_same
from trainer.snapshots.layout import storage_in

if TYPE_CHECKING:
    from trainer.conftest import Listener

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ABORTED = "terminate called without an active exception"

RUNS = ("broken", "whole")


def digits(steps: int, processes: int = 2) -> list[str]:
    """Return the arguments of torchrun."""
    script = EXAMPLES / "digits" / "train.py"
    return ["--standalone", f"--nproc-per-node={processes}", str(script), f"--steps={steps}"]


def saving(env: dict[str, str], directory: Path) -> dict[str, str]:
    return {
        **env, ENV_SNAPSHOT_DIR: str(directory), ENV_SNAPSHOT_EVERY: "10"
    }  # fmt: skip


def output_of(process: Program, output: Path) -> str:
    code, text = process.wait(), output.read_text()
    # torch now and then aborts a process that has finished (docs/failures.md): then it has printed
    # its accuracy, the last thing that it does.
    assert code == 0 or "accuracy" in text, text
    return text


def kill_all(leader: int) -> None:
    """SIGKILL for torchrun and its workers, which have sessions of their own."""
    for child in Path(f"/proc/{leader}/task/{leader}/children").read_text().split():
        kill_all(int(child))
    os.kill(leader, signal.SIGKILL)


def test_digits_killed_in_mid_run_ends_as_if_it_had_not_been(
    forks: Forks, tmp_path: Path, python_env: dict[str, str], listener: Listener
) -> None:
    env = {
        **saving(python_env, tmp_path / "broken"), ENV_REPORT_SOCKET: str(listener.path)
    }  # fmt: skip
    executed = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *digits(10**6)],  # however late it is killed
        env=env, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    while (message := listener.next())["event"] != "saved" or message["step"] < 40:
        assert message["event"] in ("resumed", "saved", "step")
    kill_all(executed.pid)
    executed.wait()
    listener.pending()
    newest = storage_in(tmp_path / "broken", 1).steps()[0]
    assert newest >= 40
    end = newest + 100
    outputs = [tmp_path / f"{name}.out" for name in RUNS]
    quiet = {**saving(python_env, tmp_path / "whole"), ENV_REPORT_SOCKET: ""}
    with outputs[1].open("w") as output:
        process = forks.torchrun(*digits(end), env=quiet, output=output)
    assert "training from step 0" in output_of(process, outputs[1])

    with outputs[0].open("w") as output:
        process = forks.torchrun(*digits(end), env=env, output=output)
    messages = [listener.next()]
    while "accuracy" not in messages[-1].get("metrics", {}):
        messages.append(listener.next())
    assert f"training from step {newest} with 2" in output_of(process, outputs[0])
    assert messages[0] == {"event": "resumed", "step": newest, "loaded": True}
    assert messages[1]["step"] == newest + 1
    assert ("saved", end) in [(each["event"], each["step"]) for each in messages]
    broken, whole = (storage_in(tmp_path / name, 1).read(end) for name in RUNS)
    del broken["random"]["python"], whole["random"]["python"]  # no code has seeded it
    del broken["random"]["numpy"], whole["random"]["numpy"]
    assert_same(broken, whole)


def test_digits_gives_the_same_weights_on_any_number_of_processes(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    states = []
    for processes in (1, 7):
        env = saving(python_env, tmp_path / str(processes))
        with (tmp_path / "out").open("w") as output:
            process = forks.torchrun(*digits(10, processes), env=env, output=output)
        output_of(process, tmp_path / "out")
        states.append(storage_in(tmp_path / str(processes), 1).read(10)["model"])
    for name, tensor in states[0].items():
        assert states[1][name] == pytest.approx(tensor, abs=1e-5), name


def test_torchruns_resumes_by_its_own_file(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    def run(epochs: int) -> str:
        command = ["--standalone", "--nproc-per-node=2", EXAMPLES / "01-torchrun" / "train.py"]
        out, err = tmp_path / "out", tmp_path / "err"
        with out.open("w") as output, err.open("w") as errors:
            process = forks.torchrun(
                *command, epochs, 2, folder=tmp_path, env=python_env, output=output, errors=errors
            )
        # torch now and then aborts a process that has finished (docs/failures.md); what it was
        # to print is asserted below.
        assert process.wait() == 0 or ABORTED in err.read_text(), err.read_text()
        return out.read_text()

    assert re.findall(r"rank 0\] epoch (\d)", run(3)) == ["1", "2", "3"]
    second = run(4)
    assert "[rank 1] resuming after epoch 2" in second
    assert re.findall(r"rank 0\] epoch (\d)", second) == ["3", "4"]
