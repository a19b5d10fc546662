"""A fault of a job file: where it is, what is wrong, what to do."""

from __future__ import annotations

import dataclasses
from enum import StrEnum


class Severity(StrEnum):
    """The weight of a fault."""

    ERROR = "error"
    WARNING = "warning"


@dataclasses.dataclass(frozen=True, order=True)
class Fault:
    """A fault of a job file."""

    message: str  # what is wrong; what to do
    line: int = 0  # 0: of the whole file
    column: int = 0  # 0: of the whole line
    path: str = ""  # as in spec.env[0].name; empty: of the text
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        place = f"line {self.line}" + (f", column {self.column}" if self.column else "")
        parts = (place if self.line else "", self.path, self.message)
        return ": ".join(filter(None, parts))

    @property
    def what(self) -> str:
        """The failure, without the remedy."""
        return self.message.partition("; ")[0]

    @property
    def remedy(self) -> str:
        """The remedy; empty if the message has none."""
        return self.message.partition("; ")[2]
