"""All that travels arrives as it was sent, and what does not fit is refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from ddpjob_agent.c10d.protocol import Op, Request
from ddpjob_agent.c10d.writes import Kind, Write
from ddpjob_agent.file_sync.decisions.replica import FileInstruction, FileInventory, Replica
from ddpjob_protocol.codec import DecodeError, decode, encode
from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.messages.control import (
    Expectation,
    FileSyncReport,
    MembershipRecord,
    Policy,
    RankGroup,
    Report,
    ServiceState,
    Stall,
)
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId
from ddpjob_protocol.messages.process import Assignment
from ddpjob_protocol.messages.warnings import JobWarning, unreachable

MEMBERSHIP = Membership(
    MembershipId(1, 2, 3), (Member("a", "x", "10.0.0.1", 2),), Cause.LOST, "lost b", after=7
)
REPORT = Report(
    version=3,
    term=1,
    boot=1,
    state=ServiceState.RUNNING,
    reason="2 workers train",
    workers=("a", "b"),
    membership=MEMBERSHIP,
    metrics={"loss": 0.5, "step": 3},
    failure=Failure(1.5, "ValueError: x", rank=0),
    memberships=(MembershipRecord("1.1.1", "started", "", ("a", "b"), 2, 0.0, repeated_steps=7),),
    stall=Stall(1.0, 5, None, (RankGroup((0, 1), ("a",), None),)),
    warnings=(JobWarning("ProcessStuck", "a process hung", "a", 5.0, ongoing=False),),
    files=FileSyncReport(5.0, 7),
)
COPY = Replica("1.1.1", 2.0, "ab", 3)
MESSAGES = [
    MEMBERSHIP,
    REPORT,
    Report(0, 1, 1, ServiceState.WAITING, "", ()),
    Expectation(("a", "b"), ("b",), Policy(minimum=2, minimums=(("a-worker", 1),), settle=0.5)),
    Assignment(),
    Assignment(MEMBERSHIP, first_rank=2, last_step=7, stop_requested=True),
    FileInventory("1.1.1", (COPY,), installed="ab", port=7),
    unreachable("1.1.1", ["b"]),
    FileInstruction("1.1.1+", COPY, (("10.0.0.1", 7),), put=True),
    Request(Op.SET, (b"\x00\xff",), (b"",), -1),
    Write(Kind.PUSH, b"key", 3, b"\xff"),
]


def as_sent(message: Any) -> Any:
    return json.loads(json.dumps(encode(message)))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_what_is_sent_arrives(message: Any) -> None:
    assert decode(type(message), as_sent(message)) == message


def test_what_a_newer_peer_adds_is_ignored() -> None:
    data = as_sent(Expectation(("a",), policy=Policy(minimum=2)))
    data["zeal"] = data["policy"]["zeal"] = 1
    assert decode(Expectation, data) == Expectation(("a",), policy=Policy(minimum=2))


def test_what_an_older_peer_leaves_out_has_its_default() -> None:
    assert decode(Expectation, {"workers": ["a"], "policy": {"minimum": 2}}) == Expectation(
        ("a",), policy=Policy(minimum=2)
    )


@dataclasses.dataclass
class Misfit:
    change: dict[str, Any]
    text: str


MISFITS = {
    "missing": Misfit({"version": ...}, "Report.version is missing"),
    "type": Misfit({"term": "1"}, "Report.term is '1' instead of a value of type int"),
    "bool": Misfit({"term": True}, "Report.term is True instead of a value of type int"),
    "none": Misfit({"term": None}, "Report.term is None instead of a value of type int"),
    "text": Misfit({"workers": "ab"}, "Report.workers is 'ab' instead of a value of type list"),
    "item": Misfit({"workers": ["a", 1]}, r"Report.workers\[1\] is 1 instead of"),
    "member": Misfit({"metrics": {"loss": "x"}}, "Report.metrics.loss is 'x' instead of"),
    "enum": Misfit({"state": "Idle"}, "Report.state is 'Idle': 'Idle' is not a valid ServiceState"),
    "inner": Misfit({"failure": {"at": 1}}, "Report.failure.summary is missing"),
    "parsed": Misfit({"membership": {**as_sent(MEMBERSHIP), "id": "1.2"}}, "Report.membership.id"),
    "object": Misfit({"membership": [1]}, "Report.membership is .1. instead of"),
}


@pytest.mark.parametrize("misfit", MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_is_refused_where_it_stands(misfit: Misfit) -> None:
    changed = {**as_sent(REPORT), **misfit.change}
    data = {name: value for name, value in changed.items() if value is not ...}
    with pytest.raises(DecodeError, match=misfit.text):
        decode(Report, data)


def test_bytes_are_base64_and_tuples_have_their_length() -> None:
    with pytest.raises(DecodeError, match=r"Request\.keys\[0\] is 'not base64'"):
        decode(Request, {**as_sent(Request(Op.GET, (b"a",))), "keys": ["not base64"]})
    word = as_sent(FileInstruction("1.1.1", holders=(("a", 1),)))
    with pytest.raises(
        DecodeError, match=r"FileInstruction\.holders\[0\] has 1 items instead of 2"
    ):
        decode(FileInstruction, {**word, "holders": [["a"]]})
