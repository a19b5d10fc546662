"""Translates pydantic's validation errors into problems in the terms of a job.

May not: show a message or a URL of pydantic.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from ddpjob_operator.api.errors.aliases import ALIASES, canonical
from ddpjob_operator.api.file_metadata import FileMetadata
from ddpjob_operator.api.problem import InvalidError, Path, Problem, spell
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.spec.pod.pod_template import CONTAINER_FIELDS, POD_FIELDS, TRAINER

Names = tuple[str, ...]
UNKNOWN = "extra_forbidden"
OF_KEY = "[key]"  # pydantic's last part of the path of a key


def explain_errors(error: ValidationError, *at: str) -> tuple[Problem, ...]:
    """Return every problem of a failed validation of a DDPJob, or of its part, in pydantic's order."""
    errors: list[dict[str, Any]] = [
        {**details, "loc": (*at, *details["loc"])} for details in error.errors()
    ]
    unknown = {e["loc"]: _neighbour(e["loc"]) for e in errors if e["type"] == UNKNOWN}
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
        yield Problem(path, _unknown(path))
    elif details["type"] == "missing":
        yield Problem(path, f"is missing; add it{_description(path)}")
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
    if kind == "literal_error":
        return f"must be {limits['expected'].replace(chr(39), '')}, not {_show(value)}"
    return f"must be {EXPECTED.get(kind, 'something else')}, not {_show(value)}"


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


# --- fields of the resource ----------------------------------------------------------------------


def _unknown(path: Path) -> str:
    field = str(path[-1])
    if where := _home_in_pod(path):
        return f"unknown field '{field}' here; it belongs to {where}"
    if near := _neighbour(path):
        return f"unknown field '{field}'; did you mean '{near}'?"
    if (home := _home(field)) is not None:
        return f"unknown field '{field}' here; it belongs to {spell(home) or 'the top level'}"
    if alias := ALIASES.get(canonical(field)):
        return f"unknown field '{field}'; use spec.{alias}"
    return f"unknown field '{field}'; remove it"


def _home_in_pod(path: Path) -> str:
    """Return the part of a group's template to which a field of a pod belongs, or no text."""
    *above, field = path
    if "template" not in FIELDS.get(_plain(tuple(above)), {}) or _is_known(str(field)):
        return ""
    pod = spell((*above, "template", "spec"))
    if field in CONTAINER_FIELDS:
        return f"{pod}.containers, into the container named {TRAINER}"
    return pod if field in POD_FIELDS else ""


def _is_known(field: str) -> bool:
    return any(field in fields for home, fields in FIELDS.items() if home[:1] == ("spec",))


def _neighbour(path: Path) -> str:
    """Return the field beside an unknown one that the user means, or no text."""
    fields, field = FIELDS.get(_plain(path[:-1]), {}), str(path[-1])
    spelled = {canonical(name): name for name in fields}
    if canonical(field) in spelled:
        return spelled[canonical(field)]
    if _home(field) is not None:
        return ""
    if alias := ALIASES.get(canonical(field)):
        return alias if alias in fields else ""
    matches = difflib.get_close_matches(field, fields, n=1)
    return matches[0] if matches else ""


def _home(field: str) -> Names | None:
    """Return the path of the object that has a field of this name, or None."""
    homes = [home for home, fields in FIELDS.items() if field in fields and home[:1] != ("status",)]
    return min(homes, key=len, default=None)


def _description(path: Path) -> str:
    text = FIELDS.get(_plain(path[:-1]), {}).get(str(path[-1]), "").partition(".")[0]
    return f": {text[0].lower()}{text[1:]}" if text else ""


def _plain(path: Path) -> Names:
    return tuple(part for part in path if isinstance(part, str))


def _fields(model: type[BaseModel], at: Names) -> Iterator[tuple[Names, dict[str, str]]]:
    named = {field.alias or name: field for name, field in model.model_fields.items()}
    yield at, {name: field.description or "" for name, field in named.items()}
    for name, field in named.items():
        for inner in _models(field.annotation):
            yield from _fields(inner, (*at, name))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


FIELDS: dict[Names, dict[str, str]] = {
    **dict(_fields(DDPJob, ())),
    **dict(_fields(FileMetadata, ("metadata",))),
}
