"""Odd messages to a real service: each is refused, and costs neither a session nor the service."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agent.service.serving import Agent, Job, run, until
from ddpjob_operator.rendezvous.client import ServiceUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from ddpjob_protocol.messages.agent import Message

NOW = "1.1.1"
STEP: dict[str, Any] = {"event": "step", "step": 5}
POSITION: dict[str, Any] = {"rank": 0, "step": 1, "where": "a.py:7", "age": 0, "membership": NOW}
COPY: dict[str, Any] = {"membership": NOW, "seconds": 1.0, "digest": "ab", "size": 1}
DEEP = json.loads("[" * 300 + "]" * 300)


def report(**change: Any) -> Message:
    return {"type": "report", "membership": NOW, "report": {**STEP, **change}}


ODD_MESSAGES: tuple[Message, ...] = (
    report(total="many"),
    report(step=1e999),
    report(step=-(2**63)),
    report(step=True),
    report(metrics={"loss": "low"}),
    report(metrics={str(n): n for n in range(65)}),
    report(event="saved", storages="2"),
    report(event="applause"),
    {"type": "report", "membership": NOW, "report": DEEP},
    {"type": "report"},
    {"type": "beat", "processes": "x"},
    {"type": "beat", "processes": [{**POSITION, "age": float("inf")}]},
    {"type": "beat", "processes": [{**POSITION, "rank": None}]},
    {"type": "steps_done", "membership": "soon", "step": 7},
    {"type": "steps_done", "membership": "1.-1.1", "step": 7},
    {"type": "promise", "step": 2**63},
    {"type": "exited", "membership": NOW, "live": False, "failure": {"at": float("nan")}},
    {"type": "exited", "membership": NOW, "live": False, "failure": "died"},
    {"type": "exited", "membership": [NOW], "live": False, "failure": None},
    {"type": "asks", "membership": NOW, "rank": "first"},
    {"type": "stops", "membership": None},
    {"type": "stopped"},
    {"type": "broken", "membership": NOW, "why": 5},
    {"type": "files", "scope": NOW, "copies": [{**COPY, "membership": "soon"}]},
    {"type": "files", "scope": NOW, "copies": [{**COPY, "size": -1}]},
    {"type": "warning", "reason": "two words", "message": "x"},
    {"type": "warning", "reason": "Odd", "message": {"a": 1}},
    {"type": "store", "id": [1], "membership": NOW, "data": "AA=="},
    {"type": "store", "id": 10**8, "membership": NOW, "data": "not base64"},
    {"type": "writes", "membership": NOW, "writes": 5},
    {"type": "forgot", "membership": NOW, "keys": [5]},
    {"type": "beat", "settled": "all"},
    {"type": "beat", "step": -1, "step_age": 0.0},
    {"type": "beat", "step": 1, "step_age": float("nan")},
    {"type": "report", "membership": NOW, "report": STEP, "step": 1, "step_age": -1.0},
    {"type": "store", "id": 10**9},
    {"type": "cancel", "id": {}},
)
ODD_FACTS: Message = {
    "running": True,
    "reports": [{"event": "step", "step": 5, "metrics": {"loss": None}}],
    "files": {"scope": 5},
    "failure": 7,
    "steps_done": {"membership": 1, "step": 1},
    "port": "http",
    "stops": "yes",
}


def connections_of(agent: Agent) -> list[object]:
    """Record each further connection of this agent."""
    opened: list[object] = []
    connect = agent.link._hello

    def count() -> Message:
        opened.append(object())
        return connect()

    agent.link._hello = count
    return opened


def test_odd_messages_cost_neither_session_nor_service(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a", "b")
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        reconnected = connections_of(a)
        orders = [len(a.orders), len(b.orders)]
        for number, message in enumerate(ODD_MESSAGES, start=1):
            a.link.send(message)
            assert await a.add(b"count", 1) == number, message
        assert reconnected == []
        assert [len(a.orders), len(b.orders)] == orders
        assert await b.add(b"count", 1) == len(ODD_MESSAGES) + 1

        async def warned() -> None:
            if not (await job.report()).warnings:
                raise ServiceUnavailableError("no warning yet")

        await until(warned)
        found = await job.report()
        assert (found.boot, found.step, found.failure, found.workers) == (1, None, None, ("a", "b"))
        assert {each.reason for each in found.warnings} == {"InvalidReport"}
        assert {each.worker for each in found.warnings} == {"a"}
        a.link.send(report(total=9, colour="a field of a newer agent"))

        async def is_reported() -> None:
            if (await job.report()).total_steps != 9:
                raise ServiceUnavailableError("not yet")

        await until(is_reported)

    run(body, tmp_path)


def test_the_warning_names_the_value(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a")
        a = job.agent("a")
        await job.formed(1)
        for total in ("many", "more"):
            a.link.send(report(total=total))

        async def warned() -> None:
            if not (await job.report()).warnings:
                raise ServiceUnavailableError("no warning yet")

        await until(warned)
        (warning,) = (await job.report()).warnings
        assert "report.total is 'many' instead of an integer" in warning.message, "once"

    run(body, tmp_path)


def test_odd_facts_of_a_hello_do_not_keep_a_worker_out(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a", "b")
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        orders = len(b.orders)
        reconnected = connections_of(a)
        a.known = ODD_FACTS
        a.link.reconnect()
        assert await a.add(b"count", 1) == 1
        found = await job.report()
        assert (found.workers, [each.cause for each in found.memberships]) == (
            ("a", "b"),
            ["started"],
        )
        assert len(reconnected) == 1
        assert len(b.orders) == orders

    run(body, tmp_path)
