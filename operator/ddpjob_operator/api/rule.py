"""A validation rule: its check in Python, the same check in CEL, and one message for both.

A rule stands beside what it checks: in the annotation of a type, or in the RULES of a model. The
models run the check. The JSON schema of the models holds CEL and message, so the CRD holds them, too.
A rule without CEL is one that CEL cannot check, or that the schema expresses in another way.

May not: know any field of the resource.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from ddpjob_operator.api.problem import InvalidError, Path, Problem

VALIDATIONS = "x-kubernetes-validations"
Value = tuple[Callable[..., object], str]  # in Python, and in CEL


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule about a value or a model."""

    field: str = ""  # of the model; the message is about it
    message: str  # each `%s` stands for one of the values
    values: tuple[Value, ...] = ()
    check: Callable[..., object] | None = None  # true if the argument obeys the rule
    cel: str = ""  # the same; the argument is `self`
    unless: str = ""  # CEL about self and oldSelf: an update for which it holds is not checked
    reason: str = ""  # of the API server's error, if it is not FieldValueInvalid

    def find_problems(self, subject: Any) -> Iterator[Problem]:
        """Yield a problem if the subject breaks the rule."""
        if self.check is not None and not self.check(subject):
            yield Problem(self.path, self.text(subject))

    @property
    def path(self) -> Path:
        """Path of the field, relative to the model."""
        return tuple(self.field.split(".")) if self.field else ()

    def text(self, *arguments: object) -> str:
        """Return the message with the values of the arguments."""
        return self.message % tuple(show(*arguments) for show, _ in self.values)

    def to_json(self) -> dict[str, Any]:
        """Return the rule in the form of the API server."""
        values = [cel for _, cel in self.values]
        if not self.unless:
            return self.build(self.cel, self.message, *values)
        rule = f"(oldSelf.hasValue() && ({self.unless})) || ({self.cel})"
        return {**self.build(rule, self.message, *values), "optionalOldSelf": True}

    def build(self, cel: str, message: str, *values: str, field: str = "") -> dict[str, str]:
        """Return the form of the API server; CEL `values` replace `%s` in the message."""
        at = field or self.field
        found = {"rule": cel, "fieldPath": at and f".{at}", "reason": self.reason}
        if values:
            found["messageExpression"] = f"{json.dumps(message)}.format([{', '.join(values)}])"
        else:
            found["message"] = message
        return {key: value for key, value in found.items() if value}

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._validate, handler(source))

    def _validate(self, value: Any) -> Any:
        if problems := [*self.find_problems(value)]:
            raise InvalidError(problems)
        return value

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        found = handler(schema)
        if self.cel:
            found.setdefault(VALIDATIONS, []).append(self.to_json())
        return found


def itself(value: object) -> object:
    """Return the value, for a message that quotes it."""
    return value


ITSELF: Value = (itself, "self")


def prefixed(problems: Iterator[Problem], *path: str | int) -> Iterator[Problem]:
    """Yield the problems of a part with the path of that part."""
    where: Path = path
    return (Problem((*where, *each.path), each.message) for each in problems)
