"""The commands of README and documentation for a cluster, as they stand, on a real API server.

There is no operator here: each job that a page applies gets the status of one that has completed.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import yaml

from cluster.jobs import Jobs
from cluster.test_commands import COMPLETE, PATIENCE_SECONDS, Shell, named
from support.pages import ROOT, blocks, shell_lines

OF_A_CLUSTER = {"apply", "wait"}
ONE_MORE = {"report digits -o digits.html"}
EXECUTED = 9  # raise it with a new command on a page
PYTORCHJOB = ROOT / "tests" / "operator" / "convert" / "files" / "fixed.yaml"


def lines() -> dict[str, str]:
    return {
        place: line
        for place, line in shell_lines().items()
        if line.split()[0] in OF_A_CLUSTER or line in ONE_MORE
    }


def prepare(ddpjob: Shell) -> None:
    """Write the files that the pages name."""
    for file, name in (("mine", "mine"), ("job", "digits")):
        ddpjob.write(f"{file}.yaml", named(name))
    on_page = [block.text for block in blocks() if block.page == "docs/development-cluster.md"]
    [first] = [text for text in on_page if "metadata: {name: first}" in text]
    (ddpjob.folder / "first.yaml").write_text(first)
    (ddpjob.folder / "examples").symlink_to(ROOT / "examples")
    shutil.copy(PYTORCHJOB, ddpjob.folder / "pytorchjob.yaml")
    with ddpjob.start("convert", "pytorchjob.yaml") as process:
        converted, _ = process.communicate("", PATIENCE_SECONDS)
    (ddpjob.folder / "ddpjob.yaml").write_text(converted)


def names_in(ddpjob: Shell, file: str) -> list[str]:
    return [
        job["metadata"]["name"] for job in yaml.safe_load_all((ddpjob.folder / file).read_text())
    ]


def test_the_commands_of_the_pages_work_as_they_stand(
    jobs: Jobs, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    ddpjob = Shell(jobs.server, jobs.namespace, tmp_path)
    record_property("commands executed, of all on pages", f"{len(lines())} of {len(shell_lines())}")
    prepare(ddpjob)
    for place, line in lines().items():
        command, *arguments = shlex.split(line)
        if command == "apply":  # several pages call their job digits
            for name in names_in(ddpjob, arguments[-1]):
                jobs.server.answer("DELETE", f"{jobs.path}/{name}")
        printed = ddpjob(command, *arguments)
        assert printed, place
        if command == "apply":
            for name in names_in(ddpjob, arguments[-1]):
                jobs.write_status(COMPLETE, name)
    assert "digits" in (ddpjob.folder / "digits.html").read_text()
    assert len(lines()) >= EXECUTED
