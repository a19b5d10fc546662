"""The base of all models of the custom resource: spelling, strictness, problems.

May not: know any field of the resource.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

Path = tuple[str | int, ...]  # spelled as in the job file: ("spec", "env", 0, "name")


class Model(BaseModel):
    """An immutable model with camelCase field names in JSON; unknown fields are rejected."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
    )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form of the API server: camelCase names, no absent fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class ObservedModel(Model):
    """A part written by the API server or the operator; unknown fields of newer versions pass."""

    model_config = ConfigDict(extra="ignore")


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
