"""The order of an optimizer's parameters: a sharded load follows the parameters' names."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ddpjob_trainer.tensors import parameter_names, wrappers
from ddpjob_trainer.tensors.training_state import StateMismatchError

if TYPE_CHECKING:
    import torch


def by_name(
    state: dict[str, Any], model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]
) -> list[dict[str, Any]]:
    """Bring the optimizers of a saved state into the script's order, in `state`, and return them.

    Raise StateMismatchError if the script has other parameters or groups.
    """
    is_list = isinstance(state["optimizer"], list)
    saved: list[dict[str, Any]] = state["optimizer"] if is_list else [state["optimizer"]]
    own = parameter_names.names_in(wrappers.unwrap_model(model), optimizers)
    if len(saved) != len(own):
        raise StateMismatchError(f"it has {len(saved)} optimizers, the script has {len(own)}")
    ordered = [_order(*each) for each in zip(saved, state["parameters"], own, strict=True)]
    state["optimizer"] = ordered if is_list else ordered[0]
    state["parameters"] = own
    return ordered


def _order(
    optimizer: dict[str, Any], saved: list[list[str | None]], own: list[list[str | None]]
) -> dict[str, Any]:
    """Return an optimizer's state with its groups and their parameters in the order of `own`."""
    if None in itertools.chain(*saved, *own):  # a parameter outside of the model has no name
        if [*map(len, saved)] == [*map(len, own)]:
            return optimizer
        raise StateMismatchError("its optimizer has other groups of parameters than the script's")
    groups = {
        frozenset(names): (group, dict(zip(names, group["params"], strict=True)))
        for names, group in zip(saved, optimizer["param_groups"], strict=True)
    }
    ordered = []
    for names in own:
        if frozenset(names) not in groups:
            differing = {*itertools.chain(*saved)} ^ {*itertools.chain(*own)} or {*names}
            raise StateMismatchError(
                "its optimizer has other parameters or groups of parameters than the script's: "
                + ", ".join(sorted(map(str, differing))[:5])
            )
        group, numbers = groups[frozenset(names)]
        ordered.append({**group, "params": [numbers[name] for name in names]})
    return {**optimizer, "param_groups": ordered}
