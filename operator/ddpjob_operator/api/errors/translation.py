"""Translates pydantic's validation errors into problems in the terms of a job.

May not: show a message or a URL of pydantic.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from ddpjob_operator.api.errors.homes import describe, explain_unknown, inner_field, neighbour
from ddpjob_operator.api.problem import InvalidError, Path, Problem

UNKNOWN = "extra_forbidden"
OF_KEY = "[key]"  # pydantic's last part of the path of a key


def explain_errors(error: ValidationError, *at: str) -> tuple[Problem, ...]:
    """Return every problem of a failed validation of a DDPJob, or of its part, in pydantic's order."""
    errors: list[dict[str, Any]] = [
        {**details, "loc": (*at, *details["loc"])} for details in error.errors()
    ]
    unknown = {e["loc"]: neighbour(e["loc"]) for e in errors if e["type"] == UNKNOWN}
    meant = {(*path[:-1], near) for path, near in unknown.items()}
    return tuple(
        problem
        for details in errors
        if details["type"] != "missing" or details["loc"] not in meant
        for problem in _translate(details)
    )


def _translate(details: Mapping[str, Any]) -> Iterator[Problem]:
    path: Path = tuple(part for part in details["loc"] if part != OF_KEY)
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, InvalidError):
        for problem in cause.problems:
            yield Problem(path + problem.path, problem.message)
    elif details["type"] == UNKNOWN:
        yield Problem(path, explain_unknown(path, details["input"]))
    elif details["type"] == "missing":
        yield Problem(path, f"is missing; add it{describe(path)}")
    else:
        yield Problem(path, str(cause) if cause else _explain(details))


def _explain(details: Mapping[str, Any]) -> str:
    kind, value, limits = details["type"], details["input"], details.get("ctx", {})
    if value is None:
        return "is empty; give it a value or remove it"
    if kind in BOUNDS:
        return BOUNDS[kind].format(**{"ge": 0, **limits, "value": _show(value)})
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f"must be text; put it in quotes: {json.dumps(_show(value))}"
    if kind == "tuple_type" and (entries := _entries(value, details["loc"][-1])):
        return f"must be a list: [{', '.join(entries)}]"
    if kind == "model_type" and (inner := inner_field(details["loc"], value)):
        return f"must be a mapping: {{{inner}: {_show(value)}}}"
    expected = EXPECTED.get(kind, "something else")
    if kind == "literal_error":
        expected = limits["expected"].replace("'", "")
    return f"must be {expected}, not {_show(value)}"


BOUNDS = {
    "finite_number": "must be at least {ge:g}, not {value}",
    "greater_than_equal": "must be at least {ge:g}, not {value}",
    "less_than_equal": "must be at most {le:.0f}, not {value}",
    "string_too_long": "must have at most {max_length} characters; shorten it",
    "too_long": "must have at most {max_length} entries; remove some",
}
EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "invalid_key": "a name",
    "model_type": "a mapping",
    "string_type": "text",
    "too_short": "a list with at least one entry",
    "string_too_short": "some text",
    "tuple_type": "a list",
}


def _show(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _entries(value: object, field: object) -> list[str]:
    """Return the entries of the list that the user means, or none."""
    if isinstance(value, str):
        return _words(value)
    if isinstance(value, dict) and field == "env":
        return [_variable(name, of_name) for name, of_name in value.items()]
    return []


def _variable(name: object, value: object) -> str:
    if isinstance(value, dict):
        return f"{{name: {name}, valueFrom: …}}"
    text = value if isinstance(value, str) else _show(value)
    return f"{{name: {name}, value: {json.dumps(text)}}}"


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
