"""Processes that hang, as users are told of it: Stalled, NoProgress, for as long as they do."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from ddpjob_operator.api.constants import Reason
from ddpjob_operator.planner.observed import Observed, Rejection
from ddpjob_operator.planner.planner import plan
from ddpjob_operator.planner.status.stall_message import (
    END_REMEDY,
    REMEDY,
    RESTARTS,
    describe_stall,
)
from ddpjob_protocol.messages.control import RankGroup, Stall
from support.builders import NOW, make_job, make_report, make_worker
from support.planning import (
    DOES_NOT_HOLD,
    FAILED,
    UP,
    W0,
    W1,
    W2,
    decide,
    events_of,
    membership_of,
    told,
)

BEHIND = RankGroup((2,), (W2.name,), 411, "train.py:31 in batch_of", behind=True)
WAITING = RankGroup((0, 1), (W0.name, W1.name), 412, "train.py:40 in main")
STALL = Stall(NOW.timestamp(), 412, 0.2134, (BEHIND, WAITING))
HUNG = make_report(W0, W1, W2, stall=STALL, step=412, total_steps=900)
SINCE = "no step since 2026-01-02 03:04:05 UTC, when step 412 was done; one usually takes 0.21 s"
WORDS = (
    f"{SINCE}; rank 2 (digits-worker-002-1): behind, after step 411, at train.py:31 in batch_of;"
    f" {REMEDY}"
)
RESUMED = ("ProgressResumed", "step 413 is done; the job was stalled for 95 s", False)
JOB = make_job(3)
ALL = (W0, W1, W2)


def test_a_job_that_hangs_is_stalled() -> None:
    planned = decide(JOB, ALL, report=HUNG)
    assert told(planned.status, "Stalled") == ("True", "NoProgress", WORDS)
    assert told(planned.status, "Running")[:2] == ("True", "Training")
    assert planned.status.state == "Stalled"


def test_the_message_of_a_job_that_restarts_by_itself_has_no_remedy() -> None:
    job = make_job(3, failurePolicy={"onHang": "Restart"})
    text = told(decide(job, ALL, report=HUNG).status, "Stalled")[2]
    assert text == WORDS.replace(REMEDY, RESTARTS)


def test_nobody_is_ended_for_it() -> None:
    healthy = dataclasses.replace(HUNG, stall=None)
    assert decide(JOB, ALL, report=HUNG).actions == decide(JOB, ALL, report=healthy).actions


def test_it_is_told_once_and_its_words_stay_until_a_step_is_done() -> None:
    status = decide(JOB, ALL, report=dataclasses.replace(HUNG, stall=None)).status
    seen, writes = [], 0
    for minutes, stall in enumerate((STALL, STALL, STALL, None, None)):
        report = dataclasses.replace(HUNG, stall=stall)
        job = JOB.model_copy(update={"status": status})
        planned = plan(Observed(job, ALL, UP, report), NOW + timedelta(minutes=minutes))
        seen.append([each for each in events_of(planned) if each[0] == "NoProgress"])
        writes += planned.status != status
        status = planned.status
    assert seen == [[("NoProgress", WORDS, True)], [], [], [], []]
    assert writes == 2
    assert told(status, "Stalled") == DOES_NOT_HOLD


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"step": 413}, [RESUMED], id="a_later_step"),
        pytest.param({}, [], id="no_step"),  # the processes end, or the service is new
        pytest.param({"step": 300}, [], id="steps_repeated"),  # after a restart
        pytest.param({"step": 413, "stall": STALL}, [], id="still_hanging"),
    ],
)
def test_progress_after_a_hang_has_one_event(
    change: dict[str, Any], expected: list[tuple[str, str, bool]]
) -> None:
    hung = decide(JOB, ALL, report=HUNG).status
    report = dataclasses.replace(HUNG, **{"stall": None, **change})
    seen = []
    for seconds in (95, 100):
        job = JOB.model_copy(update={"status": hung})
        planned = plan(Observed(job, ALL, UP, report), NOW + timedelta(seconds=seconds))
        seen += events_of(planned)
        hung = planned.status
    assert seen == expected


def test_a_service_that_is_gone_says_nothing_of_hanging() -> None:
    planned = decide(JOB, ALL, rendezvous=None, membership=membership_of(*ALL))
    assert told(planned.status, "Stalled") == DOES_NOT_HOLD


def test_that_it_hangs_is_graver_than_that_a_worker_is_missing() -> None:
    failing = make_worker(2, 3, phase=FAILED, reason="OOMKilled", message="exit code 137")
    report = make_report(W0, W1, stall=STALL)
    assert told(decide(JOB, (W0, W1, failing), report=report).status, "Stalled")[1] == "NoProgress"


def test_that_the_service_cannot_come_back_is_graver() -> None:
    """What it said before is old."""
    refusal = Rejection("digits-rendezvous-1", Reason.POD_REFUSED, "no")
    planned = decide(JOB, ALL, report=HUNG, rejections=(refusal,))
    assert told(planned.status, "Stalled")[1] == "PodRefused"


def test_news_are_told_at_once_that_a_job_hangs_and_that_it_goes_on() -> None:
    further = dataclasses.replace(HUNG, step=413)
    assert HUNG.without_progress() == further.without_progress()
    assert HUNG.without_progress() != dataclasses.replace(HUNG, stall=None).without_progress()


SILENT = RankGroup((1,), (W1.name,), 412, "train.py:9", silent=True, behind=True)


@pytest.mark.parametrize(
    ("standings", "words"),
    [
        pytest.param((), "the processes do not report their step", id="nothing_known"),
        pytest.param(
            (SILENT, WAITING),
            f"rank 1 ({W1.name}): no sign of life: stopped, or stuck outside of Python,"
            " after step 412, at train.py:9",
            id="no_sign_of_life",
        ),
        pytest.param(
            (WAITING, dataclasses.replace(BEHIND, step=412, behind=False)),
            "no rank is behind, all wait for each other:"
            f" ranks 0, 1 ({W0.name}, {W1.name}), at train.py:40 in main;"
            f" rank 2 ({W2.name}), at train.py:31 in batch_of",
            id="all_wait",
        ),
        pytest.param(
            (WAITING, RankGroup((2,), (), None)),
            "no rank is seen to be behind:"
            f" ranks 0, 1 ({W0.name}, {W1.name}), at train.py:40 in main; rank 2: not known",
            id="some_never_heard_of",
        ),
        pytest.param(
            (RankGroup((3, 4, 5, 6, 7), ("v", "w", "x", "y"), 9, behind=True), WAITING),
            "ranks 3, 4, 5 and 2 more (v, w, x and 1 more): behind, after step 9",
            id="many",
        ),
        pytest.param(
            tuple(RankGroup((rank,), ("v",), rank, behind=True) for rank in range(6)),
            "; ".join(f"rank {rank} (v): behind, after step {rank}" for rank in range(4))
            + "; and 2 more such groups",
            id="each_somewhere_else",
        ),
    ],
)
def test_who_is_waited_for(standings: tuple[RankGroup, ...], words: str) -> None:
    text = describe_stall(dataclasses.replace(STALL, groups=standings))
    assert text == f"{SINCE}; {words}; {REMEDY}"


@pytest.mark.parametrize(
    ("usual", "words"),
    [(None, ""), (0.0123, "; one usually takes 0.012 s"), (151.3, "; one usually takes 151 s")],
)
def test_how_long_a_step_takes(usual: float | None, words: str) -> None:
    text = describe_stall(Stall(NOW.timestamp(), 7, usual, (BEHIND,)))
    assert f"when step 7 was done{words}; rank 2" in text


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        pytest.param((W2.name,), f"{W2.name} ended with exit code 0", id="one_has_ended"),
        pytest.param((), "all are done", id="all_steps_are_done"),
    ],
)
def test_commands_that_do_not_end_are_named(ended: tuple[str, ...], words: str) -> None:
    left = (W0.name, W1.name)
    stall = dataclasses.replace(STALL, groups=(WAITING,), ended=ended, left=left)
    text = describe_stall(stall, restarts=True)
    head = "no step since 2026-01-02 03:04:05 UTC, when step 412 was done"
    waiting = f"no rank is behind, all wait for each other: ranks 0, 1 ({W0.name}, {W1.name})"
    assert text == (
        f"{head}; {words}, but {W0.name}, {W1.name} did not end;"
        f" {waiting}, at train.py:40 in main; {END_REMEDY}"
    )
