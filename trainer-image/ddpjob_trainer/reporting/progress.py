"""Reports the progress of training to the worker's agent, mostly from rank 0.

Each event is one JSON datagram. A report must not slow down training: no function raises, or waits
longer than `SEND_SECONDS`. Steps are reported a few times a second, as the agent and training share the
cores. Without an agent, as on a laptop, every function does nothing. Does not import torch.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from typing import TYPE_CHECKING

from ddpjob_protocol.messages.process import ProgressEvent
from ddpjob_protocol.parsers.progress import is_metric_name, merge_metrics
from ddpjob_trainer.reporting import datagram, heartbeat

if TYPE_CHECKING:
    from collections.abc import Mapping

SEND_SECONDS = 2.0  # seconds that a rare report may wait for room in the agent's socket
INTERVAL = 0.2  # seconds between two reports of steps

_log = logging.getLogger("ddpjob")


class _StepReporter:
    """The newest report of a step; sent at once, or after `INTERVAL`.

    If no other step follows, the next heartbeat sends the report, or the end of Python does.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Initialize the reporter; also after a fork, as the child has no reports and no lock."""
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Discard the reports of the previous membership."""
        with self._lock:
            self._waiting: dict[str, object] | None = None
            self._metrics: dict[str, float] = {}  # not sent yet
            self._again_at = -math.inf

    def report(self, message: Mapping[str, object], metrics: Mapping[str, float]) -> None:
        with self._lock:
            self._metrics = merge_metrics(self._metrics, metrics)
            self._waiting = {**message, "metrics": self._metrics, **_is_under_agent()}
            is_last = message["step"] == message.get("total")
            if is_last or time.monotonic() >= self._again_at:
                self._send(SEND_SECONDS if is_last else 0)

    def flush(self) -> None:
        with self._lock:
            self._send(0)

    def _send(self, timeout: float) -> None:
        path = _listener()
        if self._waiting is not None and path and datagram.send(path, self._waiting, timeout):
            self._waiting, self._metrics = None, {}
            self._again_at = time.monotonic() + INTERVAL


_steps = _StepReporter()
heartbeat.on_beat(_steps.flush)
atexit.register(_steps.flush)
os.register_at_fork(after_in_child=_steps.reset)


def step_done(step: int, total: int | None = None, **metrics: float) -> None:
    """Report that `step` steps of `total` are done; sends the newest report a few times a second.

    `metrics` are numbers, such as a loss: a report has the newest finite value of each, at most `MAX_METRICS` of them. Only the
    report of the last step, which has the result, waits if the agent is busy.
    """
    heartbeat.set_step(step)
    if _listener() is None:
        return
    message: dict[str, object] = {"event": ProgressEvent.STEP.value, "step": int(step)}
    if total is not None:
        message["total"] = int(total)
    _steps.report(message, _finite(metrics))


def saved(
    step: int, storage: int = 0, storages: int = 1, skipped: int = 0, problem: str = ""
) -> None:
    """Report that the snapshot of `step` is complete and durable in one of `storages` directories.

    `skipped` snapshots were left out since the last one. `problem` describes impaired saving.
    """
    message: dict[str, object] = {"event": ProgressEvent.SAVED.value, "step": step}
    if skipped:
        message["skipped"] = skipped
    if problem:
        message["problem"] = problem
    if storages == 1:
        _send(message)
    else:
        where = {"storage": storage, "storages": storages}
        _send_to(datagram.listener(), {**message, **where})


def resumed(step: int, *, loaded: bool = False) -> None:
    """Report the step from which training resumes; if no snapshot was `loaded`, step 0."""
    heartbeat.set_step(step)
    _steps.begin()
    how = {"loaded": True} if loaded else {}
    _send({"event": ProgressEvent.RESUMED.value, "step": step, **how})


def _listener() -> str | None:
    return datagram.listener() if os.environ.get("RANK", "0") == "0" else None


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        if not is_metric_name(name):
            _log.warning("metric %r is not reported: its name is too long or not printable", name)
            continue
        try:
            number = float(value)
        except Exception as error:  # noqa: BLE001 - a user's object must not end training
            _log.warning("metric %s is not reported: %s", name, error)
            continue
        if math.isfinite(number):
            numbers[name] = number
    return numbers


def _send(message: Mapping[str, object]) -> None:
    _send_to(_listener(), message)


def _send_to(path: str | None, message: Mapping[str, object]) -> None:
    _steps.flush()  # keeps the order of reports
    if path is not None:
        datagram.send(path, {**message, **_is_under_agent()}, SEND_SECONDS)


def _is_under_agent() -> dict[str, str]:
    membership = datagram.membership()
    return {"membership": membership} if membership else {}
