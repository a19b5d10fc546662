"""Runs that a page must show well: none yet, many workers, long names, a long failure."""

from __future__ import annotations

from ddpjob_operator.report.run import Change, Hang, Note, Point, Run

BEGIN = 1_790_000_000.0
LONG_NAME = "a-job-with-a-name-as-long-as-names-of-objects-may-be-and-no-dot"
TRACEBACK = (
    "rank 17 of large-language-model-pretraining-worker-004-12 failed: RuntimeError: the loss is not"
    " a number: nan; in /workspace/experiments/large_language_model/pretraining/train_distributed.py"
    ":1284 in training_step_with_accumulation; all 5 restarts of failurePolicy.maxRestarts.application"
    " are used up. Fix the script, and apply the job again"
)


def empty() -> Run:
    return Run("digits", "DDPJob default/digits", "Pending", "waits for 4 workers", BEGIN,
               BEGIN + 12, ended=False)  # fmt: skip


def _change(number: int, since: float, until: float, size: int, cause: str, steps: int) -> Change:
    stall = 4.0 if number == 1 else 1.2
    return Change(
        f"1.1.{number}", cause, f"now {size} workers; lost {LONG_NAME}-worker-{number:03d}-1"
        if cause == "lost" else f"{size} workers", since, until, size, size,
        first_step=steps + 1, first_step_at=since + stall, last_step=steps + 90,
        last_step_at=until - 0.5, resumed_step=steps or None, repeated_steps=3 if number > 1 else 0,
        stall_seconds=stall,
    )  # fmt: skip


def large() -> Run:
    """100 workers, 120 memberships, several metrics with long names."""
    causes = ("lost", "joined", "left", "failed", "joined")
    changes = tuple(
        _change(n, BEGIN + 30 * n, BEGIN + 30 * (n + 1), 100 - n % 7,
                "started" if n == 1 else causes[n % 5], 90 * n)
        for n in range(1, 121)
    )  # fmt: skip
    names = ("loss", "validation/top_5_accuracy_on_held_out_samples", "tokens_per_second")
    points = tuple(
        Point(BEGIN + 34 + 6 * n, 15 * n, 2.5, dict(zip(names, (9 / (n + 2), n / 600, 1e6 + n),
                                                        strict=True)))
        for n in range(600)
    )  # fmt: skip
    notes = tuple(Note(BEGIN + 30 * n, "chaos", f"kill on node-{n}") for n in range(2, 100, 9))
    hangs = (Hang(BEGIN + 500, BEGIN + 560, 1350, "ranks 3, 17 and 80 are behind, in all_reduce"),)
    return Run(LONG_NAME, f"Local run of default/{LONG_NAME}", "Running",
               "97 workers train; 3 more are expected", BEGIN, BEGIN + 3630, ended=False,
               changes=changes, points=points, notes=notes, hangs=hangs, step=8985,
               total_steps=1_000_000, rate=2.5, metrics=points[-1].metrics)  # fmt: skip


def failed() -> Run:
    changes = tuple(
        _change(n, BEGIN + 40 * n, BEGIN + 40 * (n + 1), 32, "started" if n == 1 else "failed", 90)
        for n in range(1, 6)
    )
    notes = tuple(Note(change.since, "failed", TRACEBACK) for change in changes[1:])
    return Run("large-language-model-pretraining", "DDPJob research-team-2/llm", "Failed", TRACEBACK,
               BEGIN, BEGIN + 240, ended=True, changes=changes, notes=notes, step=180,
               total_steps=5000)  # fmt: skip
