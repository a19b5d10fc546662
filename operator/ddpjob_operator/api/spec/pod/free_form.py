"""The type of a field that Kubernetes validates, as in a pod: a mapping of any form, of bounded depth.

The API server stores 10,000 levels; no pod has 100. Deeper values would end each later step, all of
which call themselves for each level.
May not: know the field.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator

from ddpjob_operator.api.constants import MAX_DEPTH


def is_deep(value: object, levels: int = MAX_DEPTH) -> bool:
    """Return whether a value has more levels of mappings and lists; accept any depth."""
    level: list[Any] = [value]
    for _ in range(levels + 1):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def _bounded(value: dict[str, Any]) -> dict[str, Any]:
    if is_deep(value):
        raise ValueError(f"has more than {MAX_DEPTH} levels; nest it less deeply")
    return value


FreeForm = Annotated[dict[str, Any], AfterValidator(_bounded)]
