"""Datagrams of the user's processes: forwarded as reports that the service accepts, or refused."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ddpjob_agent.worker.processes.progress_socket import ProgressSocket
from ddpjob_protocol.codec import encode
from ddpjob_protocol.messages.warnings import MAX_PROBLEM as MAX_WARNED
from ddpjob_protocol.messages.warnings import invalid_report
from ddpjob_protocol.parsers.progress import (
    MAX_METRICS,
    MAX_PROBLEM,
    MAX_WHERE,
    Position,
    ProgressReport,
)
from ddpjob_protocol.parsers.report_check import check_message, check_process_message
from support.fuzzing import DEEP, fuzz, measured, mutated, mutated_json, size_of

STEP: dict[str, Any] = {
    "event": "step", "step": 12, "total": 900, "metrics": {"loss": 0.3, "lr": 1}, "membership": "1.1.1",
}  # fmt: skip
SAVED: dict[str, Any] = {
    "event": "saved", "step": 12, "storage": 3, "storages": 4, "skipped": 2, "problem": "disk is full",
}  # fmt: skip
RESUMED: dict[str, Any] = {"event": "resumed", "step": 12, "loaded": True, "membership": "1.1.1"}
ALIVE: dict[str, Any] = {
    "event": "alive", "rank": 3, "step": 12, "where": "a.py:7", "membership": "1.1.1",
}  # fmt: skip
contents = mutated_json(st.sampled_from([STEP, SAVED, RESUMED, ALIVE]))
datagrams = st.lists(
    mutated(contents.map(lambda content: json.dumps(content).encode())), min_size=1, max_size=3
)


class Heard:
    """An agent that reads datagrams."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.refused: list[str] = []
        self.alive: list[Any] = []
        self.last: list[Any] = []

    async def read(self, path: str, data: list[bytes]) -> None:
        progress = ProgressSocket(self.sent.append, self.refused.append)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            progress.listen(path)
            try:
                for each in data:
                    sender.sendto(each[: 60 << 10], path)
                progress.end()
                self.alive, self.last = progress.alive(), progress.last_messages()
            finally:
                progress.close()


def hear(data: list[bytes]) -> Heard:
    def read() -> Heard:
        heard = Heard()
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(heard.read(str(Path(folder, "s")), data))
        return heard

    return measured(read, sum(map(len, data)))


def check_report(report: ProgressReport) -> None:
    assert len(report.metrics) <= MAX_METRICS
    assert len(report.problem) <= MAX_PROBLEM
    text = json.dumps(report.to_message(), allow_nan=False)
    assert ProgressReport.parse(json.loads(text)) == report


@fuzz(200)
@given(datagrams)
@example([json.dumps({**STEP, "metrics": {str(n): n for n in range(65)}}).encode()])
@example([b"[" * 60_000])
@example([json.dumps({**STEP, "total": "many"}).encode(), json.dumps(STEP).encode()])
@example([json.dumps({**STEP, "step": DEEP}).encode()])
@example([b'{"event": "step", "step": 1e999}', b'{"event": "saved", "step": 1, "metrics": null}'])
def test_datagrams_are_reports_that_the_service_accepts_or_one_refusal(data: list[bytes]) -> None:
    heard = hear(data)
    assert len(heard.refused) <= 1
    for problem in heard.refused:
        assert len(invalid_report(problem).message.encode()) <= 4 * MAX_WARNED + 300
    for each in [*heard.sent, *heard.last]:
        message = json.loads(json.dumps({"type": "report", "membership": "1.1.1", "report": each}))
        check_report(check_message(message)["report"])
    beat = json.loads(json.dumps({"type": "beat", "processes": heard.alive}))
    for position in check_message(beat)["processes"]:
        assert len(position.where) <= MAX_WHERE
        assert json.dumps(encode(position), allow_nan=False).isascii()


@fuzz(50)
@given(st.lists(st.sampled_from([STEP, SAVED, RESUMED, ALIVE]), min_size=1, max_size=3))
def test_datagrams_arrive_as_they_were_sent(values: list[Any]) -> None:
    heard = hear([json.dumps(each).encode() for each in values])
    assert heard.refused == []
    last = {each["event"]: ProgressReport.parse(each) for each in heard.last}
    sent = {each["event"]: ProgressReport.parse(each) for each in heard.sent}
    assert (
        last
        == sent
        == {each["event"]: ProgressReport.parse(each) for each in values if each is not ALIVE}
    )
    assert bool(heard.alive) == (ALIVE in values)
    for position in heard.alive:
        assert Position.parse(position).rank == ALIVE["rank"]


ANSWERS: tuple[dict[str, Any], ...] = (
    {"answer": "promise", "local_rank": 0, "step": 7},
    {"answer": "broken", "local_rank": 1, "membership": "1.1.1", "why": "reset by peer"},
    {"answer": "at", "local_rank": 1, "where": 5, "line": "a.py:7", "free": True},
    {"answer": "entered", "local_rank": 1, "membership": "1.1.1"},
    {"answer": "stops", "local_rank": 1, "membership": "1.1.1", "rank": 3},
    {"answer": "left", "local_rank": 1, "step": None},
)


@fuzz(200)
@given(mutated_json(st.sampled_from(ANSWERS)))
def test_a_live_process_says_what_is_known_or_is_refused(data: Any) -> None:
    try:
        _, message = measured(lambda: check_process_message(data), size_of(data))
    except ValueError as error:
        assert len(str(error)) < 1000
        return
    assert 0 <= message["local_rank"] <= 2**16
