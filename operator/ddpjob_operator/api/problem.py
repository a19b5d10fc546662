"""A problem of a job: where it is, what is wrong, what to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

Path = tuple[str | int, ...]  # spelled as in the job file: ("spec", "env", 0, "name")


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem of a job, with its path and its remedy."""

    path: Path
    message: str

    def __str__(self) -> str:
        return f"{spell(self.path)}: {self.message}"


class InvalidError(ValueError):
    """The problems of one object, with paths relative to the object."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


def spell(path: Path) -> str:
    """Return a path in the form `spec.env[0].name`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
