"""The state of an agent's processes, from their datagrams."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from ddpjob_agent.worker.processes.progress_socket import ProgressSocket

SIGN = {"event": "alive", "rank": 3, "step": 12, "where": "train.py:9", "membership": "1.1.1"}


class Told:
    """The messages that an agent received from its ended processes, and those that it sent on."""

    def __init__(
        self, folder: Path, datagrams: tuple[dict[str, Any] | bytes, ...], restarted: bool
    ) -> None:
        self.sent: list[dict[str, Any]] = []
        self.alive: list[dict[str, Any]] = []
        self.recalled: list[dict[str, Any]] = []
        self.refused: list[str] = []
        asyncio.run(self._hear(folder / "report.sock", datagrams, restarted))

    async def _hear(
        self, path: Path, datagrams: tuple[dict[str, Any] | bytes, ...], restarted: bool
    ) -> None:
        reports = ProgressSocket(self.sent.append, self.refused.append)
        reports.listen(str(path))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as process:
            for each in datagrams:
                data = each if isinstance(each, bytes) else json.dumps(each).encode()
                process.sendto(data, str(path))
        reports.end()
        if restarted:
            reports.reset()
        self.alive, self.recalled = reports.alive(), reports.last_messages()
        reports.close()
        assert all(each.pop("age") >= 0 for each in self.alive)


def known(folder: Path, *datagrams: dict[str, Any], restarted: bool = False) -> list[Any]:
    """Return the message to the service after these datagrams, without its age."""
    told = Told(folder, datagrams, restarted)
    assert told.sent == [], "it goes with the beats"
    assert told.recalled == []
    return told.alive


def step(number: int, **metrics: float) -> dict[str, Any]:
    return {"event": "step", "step": number, "total": 9, "metrics": metrics}


def test_last_messages_are_sent_on_at_the_end(tmp_path: Path) -> None:
    result = step(9, accuracy=0.5)
    told = Told(tmp_path, (step(7), step(8), step(9), result), restarted=False)
    assert told.sent == [step(7), result], "the first at once, then the newest"


def test_metrics_of_a_report_that_is_passed_over_go_with_the_next(tmp_path: Path) -> None:
    told = Told(tmp_path, (step(1), step(2, loss=2, rate=1), step(3, loss=3), step(4)), False)
    assert told.sent == [step(1), step(4, loss=3, rate=1)]


def without_event(sign: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sign.items() if name != "event"}


def test_the_last_sign_of_each_rank_counts(tmp_path: Path) -> None:
    other = {**SIGN, "rank": 2}
    newer = {**SIGN, "step": 13, "where": "train.py:7 in load"}
    assert known(tmp_path, SIGN, other, newer) == [without_event(newer), without_event(other)]


def test_ranks_of_another_membership_are_forgotten(tmp_path: Path) -> None:
    moved = {**SIGN, "rank": 1, "membership": "1.1.2"}
    assert known(tmp_path, SIGN, moved) == [without_event(moved)]


def test_ranks_of_an_earlier_start_are_forgotten(tmp_path: Path) -> None:
    assert known(tmp_path, SIGN, restarted=True) == []


@pytest.mark.parametrize(
    "fault",
    [{"rank": "first"}, {"step": None}, {"rank": None}],
    ids=["rank_is_a_word", "no_step", "no_rank"],
)
def test_what_cannot_be_read_is_passed_over(tmp_path: Path, fault: dict[str, Any]) -> None:
    assert known(tmp_path, {**SIGN, **fault}) == []


@pytest.mark.parametrize(
    "fault",
    [
        {"step": float("inf")},
        {"total": "many"},
        {"metrics": {"note": "good"}},
        {"metrics": ["loss"]},
        {"metrics": {str(n): n for n in range(65)}},
        {"step": True},
        {"step": -(2**63)},
        {"event": "applause"},
    ],
    ids=lambda fault: str(fault)[:40],
)
def test_a_script_that_sends_nonsense_can_still_report(
    tmp_path: Path, fault: dict[str, Any]
) -> None:
    told = Told(tmp_path, ({**step(1), **fault}, {**step(1), **fault}, step(2)), False)
    assert told.sent == [step(2)]
    assert len(told.refused) == 1, "each start warns once"
    assert told.refused[0].startswith(f"report.{next(iter(fault))} ") or "metrics" in fault


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 30_000, b"[]", b'"step"', b"9" * 5000])
def test_a_datagram_of_no_report_is_passed_over(tmp_path: Path, data: bytes) -> None:
    told = Told(tmp_path, (data, step(2)), False)
    assert told.sent == [step(2)]
    assert len(told.refused) == 1


def test_names_of_metrics_do_not_add_up(tmp_path: Path) -> None:
    steps = [step(n, **{f"{n} {name}": 1.0 for name in range(40)}) for n in range(4)]
    assert len(Told(tmp_path, (*steps,), False).sent[-1]["metrics"]) == 64


def test_where_is_bounded(tmp_path: Path) -> None:
    (sign,) = known(tmp_path, {**SIGN, "where": "x" * 10_000})
    assert len(sign["where"]) == 200
