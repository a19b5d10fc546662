"""A release: the versions that its files name, and the workflows that build it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tools.release import differing, versions

ROOT = Path(__file__).resolve().parents[1]
PUBLISH = ROOT / "tools" / "publish.sh"
CALL = re.compile(
    r"make (?P<target>[a-z-]+)( STEP=(?P<step>[a-z]+)| TAG=\"\S+\")?"
    r"|sudo --preserve-env=CI (?P<script>\.ci/\w+)"
)
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


def test_all_files_name_one_version() -> None:
    named = versions(ROOT)
    newest = named.pop("CHANGELOG.md: first version")
    assert len(named) == 6
    assert len(set(named.values())) == 1
    assert newest in {"none", *named.values()}


@pytest.mark.parametrize(
    ("tag", "wrong"),
    [
        ("v1.2.0", ["Chart.yaml is 1.1.0, not 1.2.0"]),
        ("v1.1.0", ["pyproject.toml is 1.2.0, not 1.1.0"]),
    ],
)
def test_a_tag_is_refused_with_each_place_of_another_version(tag: str, wrong: list[str]) -> None:
    assert differing(tag, {"pyproject.toml": "1.2.0", "Chart.yaml": "1.1.0"}) == wrong


def test_nothing_is_published_under_another_version() -> None:
    done = subprocess.run(
        [PUBLISH, "wheel"], env={**os.environ, "TAG": "v9.9.9"}, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"TAG is v9.9.9, and pyproject.toml has the version " in done.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_and_files_of_this_repository(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    steps = set(re.findall(r"^([a-z]+)\(\) \{", PUBLISH.read_text(), re.MULTILINE))
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        called = CALL.fullmatch(command)
        assert called, f"neither a target of the Makefile nor a script: {command}"
        assert not called["target"] or called["target"] in targets
        assert not called["step"] or called["step"] in steps
        assert not called["script"] or (ROOT / called["script"]).is_file()
    for job in jobs.values():
        assert set(job.get("needs", "").split()) <= set(jobs)
