"""Tells the worker's agent how far training is: one JSON datagram per event, mostly from rank 0.

A report must never cost training anything: nothing here raises, and nothing waits longer than
`PATIENCE`. Without an agent, as on a laptop, every function does nothing. Does not import torch.
"""

from __future__ import annotations

import logging
import math
import os
from typing import TYPE_CHECKING

from ddpjob_agent import contract
from ddpjob_trainer import datagram, pulse

if TYPE_CHECKING:
    from collections.abc import Mapping

PATIENCE = 2.0  # seconds that a rare report may wait for room in the agent's socket

_log = logging.getLogger("ddpjob")


def step_done(step: int, total: int | None = None, **metrics: float) -> None:
    """Reports that `step` steps are done, of `total`; dropped when the agent is busy.

    Only the report of the last step, which carries the result, waits for a moment. Metrics that
    are not finite numbers are left out.
    """
    pulse.at(step)
    message: dict[str, object] = {"event": contract.Event.STEP.value, "step": int(step)}
    if total is not None:
        message["total"] = int(total)
    if _listener() is None:
        return
    patience = PATIENCE if step == total else 0
    _send({**message, "metrics": _finite(metrics)}, patience)


def saved(step: int, place: int = 0, places: int = 1, skipped: int = 0, trouble: str = "") -> None:
    """Reports that the snapshot of `step` is complete and durable, in one of so many directories.

    So many were left out since the one before. `trouble` is what makes saving worse than it could be.
    """
    message: dict[str, object] = {"event": contract.Event.SAVED.value, "step": step}
    if skipped:
        message["skipped"] = skipped
    if trouble:
        message["trouble"] = trouble
    if places == 1:
        _send(message, patience=PATIENCE)
    else:
        where = {"place": place, "places": places}
        _send_to(datagram.listener(), {**message, **where}, patience=PATIENCE)


def resumed(step: int, *, loaded: bool = False) -> None:
    """Reports where training goes on from; 0 when there was no snapshot to be `loaded`."""
    pulse.at(step)
    how = {"loaded": True} if loaded else {}
    _send({"event": contract.Event.RESUMED.value, "step": step, **how}, patience=PATIENCE)


def _listener() -> str | None:
    return datagram.listener() if os.environ.get("RANK", "0") == "0" else None


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
    _send_to(_listener(), message, patience)


def _send_to(path: str | None, message: Mapping[str, object], patience: float) -> None:
    membership = datagram.membership()
    known = {"membership": membership} if membership else {}
    if path is not None:
        datagram.send(path, {**message, **known}, patience)
