"""The hints about saved state, from the files of a run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ddpjob_operator.api import jobfile
from ddpjob_operator.local.saved.advice import RunAdvice
from ddpjob_operator.local.saved.own_files import OwnFiles
from ddpjob_operator.local.state_dir import JobStateDir
from ddpjob_protocol.codec import encode
from ddpjob_protocol.messages.control import MembershipRecord, Report, ServiceState
from ddpjob_protocol.messages.membership import Cause
from support.driving import job_text

AGAIN = "ddpjob run --local job.yaml"
OWN = {"snapshot": "{files: [snapshot.pt]}"}


class Run:
    """A run of a job whose processes the test plays."""

    def __init__(self, folder: Path, spec: dict[str, str]) -> None:
        self.folder = folder
        self.state = JobStateDir(folder / ".ddpjob", "default", "probe")
        self.state.lock()
        self.state.begin(fresh=False)
        self.advice = RunAdvice(
            jobfile.parse(job_text("[torchrun, train.py]", **spec)), self.state, folder
        )

    def report(self, resumed: int | None = None, first: int | None = None) -> None:
        """Report one membership, with the step that it resumed from and its first step."""
        record = MembershipRecord("1.1.1", Cause.STARTED, "", (), 1, 0.0)
        record = dataclasses.replace(record, resumed_step=resumed, first_step=first)
        report = Report(1, 1, 1, ServiceState.COMPLETE, "", (), memberships=(record,))
        self.state.write("report.json", encode(report))

    def complete(self, seconds: float) -> None:
        """End as a run that took this time."""
        self.state.write("status.json", {"state": "Complete"})
        (self.state.path / "timeline.jsonl").write_text(json.dumps({"at": seconds}) + "\n")
        self.state.unlock()


@pytest.mark.parametrize(
    ("spec", "saved", "hint"),
    [
        pytest.param(
            {},
            "",
            "no snapshot was saved: it starts from the beginning, unless the script resumes from a "
            "file of its own",
            id="nothing",
        ),
        pytest.param(
            OWN, "", "no snapshot was saved: it starts from the beginning", id="no_own_file"
        ),
        pytest.param(OWN, "snapshot.pt", "to resume from snapshot.pt", id="own_file"),
        pytest.param(
            OWN,
            ".ddpjob/default/probe/snapshots/.files/1/0",
            "to resume from the last snapshot",
            id="replica",
        ),
        pytest.param(
            {},
            ".ddpjob/default/probe/snapshots/step-000000000120/000000000001-1f2e3d4c/manifest-00.json",
            "to resume from the snapshot of step 120",
            id="snapshot",
        ),
        pytest.param(
            {"snapshot": "{uri: s3://bucket/job}"},
            "",
            "to resume from the newest snapshot in s3://bucket/job, if any",
            id="bucket",
        ),
    ],
)
def test_a_stopped_job_says_from_what_it_resumes(
    tmp_path: Path, spec: dict[str, str], saved: str, hint: str
) -> None:
    run = Run(tmp_path, spec)
    if saved:
        (tmp_path / saved).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / saved).touch()
    assert run.advice.after_interruption(AGAIN) == f"stopped; {hint}: {AGAIN}"
    run.state.unlock()


def test_a_run_that_resumed_from_its_end_has_trained_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, {})
    run.report(resumed=500)
    assert run.advice.after_completion().startswith(
        "no step was trained: the snapshot of step 500 already held the end of the training"
    )
    run.report(resumed=500, first=501)
    assert run.advice.after_completion() == ""
    run.state.unlock()


def test_a_run_that_leaves_its_own_file_unchanged_has_probably_trained_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "snapshot.pt").write_text("the end")
    run = Run(tmp_path, OWN)
    run.report()
    assert run.advice.after_completion() == (
        "probably no step was trained: snapshot.pt existed before the run and did not change; to "
        "train again, run with --fresh"
    )
    (tmp_path / "snapshot.pt").write_text("the end, again")
    assert run.advice.after_completion() == ""
    run.state.unlock()


def test_every_run_much_shorter_than_a_completed_one_is_explained(tmp_path: Path) -> None:
    Run(tmp_path, {}).complete(seconds=4000.0)
    for _ in range(3):
        run = Run(tmp_path, {})
        run.report()
        told = run.advice.after_completion()
        assert "an earlier completed run 4000 s: if the script found" in told
        run.complete(seconds=1e-9)


def test_a_run_about_as_long_as_an_earlier_one_is_the_new_measure(tmp_path: Path) -> None:
    Run(tmp_path, {}).complete(seconds=4000.0)
    for seconds in (3000.0, 1e-9):
        Run(tmp_path, {}).complete(seconds=seconds)
    run = Run(tmp_path, {})
    run.report()
    assert "an earlier completed run 3000 s: if" in run.advice.after_completion()
    run.state.unlock()


def test_own_files_are_moved_and_never_deleted(tmp_path: Path) -> None:
    work, aside = tmp_path / "work", tmp_path / "aside"
    for name in ("a.pt", "ckpt/1.pt", "ckpt/2.txt", "out/deep/.hidden", "out/log"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(name)
    (tmp_path / "other.pt").write_text("other.pt")
    entries = ["a.pt", "ckpt/*.pt", "out", "out/*", str(tmp_path / "other.pt"), "missing"]
    files = OwnFiles(entries, work)
    assert files.found() == ["../other.pt", "a.pt", "ckpt/1.pt", "out", "out/deep", "out/log"]
    assert files.move_aside(aside) == aside / "1"
    moved = {
        str(p.relative_to(aside / "1")): p.read_text() for p in aside.rglob("*") if p.is_file()
    }
    assert moved == {
        name: name for name in ("a.pt", "ckpt/1.pt", "out/deep/.hidden", "out/log", "other.pt")
    }
    assert [str(p.relative_to(work)) for p in work.rglob("*") if p.is_file()] == ["ckpt/2.txt"]
    assert files.move_aside(aside) is None
    (work / "a.pt").touch()
    assert files.move_aside(aside) == aside / "2", "the first ones stay"


def test_only_a_run_that_resumes_is_the_same_job(tmp_path: Path) -> None:
    """Trackers continue one run for each UID."""
    run = Run(tmp_path, {})
    first = run.state.uid()
    begun = run.state.snapshots / "step-000000000001" / "000000000001-1f2e3d4c"
    begun.mkdir(parents=True)
    assert not run.state.has_snapshots()
    (begun / "manifest-00.json").touch()
    run.state.begin(fresh=False)
    assert run.state.uid() == first
    run.state.begin(fresh=True)
    second = run.state.uid()
    assert second != first
    run.complete(1.0)
    run.state.begin(fresh=False)
    assert run.state.uid() not in (first, second)
