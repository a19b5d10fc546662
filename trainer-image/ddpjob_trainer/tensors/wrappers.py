"""Objects inside of wrappers: DDP, torch.compile, Accelerate and Fabric.

A snapshot holds the state of the inner objects, under the names that they have without wrappers. So
a compiled model's snapshot loads into a plain model, and the reverse. May not: know of files.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBRARIES = ("accelerate.", "lightning_fabric.", "lightning.fabric.")
_PARTS = ("optimizer", "_optimizer", "scheduler")  # attributes of these libraries' wrappers


def unwrap(part: Any) -> Any:
    """Return the optimizer or scheduler inside of a library's wrappers.

    A list gives a list, and a list of one gives its element.
    """
    if isinstance(part, (list, tuple)):
        inner = [unwrap(each) for each in part]
        return inner[0] if len(inner) == 1 else inner
    while _is_of_library(part):
        found = next((vars(part)[name] for name in _PARTS if name in vars(part)), None)
        if found is None:
            return part
        part = found
    return part


def unwrap_model(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside of the wrappers around it."""
    while (name := _inner_of(model)) is not None:
        model = getattr(model, name)
    return model


def cleaner(model: torch.nn.Module) -> Callable[[str], str]:
    """Return a function from a name in the model to the name without wrappers inside of it."""
    inner = {
        f"{prefix}.{name}": prefix
        for prefix, module in model.named_modules(remove_duplicate=False)
        if prefix and (name := _inner_of(module)) is not None
    }
    from_the_deepest = sorted(inner.items(), key=lambda each: -len(each[0]))

    def clean(name: str) -> str:
        for wrapped, plain in from_the_deepest:
            if name == wrapped or name.startswith(f"{wrapped}."):
                name = plain + name[len(wrapped) :]
        return name

    return clean


def _inner_of(module: torch.nn.Module) -> str | None:
    """Return the name of the child that a wrapper wraps; None if the module is not a wrapper."""
    if isinstance(module, (DistributedDataParallel, DataParallel)):
        return "module"
    compiled = sys.modules.get("torch._dynamo.eval_frame")
    if compiled is not None and isinstance(module, compiled.OptimizedModule):
        return "_orig_mod"
    return (
        "_original_module"
        if _is_of_library(module) and "_original_module" in vars(module)["_modules"]
        else None
    )


def _is_of_library(part: Any) -> bool:
    return any(kind.__module__.startswith(_LIBRARIES) for kind in type(part).__mro__)
