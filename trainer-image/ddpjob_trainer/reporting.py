"""Tells the worker's agent how far training is: one JSON datagram per event.

A report must never cost training anything: nothing here raises, and nothing waits longer than
`PATIENCE`. Without an agent, as on a laptop, every function does nothing. Does not import torch.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
from typing import TYPE_CHECKING

from ddpjob_agent import contract

if TYPE_CHECKING:
    from collections.abc import Mapping

PATIENCE = 0.2  # seconds that a rare report may wait for room in the agent's socket

_log = logging.getLogger("ddpjob")


def step_done(step: int, total: int | None = None, **metrics: float) -> None:
    """Reports that `step` steps are done, of `total`; dropped when the agent is busy.

    Only the report of the last step, which carries the result, waits for a moment. Metrics that
    are not finite numbers are left out.
    """
    message: dict[str, object] = {"event": contract.Event.STEP.value, "step": int(step)}
    if total is not None:
        message["total"] = int(total)
    if _listener() is None:
        return
    patience = PATIENCE if step == total else 0
    _send({**message, "metrics": _finite(metrics)}, patience)


def saved(step: int) -> None:
    """Reports that the snapshot of `step` is complete and durable."""
    _send({"event": contract.Event.SAVED.value, "step": step}, patience=PATIENCE)


def resumed(step: int) -> None:
    """Reports where training goes on from; 0 when there was no snapshot."""
    _send({"event": contract.Event.RESUMED.value, "step": step}, patience=PATIENCE)


def _listener() -> str | None:
    if os.environ.get("RANK", "0") != "0":
        return None
    return os.environ.get(contract.ENV_REPORT_SOCKET) or None


def _membership() -> dict[str, str]:
    """In which this process is: at L2 its agent cannot know."""
    membership = os.environ.get(contract.ENV_MEMBERSHIP)
    return {"membership": membership} if membership else {}


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            number = float(value)
        except Exception as error:  # noqa: BLE001 - whatever a user's object raises must not end training
            _log.warning("metric %s is not reported: %s", name, error)
            continue
        if math.isfinite(number):
            numbers[name] = number
    return numbers


def _send(message: Mapping[str, object], patience: float) -> None:
    path = _listener()
    if path is None:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.connect(path)  # only a connected socket can wait for room at the other end
            sender.settimeout(patience)
            sender.send(json.dumps({**message, **_membership()}).encode())
    except (OSError, ValueError):
        _log.debug("report not delivered: %s", message, exc_info=True)
