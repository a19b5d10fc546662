"""Pieces of CEL, the language in which the API server reads the rules of a job."""

from __future__ import annotations

import re

GROUPS = "extraWorkerGroups"


def groups(spec: str) -> str:
    """Return CEL for the extra groups of a spec."""
    return f"(has({spec}.{GROUPS}) ? {spec}.{GROUPS} : [])"


def paused(spec: str) -> str:
    """Return CEL for a job that is suspended or scaled to zero."""
    none = f"{spec}.replicas == 0 && {groups(spec)}.all(each, each.replicas == 0)"
    return f"((has({spec}.suspend) && {spec}.suspend) || ({none}))"


def given(field: str) -> str:
    """Return CEL for a list that has entries."""
    return f"(has({field}) && size({field}) > 0)"


def is_one_of(field: str, *values: str) -> str:
    """Return CEL for an optional field that has one of the values."""
    return f"(has({field}) && {field} in [{', '.join(map(repr, values))}])"


def matches(value: str, pattern: re.Pattern[str]) -> str:
    """Return CEL for a text that matches the pattern as a whole."""
    return f"{value}.matches('^{pattern.pattern}$')"


def finds(value: str, pattern: str) -> str:
    """Return CEL for a text in which the pattern occurs."""
    return f"{value}.matches(r'{pattern}')"
