"""Requests and limits of a worker: names of resources, and quantities.

The API server reads a quantity as an integer or as text. A number with a fraction, such as 0.5
without quotes, is valid for the model, because `ddpjob apply` sends it as text.

May not: know a GPU; `worker_groups` counts them.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

from annotated_types import MaxLen
from pydantic import Field, SkipValidation

from ddpjob_operator.api.base import Model
from ddpjob_operator.api.rule import Rule

MAX_RESOURCES = 32
QUANTITY = re.compile(r"[+]?([0-9]+([.][0-9]*)?|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
UNITS = {
    **{f"{prefix}i": decimal.Decimal(1024**n) for n, prefix in enumerate("KMGTPE", 1)},
    **{prefix: decimal.Decimal(1000) ** n for n, prefix in enumerate("num", -3)},
    **{prefix: decimal.Decimal(1000) ** n for n, prefix in enumerate("kMGTPE", 1)},
}
LENIENT = decimal.Context(traps=[])  # a number out of range is not an error
NATIVE = ("cpu", "memory", "ephemeral-storage")
NATIVE_PREFIX = "hugepages-"


def _is_quantity(value: object) -> bool:
    if isinstance(value, str):
        return QUANTITY.fullmatch(value) is not None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < math.inf


def _show(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _unknown(resources: Mapping[str, Any]) -> str:
    return next((name for name in resources if not _is_known(name)), "")


def _is_known(name: str) -> bool:
    return name in NATIVE or name.startswith(NATIVE_PREFIX) or "/" in name


def _divided(resources: Mapping[str, Any]) -> str:
    """Return the first resource of a maker whose amount is not a whole number, or not text."""
    of_makers = ((name, amount) for name, amount in resources.items() if "/" in name)
    return next((name for name, amount in of_makers if not _is_whole(str(amount))), "")


def _is_whole(quantity: str) -> bool:
    amount = _amount(quantity)
    return amount == amount.to_integral_value(context=LENIENT)


def _amount(quantity: str) -> decimal.Decimal:
    unit = next((unit for unit in UNITS if quantity.endswith(unit)), "")
    number = LENIENT.create_decimal(quantity.removesuffix(unit))
    return LENIENT.multiply(number, UNITS.get(unit, decimal.Decimal(1)))


def whole_amount(quantity: object) -> int | None:
    """Return the amount of a quantity such as 1Gi, rounded down; None if it is none."""
    if not _is_quantity(quantity):
        return None
    amount = _amount(str(quantity))
    return int(amount) if amount.is_finite() else None


IS_QUANTITY = Rule(  # the CRD has a pattern: CEL does not know how long the text may be
    message='must be a quantity, such as 4, "0.5", 500m or 10Gi, not %s',
    values=((_show, ""),),
    check=_is_quantity,
)
IS_KNOWN = f"name in {list(NATIVE)} || name.startsWith('{NATIVE_PREFIX}') || name.contains('/')"
KNOWN = Rule(
    message="'%s' is not a resource of Kubernetes; use cpu, memory or ephemeral-storage, or a name with "
    "its maker, as in nvidia.com/gpu",
    values=((_unknown, f"self.filter(name, !({IS_KNOWN}))[0]"),),
    check=lambda resources: not _unknown(resources),
    cel=f"self.all(name, {IS_KNOWN})",
)
WHOLE = Rule(  # CEL does not know how long the text may be
    message="must have a whole number of %s, not %s",
    values=((_divided, ""), (lambda resources: resources[_divided(resources)], "")),
    check=lambda resources: not _divided(resources),
)
Quantity = Annotated[
    int | float | str,
    SkipValidation,
    IS_QUANTITY,
    Field(json_schema_extra={"pattern": f"^{QUANTITY.pattern}$", "minimum": 0}),
]
Quantities = Annotated[dict[str, Quantity], MaxLen(MAX_RESOURCES), KNOWN, WHOLE]


class Resources(Model):
    """Requests and limits of the trainer container, as in a pod."""

    limits: Quantities | None = Field(default=None, description="Maximum that a worker may use.")
    requests: Quantities | None = Field(
        default=None, description="Amount that a node must have free for a worker."
    )
