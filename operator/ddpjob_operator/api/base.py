"""What all models of the custom resource share: spelling, strictness, how problems travel.

May not: know any field of the resource.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

Path = tuple[str | int, ...]  # as the file spells it: ("spec", "env", 0, "name")


class Model(BaseModel):
    """Immutable, camelCase outside, refuses what it does not know."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
    )

    def to_json(self) -> dict[str, Any]:
        """As the API server has it: camelCase, nothing that is absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class ObservedModel(Model):
    """A part that the API server or the operator wrote: unknown fields are of a newer version."""

    model_config = ConfigDict(extra="ignore")


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a job, and what to do about it."""

    path: Path
    message: str

    def __str__(self) -> str:
        return f"{spell(self.path)}: {self.message}"


class InvalidError(ValueError):
    """Several problems of one object, with paths relative to it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


def spell(path: Path) -> str:
    """As people write it: `spec.env[0].name`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
