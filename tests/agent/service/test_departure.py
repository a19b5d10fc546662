"""A service whose pod is deleted: the agents agree on their last step, or find the next service."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from agent.service.serving import Agent, Job, run, until
from ddpjob_agent.c10d.protocol import Op
from ddpjob_operator.rendezvous.client import ServiceUnavailableError
from ddpjob_protocol.exit_codes import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from ddpjob_protocol.messages.control import Report


async def until_halted(agent: Agent) -> None:
    """Wait until this agent is ordered to run nothing."""

    async def look() -> None:
        if agent.orders[-1] != "halt":
            raise ServiceUnavailableError(f"orders {agent.orders}")

    await until(look)


def test_agents_that_end_after_the_signal_still_agree_on_their_last_step(tmp_path: Path) -> None:
    """A job is deleted: its pods are signalled in any order, and the service may be the first."""

    async def body(job: Job) -> None:
        await job.expect("a", "b")
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        await a.do(Op.SET, b"key", values=(b"1",))
        job.service.process.send_signal(signal.SIGTERM)
        assert (await b.do(Op.GET, b"key")).endswith(b"1")
        for agent in (a, b):
            agent.link.send({"type": "stops", "membership": "1.1.1"})
        for agent in (a, b):
            agent.link.send({"type": "bye"})
        for agent in (a, b):
            agent.link.send({"type": "promise", "step": 7})
        await until_halted(a)
        await until_halted(b)
        a.task.cancel()
        await asyncio.wait([a.task])
        assert job.service.process.poll() is None, "b may still write"
        b.task.cancel()
        assert await job.service.ended() == Exit.OK

    run(body, tmp_path)


def test_agents_that_live_on_move_to_the_next_service(tmp_path: Path) -> None:
    """Only the pod of the service is deleted: the next one comes, and has the membership."""

    async def body(job: Job) -> None:
        await job.expect("a", "b")
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        old = job.service.process
        old.send_signal(signal.SIGTERM)
        orders = [list(a.orders), list(b.orders)]
        await until_closed(job)
        assert old.poll() is None
        job.service.start()
        assert await asyncio.to_thread(old.wait, 60) == Exit.OK
        await job.expect("a", "b")
        report = await until(lambda: report_of_both(job))
        assert report.boot == 2
        assert [(each.id, each.cause) for each in report.memberships] == [("1.1.1", "started")]
        assert "halt" not in [*a.orders[len(orders[0]) :], *b.orders[len(orders[1]) :]]

    run(body, tmp_path)


async def report_of_both(job: Job) -> Report:
    """Return the report once both agents are in it."""
    report = await job.client.report()
    if report.workers != ("a", "b"):
        raise ServiceUnavailableError(f"workers {report.workers}")
    return report


async def until_closed(job: Job) -> None:
    """Wait until the service accepts no connection."""

    async def look() -> None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", job.service.port)
            writer.close()
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            pass  # it closes the port at this moment
        raise ServiceUnavailableError("it accepts connections")

    await until(look)


def test_a_service_without_agents_ends_at_once(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a")
        job.service.process.send_signal(signal.SIGTERM)
        assert await job.service.ended() == Exit.OK

    run(body, tmp_path)
