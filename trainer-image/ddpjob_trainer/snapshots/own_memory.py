"""The memory of the script's model, for a load that needs no second copy of the weights.

A reader fills the tensors of the model itself. So a load that fails may leave a part of a snapshot
in the model. May not: know of files or ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ddpjob_trainer.tensors import serialization, training_state, wrappers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ddpjob_trainer.tensors.safetensors_reader import TensorSpec


class OwnMemory:
    """The tensors of one model, as targets of a read."""

    def __init__(self, model: torch.nn.Module, parts: dict[str, Any]) -> None:
        self._model = model
        self._parts = parts
        self.is_overwritten = False  # a read may have changed the model

    def choose(
        self, nodes: Mapping[str, Any], specs: Iterable[TensorSpec]
    ) -> dict[str, torch.Tensor]:
        """Return the model's own tensors for an encoded state, by the names of the saved tensors.

        Return none if the state is not of this script, or if the model has code of its own for
        loads, which may rename or convert tensors. Raise ValueError or KeyError for other nodes.
        """
        kinds = {name: serialization.restore(nodes[name], {}) for name in ("types", "parameters")}
        try:
            training_state.check_kinds(kinds, self._model, self._parts)
        except training_state.StateMismatchError:
            return {}
        if not _loads_plainly(wrappers.unwrap_model(self._model)):
            return {}
        own = training_state.collect(self._model, None)["model"]
        saved = {each.name: each for each in specs}
        found: dict[str, torch.Tensor] = {}
        taken: set[int] = set()
        for name, node in nodes["model"]["dict"]:
            spec = (
                saved.get(node["tensor"]) if isinstance(node, dict) and "tensor" in node else None
            )
            tensor = own.get(name)
            if spec is None or spec.name in found or not _is_memory_for(spec, tensor):
                continue
            if tensor.data_ptr() not in taken:
                taken.add(tensor.data_ptr())
                found[spec.name] = tensor
        self.is_overwritten |= bool(found)
        return found


def _is_memory_for(spec: TensorSpec, tensor: Any) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.numel() > 0
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
        and (tensor.dtype, tuple(tensor.shape)) == spec[1:]
    )


def _loads_plainly(model: torch.nn.Module) -> bool:
    """Return whether only torch's own code loads the model's state."""
    return all(
        type(each).load_state_dict is torch.nn.Module.load_state_dict
        and type(each)._load_from_state_dict.__module__.startswith("torch.")  # noqa: SLF001
        and not each._load_state_dict_pre_hooks  # noqa: SLF001
        and not each._state_dict_hooks  # noqa: SLF001
        for each in model.modules()
    )
