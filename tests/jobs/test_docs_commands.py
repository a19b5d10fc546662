"""The commands in the shell blocks of README and documentation, executed as they stand.

tests/cluster executes those for a cluster, tests/examples those of the examples. What needs torch is
left to other tiers; tests/test_docs_blocks.py compares every command with the options that exist.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpjob_operator.cli import main
from support.command import run_to_end, write_job
from support.pages import ROOT, shell_lines

NEEDS_NOTHING = {"validate", "convert", "explain", "report", "run"}
OF_A_CLUSTER = {"report digits -o digits.html"}
EXECUTED = 11  # raise it with a new command on a page
PYTORCHJOB = ROOT / "tests" / "operator" / "convert" / "files" / "fixed.yaml"
STEPS = """
    import json, os, socket, time
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for step in range(1, 41):
        report = {"event": "step", "step": step, "total": 40, "metrics": {"loss": 1 / step}}
        agent.sendto(json.dumps(report).encode(), os.environ["DDPJOB_REPORT_SOCKET"])
        time.sleep(0.1)
"""


def lines() -> dict[str, str]:
    return {
        place: line
        for place, line in shell_lines().items()
        if not place.startswith("examples/")
        and line.split()[0] in NEEDS_NOTHING
        and line not in OF_A_CLUSTER
    }


def prepare(folder: Path) -> None:
    """Write the files that the pages name; a script without torch stands for the reader's own."""
    write_job(folder, "[python3, train.py]", STEPS, replicas=2)
    text = (folder / "job.yaml").read_text()
    for file, name in (("mine", "mine"), ("job", "digits"), ("spot", "spot")):
        (folder / f"{file}.yaml").write_text(text.replace("name: probe", f"name: {name}"))
    shutil.copy(PYTORCHJOB, folder / "pytorchjob.yaml")


def test_the_commands_of_the_pages_work_as_they_stand(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    record_property: Callable[[str, object], None],
) -> None:
    record_property("commands executed, of all on pages", f"{len(lines())} of {len(shell_lines())}")
    prepare(tmp_path)
    for place, line in lines().items():
        name, *arguments = shlex.split(line)
        if name == "run":
            code, command = run_to_end(tmp_path, name, *arguments)
            output = command.output
        else:
            monkeypatch.chdir(tmp_path)
            monkeypatch.setattr(sys, "argv", ["ddpjob", name, *arguments])
            with pytest.raises(SystemExit) as end:
                main.main()
            code = int(end.value.code or 0)
            stdout, stderr = capsys.readouterr()
            output = stdout + stderr
        assert code == 0, f"{place}\n{output}"
        if name == "convert":  # the page sends it there
            (tmp_path / "ddpjob.yaml").write_text(stdout)
    assert len(lines()) >= EXECUTED
