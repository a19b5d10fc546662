"""The home of a field that is unknown at its path: the object and the name that the user means.

May not: know an error of pydantic.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic import BaseModel

from ddpjob_operator.api.errors.aliases import ALIASES, INNER, canonical
from ddpjob_operator.api.file_metadata import FileMetadata
from ddpjob_operator.api.problem import Path, spell
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.spec.pod.pod_template import CONTAINER_FIELDS, POD_FIELDS, TRAINER

Names = tuple[str, ...]
RENDEZVOUS = ("spec", "rendezvous")  # a pod's field beside the workers' is meant for these
STRONG, WEAK = 0.8, 0.6  # similarity of two names


def explain_unknown(path: Path, value: object) -> str:
    """Return the message about an unknown field, with the remedy."""
    *above, field = path
    key = canonical(str(field))
    if near := neighbour(path):
        return f"unknown field '{field}'; did you mean '{near}'?"
    if alias := ALIASES.get(key):
        is_beside = alias.partition(".")[0] in _beside(path) and above[:1] == ["spec"]
        return (
            f"unknown field '{field}'; use {spell(tuple(above)) if is_beside else 'spec'}.{alias}"
        )
    if not (found := key if key in ELSEWHERE else _match(key, ELSEWHERE, STRONG)):
        return f"unknown field '{field}'; remove it"
    return f"unknown field '{field}' here; {_direct(path, found, value)}"


def neighbour(path: Path) -> str:
    """Return the field beside an unknown one that the user means, or no text."""
    fields, key = _beside(path), canonical(str(path[-1]))
    beside = {canonical(name): name for name in fields}
    if key in beside:
        return beside[key]
    if key in HOMES or (key in IN_POD and "template" in fields):
        return ""
    if alias := ALIASES.get(key):
        return alias if alias in fields else ""
    if strong := _match(key, beside, STRONG):
        return beside[strong]
    if _match(key, ELSEWHERE, STRONG):
        return ""
    return beside.get(_match(key, beside, WEAK), "")


def inner_field(path: Path, value: object) -> str:
    """Return the field of an object that a single value for the whole object means, or no text."""
    inner = "" if isinstance(value, dict | list) else INNER.get(".".join(_plain(path)[1:]), "")
    return inner if inner in FIELDS.get(_plain(path), {}) else ""


def describe(path: Path) -> str:
    """Return the description of a field as the end of a message, or no text."""
    text = _beside(path).get(str(path[-1]), "").partition(".")[0]
    return f": {text[0].lower()}{text[1:]}" if text else ""


def _direct(path: Path, key: str, value: object) -> str:
    """Return the sentence that names the home of a field from elsewhere."""
    if key in HOMES:
        home, name = HOMES[key]
        if inner := inner_field((*home, name), value):
            return f"use {spell((*home, name, inner))}"
        where = spell(home) or "the top level"
    else:
        name, group = IN_POD[key], path[:-1] if "template" in _beside(path) else ("spec",)
        where = spell((*group, "template", "spec"))
        if name not in POD_FIELDS:
            where += f".containers, into the container named {TRAINER}"
    return f"it belongs to {where}" + ("" if name == path[-1] else f" as '{name}'")


def _match(key: str, names: Iterable[str], similarity: float) -> str:
    return next(iter(difflib.get_close_matches(key, names, n=1, cutoff=similarity)), "")


def _beside(path: Path) -> dict[str, str]:
    return FIELDS.get(_plain(path[:-1]), {})


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
# By canonical name: the field's object, the one nearest to the top, and the field's name.
HOMES: dict[str, tuple[Names, str]] = {
    canonical(name): (home, name)
    for home in sorted(FIELDS, key=len, reverse=True)
    if home[:1] != ("status",) and home[:2] != RENDEZVOUS
    for name in FIELDS[home]
}
IN_POD = {canonical(name): name for name in (*CONTAINER_FIELDS, *POD_FIELDS)}
ELSEWHERE = HOMES.keys() | IN_POD.keys()
