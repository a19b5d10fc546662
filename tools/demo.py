"""The README's first command: an elastic run of the digits example, checked against a quiet one.

Runs `ddpjob run --local` twice, undisturbed and with a node killed at 25 % and a new one at 50 %
of the steps, shows the second one, and fails unless it did what ddpjob promises. `--steps N` trains
for N steps instead of those of the example.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from ddpjob_operator.local.simulated.processes import marked
from ddpjob_protocol.codec import decode
from ddpjob_protocol.messages.control import Report

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "examples" / "digits" / "ddpjob.yaml"
CHAOS = "kill=25%,join=50%"
MIN_SHARE = 0.2  # of the steps at each world size
MIN_ACCURACY = 0.95
MAX_DIFFERENCE = 0.01  # between the accuracies of the two runs


def run(job: Path, folder: Path, *options: str, quiet: bool) -> tuple[int, Report, str, str]:
    """One run of the job: exit code, last report, state and the mark of its processes."""
    command = [
        str(Path(sys.executable).with_name("ddpjob")),
        "run", "--local", str(job), "--workdir", str(JOB.parent),
        "--state-dir", str(folder), *options,
    ]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=quiet, text=True)
    if quiet and done.returncode:
        print(done.stdout, done.stderr)
    state = folder / "default" / "digits"
    report = decode(Report, json.loads((state / "report.json").read_text()))
    status = json.loads((state / "status.json").read_text())
    return done.returncode, report, status["state"], (state / "uid").read_text()


def problems(code: int, report: Report, state: str, uid: str, undisturbed: float) -> list[str]:
    """Return the failed expectations of the disturbed run."""
    found = []
    if code or state != "Complete":
        found.append(f"it ended as {state} with exit code {code}, not Complete")
    causes = [each.cause for each in report.memberships]
    found += [
        f"no membership with the cause '{cause}'"
        for cause in ("started", "lost", "joined")
        if cause not in causes
    ]
    total = report.total_steps or 0
    steps = Counter[int]()
    for each in report.memberships:
        if each.first_step is not None and each.last_step is not None:
            steps[each.world_size] += each.last_step - each.first_step + 1
    found += [
        f"{count} of {total} steps at world size {size}, fewer than {MIN_SHARE:.0%}"
        for size, count in steps.items()
        if count < MIN_SHARE * total
    ]
    if len(steps) < 2:
        found.append(f"steps at world size {list(steps)} only")
    found += [
        f"membership {each.id} resumed from step {each.resumed_step}, its last snapshot was of"
        f" step {each.snapshot_step}"
        for each in report.memberships[1:]
        if each.resumed_step is None or each.resumed_step < (each.snapshot_step or 0)
    ]
    accuracy = report.metrics.get("accuracy", 0.0)
    if accuracy < MIN_ACCURACY:
        found.append(f"accuracy {accuracy:.4f}, below {MIN_ACCURACY}")
    if abs(accuracy - undisturbed) > MAX_DIFFERENCE:
        found.append(f"accuracy {accuracy:.4f}, undisturbed {undisturbed:.4f}")
    if left := marked(uid):
        found.append(f"processes left running: {left}")
    return found


def job_of(steps: int | None, folder: Path) -> Path:
    """Return the job file of the example, or a copy that trains for so many steps."""
    if steps is None:
        return JOB
    job = folder / JOB.name
    job.write_text(JOB.read_text().replace("train.py]", f"train.py, --steps={steps}]"))
    return job


def main() -> int:
    """Run both; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="ddpjob-demo-"))
    try:
        job = job_of(args.steps, folder)
        print("1/2  digits, undisturbed ...")
        sys.stdout.flush()
        code, quiet, state, _ = run(job, folder / "undisturbed", quiet=True)
        accuracy = quiet.metrics.get("accuracy", 0.0)
        if code or state != "Complete":
            print(f"demo: the undisturbed run ended as {state} with exit code {code}")
            return 1
        print(f"     {state}, accuracy {accuracy:.4f} on held-out digits\n")
        print(f"2/2  digits, with --chaos {CHAOS}: a node is killed, later a new one comes")
        sys.stdout.flush()
        found = problems(*run(job, folder / "elastic", "--chaos", CHAOS, quiet=False), accuracy)
        for problem in found:
            print(f"demo: {problem}")
        verdict = "failed" if found else "passed"
        print(f"\ndemo {verdict} in {time.monotonic() - began:.0f} s")
        return 1 if found else 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
