"""Finds quantities that lack quotes: YAML reads 0.5 as a number, and the API server takes text.

kubectl sends such a number, and the API server rejects it. `ddpjob apply` sends text.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from ddpjob_operator.api.problem import Path, Problem

Data = dict[str, Any]


def find_unquoted(data: Data) -> Iterator[Problem]:
    """Yield each number with a fraction in the resources of a valid job."""
    for path, amounts in _resources(data):
        for name, value in amounts.items():
            if _is_fraction(value):
                message = (
                    f'is {value} without quotes, which only `ddpjob apply` accepts; write "{value}" '
                    "for kubectl"
                )
                yield Problem((*path, name), message)


def quote(data: Data) -> Data:
    """Return the data of a valid job with each such number as text."""
    quoted = copy.deepcopy(data)
    for _, amounts in _resources(quoted):
        amounts.update({name: str(v) for name, v in amounts.items() if _is_fraction(v)})
    return quoted


def _is_fraction(value: object) -> bool:
    return isinstance(value, float) and not value.is_integer()


def _resources(data: Data) -> Iterator[tuple[Path, Data]]:
    spec = data["spec"]
    groups = enumerate(spec.get("extraWorkerGroups", ()))
    owners: list[tuple[Path, Data]] = [(("spec",), spec)]
    owners += [(("spec", "extraWorkerGroups", i), group) for i, group in groups]
    for path, owner in owners:
        for part in ("limits", "requests"):
            if amounts := owner.get("resources", {}).get(part):
                yield (*path, "resources", part), amounts
