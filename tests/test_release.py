"""A release: the versions that its files name, and the workflows that build it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from tools.release import differing, versions

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


def test_all_files_name_one_version() -> None:
    named = versions(ROOT)
    newest = named.pop("CHANGELOG.md: first version")
    assert len(named) == 5
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


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_and_files_of_this_repository(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = {name for text in commands for name in re.findall(r"\bmake ([a-z-]+)", text)}
    assert called <= targets
    scripts = {name for text in commands for name in re.findall(r"(?<!\S)(\.ci/\w+)", text)}
    assert all((ROOT / name).is_file() for name in scripts)
    assert called | scripts
    for job in jobs.values():
        assert set(job.get("needs", "").split()) <= set(jobs)
