"""Two operators that observe different things: neither overwrites the other's status at once."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from ddpjob_operator.controller.contested import PAUSE_SECONDS
from ddpjob_operator.controller.controller import Controller
from ddpjob_operator.controller.settings import Settings
from ddpjob_operator.rendezvous.client import ServiceUnavailableError, Transport
from ddpjob_operator.rendezvous.session_pool import Key, ServiceId
from ddpjob_operator.request import Request
from support.reconciling.in_memory import play_in_memory
from support.reconciling.life import training
from support.reconciling.stage import Stage, ended
from support.reconciling.wire import Call, Wire

WRITE_SECONDS = 0.5  # of an API server


def no_way(_key: Key, _service: ServiceId) -> Transport:
    async def send(_request: Request) -> Any:
        raise ServiceUnavailableError("connection refused")

    return send


def times_of_writes(stage: Stage, wire: Wire) -> list[float]:
    """Grows with each write of a status."""
    times: list[float] = []

    async def note(call: Call) -> None:
        if call.kind == "PUT ddpjobs/status":
            times.append(stage.clock())
            await asyncio.sleep(WRITE_SECONDS)

    wire.before = note
    return times


def start_cut_off_operator(stage: Stage, wire: Wire) -> list[asyncio.Task[None]]:
    """Start a second operator, which reaches the API server and no rendezvous service."""
    settings = Settings(agent_image=stage.agent_image, namespaces=stage.namespaces)
    controller = Controller(
        wire, settings, stage.keys, no_way, clock=stage.clock, now=stage._present
    )
    return [asyncio.ensure_future(each) for each in (controller.run(), stage._kopf(controller))]


def test_two_operators_pause_between_different_statuses_of_one_job() -> None:
    async def story(stage: Stage) -> None:
        wire = Wire(stage.kube)
        mine, others = times_of_writes(stage, stage.wire), times_of_writes(stage, wire)
        await training(stage, "000-1", "001-1")
        assert min(gaps(mine)) < PAUSE_SECONDS, "alone, an operator waits for nobody"
        tasks = start_cut_off_operator(stage, wire)
        await asyncio.sleep(30)
        mine.clear()
        others.clear()
        await asyncio.sleep(120)
        await ended(tasks)
        for times in (mine, others):
            assert len(times) > 10, "they do not agree"
            assert min(gaps(times)) >= PAUSE_SECONDS
        view = await stage.until(lambda v: v.state == "Running", "the one that is left decides")
        assert view.trains("000-1", "001-1")

    play_in_memory(story)


def gaps(times: list[float]) -> list[float]:
    """Return the seconds from each time to the next."""
    return [round(after - before, 6) for before, after in itertools.pairwise(times)]
