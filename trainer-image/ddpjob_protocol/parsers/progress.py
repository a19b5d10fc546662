"""The progress reports of user code, with one strict parser for agent, service and trainer.

A process of any version, or a script without the trainer library, may send anything. A report is
accepted or refused as a whole, so no reader meets an odd value. Fields of a newer sender are ignored.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ddpjob_protocol.codec import DecodeError, show
from ddpjob_protocol.messages.process import ProgressEvent
from ddpjob_protocol.parsers import checks

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_METRICS = 64
MAX_METRIC_NAME = 64  # characters
MAX_WHERE = 200  # characters
MAX_PROBLEM = 2000  # characters


@dataclasses.dataclass(frozen=True)
class ProgressReport:
    """A `ProgressEvent` of a process, except ALIVE."""

    event: ProgressEvent
    step: int
    membership: str = ""  # empty: the process does not know it
    total: int | None = None  # None: not known
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    storage: int = 0
    storages: int = 1
    skipped: int = 0
    problem: str = ""
    loaded: bool = False

    @classmethod
    def parse(cls, data: Any) -> ProgressReport:
        """Return the report in a JSON object; raise DecodeError if a value is odd."""
        return cls(**_known_fields(cls, _REPORT(data, "report")))

    def to_message(self) -> dict[str, Any]:
        """Return the JSON object, without fields that have their default."""
        found: dict[str, Any] = {"event": self.event.value, "step": self.step}
        if self.event is ProgressEvent.STEP or self.metrics:
            found["metrics"] = dict(self.metrics)
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.name not in (*found, "metrics") and value != each.default:
                found[each.name] = value
        return found

    def replace_earlier(self, earlier: ProgressReport) -> ProgressReport:
        """Return this report with the metrics that only an earlier one has."""
        return dataclasses.replace(self, metrics=merge_metrics(earlier.metrics, self.metrics))


@dataclasses.dataclass(frozen=True)
class Position:
    """The heartbeat of a process, `ProgressEvent.ALIVE`; the agent adds its age."""

    rank: int
    step: int
    where: str  # current line of the script
    membership: str
    age: float = 0.0  # seconds

    @classmethod
    def parse(cls, data: Any, path: str = "report") -> Position:
        """Return the heartbeat in a JSON object; raise DecodeError if a value is odd."""
        return cls(**_known_fields(cls, _POSITION(data, path)))

    def to_message(self, age: float) -> dict[str, Any]:
        """Return the JSON object of a heartbeat that is `age` seconds old."""
        return dataclasses.asdict(dataclasses.replace(self, age=age))


def merge_metrics(earlier: Mapping[str, float], newer: Mapping[str, float]) -> dict[str, float]:
    """Return the newest value of each metric; at most `MAX_METRICS`, those reported last."""
    kept = {name: value for name, value in earlier.items() if name not in newer}
    return dict([*kept.items(), *newer.items()][-MAX_METRICS:])


def is_metric_name(name: object) -> bool:
    """Return whether a metric may have this name: 1 to 64 printable characters."""
    return isinstance(name, str) and 1 <= len(name) <= MAX_METRIC_NAME and name.isprintable()


def check_metrics(data: Any, where: str) -> dict[str, float]:
    """Return the metrics as floats; raise DecodeError for odd names or values, or too many."""
    checked: dict[str, Any] = checks.fields({})(data, where)
    checks.count(len(checked), f"the number of {where}", MAX_METRICS)
    for name in checked:
        if not is_metric_name(name):
            raise DecodeError(
                f"{where} has the name {show(name)} instead of 1 to {MAX_METRIC_NAME} printable"
                " characters"
            )
    return {name: checks.number(value, f"{where}.{name}") for name, value in checked.items()}


def _known_fields(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    names = (each.name for each in dataclasses.fields(kind))
    return {name: data[name] for name in names if data.get(name) is not None}


def _event(data: Any, where: str) -> ProgressEvent:
    known = [each.value for each in ProgressEvent if each is not ProgressEvent.ALIVE]
    if data not in known:
        raise DecodeError(f"{where} is {show(data)} instead of {', '.join(known)}")
    return ProgressEvent(data)


_REPORT = checks.fields(
    {
        "event": _event,
        "step": checks.count,
        "membership": checks.name,
        "total": checks.count,
        "metrics": check_metrics,
        "storage": checks.count,
        "storages": checks.count,
        "skipped": checks.count,
        "problem": checks.text_to(MAX_PROBLEM),
        "loaded": checks.flag,
    },
    "event",
    "step",
)
_POSITION = checks.fields(
    {
        "rank": checks.count,
        "step": checks.count,
        "where": lambda data, path: checks.text(data, path)[:MAX_WHERE],
        "membership": checks.name,
        "age": checks.seconds,
    },
    "rank",
    "step",
    "where",
    "membership",
)
