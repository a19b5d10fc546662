"""The names of an optimizer's parameters, in the order by which torch restores its state.

torch restores by position. After a change of the order, each state would belong to another
parameter, and only a difference of shapes would show it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddpjob_trainer.tensors import wrappers

if TYPE_CHECKING:
    import torch

Names = list[list[list[str | None]]]


def names_in(model: torch.nn.Module, optimizer: Any) -> Names:
    """Return the names by optimizer, group and position; None: the model has no such parameter."""
    clean = wrappers.cleaner(model)
    names = {id(each): clean(name) for name, each in model.named_parameters()}
    optimizers = optimizer if isinstance(optimizer, list) else [optimizer]
    return [
        [[names.get(id(each)) for each in group["params"]] for group in one.param_groups]
        for one in optimizers
        if hasattr(one, "param_groups")
    ]


def difference(was: Any, now: Names) -> str:
    """Return the first difference as a sentence; empty if there is none.

    `was` is from a snapshot. Raise TypeError if it is not a result of names_in().
    """
    old, new = _listed(was), _listed(now)
    for position, (before, after) in enumerate(zip(old, new, strict=False)):
        if before != after:
            return (
                f"parameter {position} of its optimizer was {_text(before)}, the script's is "
                f"{_text(after)}, so the optimizer's state would go to other parameters. Give the "
                "optimizer the same parameters in the same order and groups"
            )
    if len(old) != len(new):
        return f"its optimizer had {len(old)} parameters, the script's has {len(new)}"
    return ""


def _listed(names: Any) -> list[tuple[int, int, str | None]]:
    return [
        (number, position, name)
        for number, groups in enumerate(names)
        for position, group in enumerate(groups)
        for name in group
    ]


def _text(parameter: tuple[int, int, str | None]) -> str:
    _, group, name = parameter
    return f"{name or 'one outside of the model'} in group {group}"
