"""The check that a list of optimizers fits a model, before training begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


def check_optimizers(
    model: torch.nn.Module, given: Any, optimizers: Sequence[torch.optim.Optimizer]
) -> None:
    """Raise TypeError or ValueError unless these are optimizers of the model's parameters."""
    count = len(given) if isinstance(given, (list, tuple)) else 1
    if len(optimizers) != count or not optimizers:
        raise TypeError(
            "a Loop needs a torch.optim.Optimizer, or a list of them: it must see when the optimizer "
            f"steps; the given value is {given!r}"
        )
    if len(set(optimizers)) != count:
        raise ValueError("the list of optimizers has one of them twice")
    mine = set(map(id, model.parameters()))
    for number, optimizer in enumerate(optimizers):
        if any(
            id(each) not in mine for group in optimizer.param_groups for each in group["params"]
        ):
            raise ValueError(
                f"optimizer {number} ({type(optimizer).__name__}) has parameters that the model does not "
                "have: no gradients of them would be exchanged, and processes that join would not get "
                "them. Give the Loop one module with all of them: "
                'Loop(nn.ModuleDict({"generator": g, "critic": c}), [optimizer_g, optimizer_c], ...)'
            )
