"""Injects the events of `--chaos` into a local job.

May not: parse or change the events.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from ddpjob_operator.local.chaos import ChaosEvent, explain_waiting
from ddpjob_operator.local.record.timeline import Timeline
from ddpjob_operator.local.simulated.nodes import SimulatedNodes
from ddpjob_operator.local.simulated.rendezvous_process import RendezvousProcess
from ddpjob_protocol.messages.control import Report


class FaultInjector:
    """The events of one run that are still to come."""

    def __init__(
        self,
        events: Sequence[ChaosEvent],
        nodes: SimulatedNodes,
        service: RendezvousProcess,
        timeline: Timeline,
    ) -> None:
        self._events = list(events)
        self._nodes = nodes
        self._service = service
        self._timeline = timeline
        self._start: float | None = None  # time of the first membership
        self._explained = False

    def inject_due(self, report: Report) -> None:
        """Execute the events that are due; `report` has a membership."""
        if self._start is None:
            self._start = time.monotonic()
        elapsed = time.monotonic() - self._start
        while self._events and self._events[0].is_due(report, elapsed):
            self._timeline.chaos(_inject(self._events.pop(0), self._nodes, self._service))
        if self._events and not self._explained:
            reason = explain_waiting(self._events[0], report, elapsed)
            if reason:
                self._explained = True
                self._timeline.chaos(reason)

    def report_missed(self) -> None:
        """Report the events that did not happen."""
        for event in self._events:
            self._timeline.chaos(f"{event} did not happen: the job ended before it")


def _inject(event: ChaosEvent, nodes: SimulatedNodes, service: RendezvousProcess) -> str:
    """Execute a chaos event; return a description for people."""
    if event.action == "join":
        return f"{nodes.add()} comes up"
    if event.action == "rendezvous":
        service.kill()
        return "the rendezvous service is killed"
    node = event.node or next(reversed(nodes.busy()), None)
    if node not in nodes.up:
        return f"no node {node or 'with a worker'} to {event.action}"
    match event.action:
        case "kill":
            nodes.kill(node)
        case "drain":
            nodes.drain(node)
        case "freeze":
            nodes.signal(node, signal.SIGSTOP)
        case "thaw":
            nodes.signal(node, signal.SIGCONT)
        case "agent":
            nodes.kill_agent(node)
        case "process":
            nodes.kill_process(node)
    return f"{event.action} on {node}"
