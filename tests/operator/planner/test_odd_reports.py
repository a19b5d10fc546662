"""Whatever a rendezvous service answers, a pass of the operator goes on."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddpjob_operator.planner.actions import CreateWorker
from ddpjob_operator.planner.planner import Plan
from ddpjob_operator.rendezvous.client import ServiceClient, ServiceUnavailableError
from ddpjob_operator.rendezvous.session import Polling, RendezvousSession
from ddpjob_operator.request import Request
from ddpjob_protocol.codec import DecodeError, encode
from ddpjob_protocol.keys.signed_http import PROOF_HEADER, RequestVerifier
from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.messages.control import (
    FileSyncReport,
    ProcessFailure,
    RankGroup,
    Report,
    Stall,
    WorkerRanks,
)
from ddpjob_protocol.messages.warnings import JobWarning
from ddpjob_protocol.parsers.service_report import parse_report
from support import fake_time
from support.builders import NOW, make_job, make_report
from support.keys import KEY
from support.planning import W0, W1, create, decide, events_of, told

SINCE = NOW.timestamp()
FULL = make_report(
    W0, W1, step=7, step_at=SINCE, steps_per_second=2.5, total_steps=90, metrics={"loss": 0.5},
    snapshot_step=5, failure=Failure(SINCE, "boom", rank=0, exit_code=1, worker=W0.name),
    process_failures=(ProcessFailure(W0.name, int(SINCE)),),
    stall=Stall(SINCE, 7, 0.4, (RankGroup((0, 1), (W0.name,), 7, "a.py:7"),)),
    warnings=(JobWarning("Unreachable", "cannot reach it", W0.name, SINCE),),
    files=FileSyncReport(SINCE, 5), ranks=(WorkerRanks(W0.name, 0, 1), WorkerRanks(W1.name, 1, 1)),
)  # fmt: skip
BIG = 2**63
ODD: tuple[tuple[str, Any], ...] = (
    ("metrics", {"loss": "low"}),
    ("metrics", {"loss": float("nan")}),
    ("metrics", {str(n): 1.0 for n in range(150)}),
    ("step", "7"),
    ("step", BIG),
    ("step", -1),
    ("step", True),
    ("total_steps", "many"),
    ("step_at", 1e300),
    ("steps_per_second", float("inf")),
    ("term", None),
    ("state", "Confused"),
    ("failures", BIG),
    ("membership.id", "soon"),
    ("membership.members.0.processes", 10**12),
    ("memberships.0.id", "1.1"),
    ("memberships.0.cause", "9.9.9"),
    ("memberships.0.since", float("nan")),
    ("memberships.0.since", -1e18),
    ("memberships", "none"),
    ("failure.at", float("inf")),
    ("failure.worker", "w" * 10_000),
    ("process_failures.0.at", float("nan")),
    ("process_failures.0.at", -1),
    ("process_failures.0.worker", 7),
    ("process_failures", [{}] * 5000),
    ("stall.since", 1e300),
    ("stall.groups.0.step", "x"),
    ("warnings.0.reason", "two words"),
    ("warnings.0.since", None),
    ("warnings.0.message", "\ud800"),
    ("files.synced_at", 1e300),
    ("ranks.0.first", -1),
    ("workers", [None]),
)


def view(path: str, value: object) -> Any:
    """Return the full report in JSON, with this value at a path."""
    data = copy.deepcopy(encode(FULL))
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    target = data
    for part in parents:
        target = target[part]
    target[last] = value
    return data


class Answers:
    """A session with a service that gives these answers, then none."""

    def __init__(self, *answers: Any) -> None:
        self._answers = iter(answers)
        self.calls = 0
        self._verifier = RequestVerifier(KEY.operator, lambda: "challenge")
        polling = Polling(wait_seconds=1.0, longest_retry_seconds=1.0, only_news=False)
        self.session = RendezvousSession(
            ServiceClient(self._send, KEY.operator), polling, self._called
        )
        fake_time.run(self._play())

    async def _play(self) -> None:
        self.session.start()
        await asyncio.sleep(60)
        assert not self.session.failed
        await self.session.close()

    async def _send(self, request: Request) -> Any:
        head = request.headers[PROOF_HEADER]
        proof = self._verifier.verify(request.method, request.path, request.query.items(), head)
        if not proof.is_fresh:
            return self._verifier.challenge(proof)
        try:
            return self._verifier.seal(next(self._answers), proof)
        except StopIteration:
            raise ServiceUnavailableError from None

    def _called(self) -> None:
        self.calls += 1


def plan_after(*answers: Any) -> Plan:
    """Return the plan for a job with one of its two workers, after these answers."""
    session = Answers(*answers).session
    return decide(make_job(2), (W0,), report=session.report, invalid_report=session.invalid_report)


def test_the_report_is_accepted_without_the_change() -> None:
    assert parse_report(encode(FULL)) == FULL
    assert plan_after(encode(FULL)).status.progress is not None


@pytest.mark.parametrize(("path", "value"), ODD, ids=lambda each: str(each)[:30])
def test_the_pass_goes_on_with_a_warning(path: str, value: object) -> None:
    planned = plan_after(view(path, value))
    assert planned.actions == (create(1),)
    assert planned.expectation is not None
    (warning,) = planned.status.warnings
    assert (warning.reason, warning.worker) == ("InvalidReport", "")
    assert "the report of the rendezvous service is refused: " in warning.message
    assert ("InvalidReport", warning.message, True) in events_of(planned)
    assert warning.message not in told(planned.status, "Running")[2], "no report is known"


@pytest.mark.parametrize("answer", [None, [], "x", 5, json.loads("[" * 300 + "]" * 300)], ids=type)
def test_an_answer_of_another_kind_is_one_invalid_report(answer: object) -> None:
    assert [each.reason for each in plan_after(answer).status.warnings] == ["InvalidReport"]


def test_the_last_good_report_counts_until_the_next() -> None:
    odd = [view("step", f"x{n}") for n in range(3)]
    planned = plan_after(encode(FULL), *odd)
    assert planned.status.progress is not None
    assert "InvalidReport" in [each.reason for each in planned.status.warnings]
    later = plan_after(encode(FULL), *odd, encode(FULL))
    assert "InvalidReport" not in [each.reason for each in later.status.warnings]
    assert Answers(encode(FULL), *odd, encode(FULL)).calls == 5, (
        "each value is not news; the first failure at the end is, and the silence"
    )


def test_fields_of_a_newer_service_are_ignored() -> None:
    assert parse_report({**encode(FULL), "mood": float("nan")}) == FULL


def places(data: Any, path: str = "") -> list[str]:
    """Return the paths of all values in the report."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    found = []
    for name, value in items:
        found.append(f"{path}{name}")
        if isinstance(value, (dict, list)):
            found += places(value, f"{path}{name}.")
    return found


numbers = st.sampled_from([0, 1, -1, BIG - 1, BIG, -BIG, 10**30, 1e300, -1e300, 1e11])
values: st.SearchStrategy[object] = (
    st.none() | st.booleans() | numbers | st.floats() | st.integers() | st.text(max_size=5)
    | st.lists(st.text(max_size=3), max_size=2) | st.just({}) | st.just("9.9.9")
)  # fmt: skip


@given(st.sampled_from(places(encode(FULL))), values)
@example("memberships.0.cause", "")
def test_each_accepted_report_has_a_status(path: str, value: object) -> None:
    try:
        report: Report = parse_report(view(path, value))
    except DecodeError:
        return
    planned = decide(make_job(2), (W0,), report=report)
    json.dumps(planned.status.to_json(), allow_nan=False).encode()
    assert all(isinstance(each, CreateWorker) for each in planned.actions)
