"""Restores the state that all ranks have read into the script's objects, and the random states."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.tensors import rng_state, training_state

if TYPE_CHECKING:
    import torch

    from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage

_log = logging.getLogger("ddpjob")


def restore(
    content: dict[str, Any],
    model: torch.nn.Module,
    parts: dict[str, Any],
    *,
    rank: int,
    storage: SnapshotStorage,
    step: int,
) -> None:
    """Restore the content of the snapshot of this step. Raise SnapshotError if it does not fit.

    Rank 0 continues with the saved random state; the other ranks derive theirs from that state.
    """
    name = storage.name(step)
    try:
        training_state.restore(content, model, **parts)
        if "random" in content:
            _restore_random(rng_state.from_plain(content["random"]), rank)
    except training_state.StateMismatchError as error:
        raise misfit(name, error, storage.how_to_reset) from error
    if parts.get("optimizer") is not None:
        for each in ("scheduler", "scaler", "data"):
            if each in content["types"] and parts.get(each) is None:
                _log.warning(
                    "%s has a state of `%s` (%s), which load() was not given, so it "
                    "starts from its beginning. Call load(..., %s=...).", name, each, content["types"][each], each,
                )  # fmt: skip


def misfit(name: str, error: Exception, how_to_reset: str) -> SnapshotError:
    """Return the error for a script that does not fit the snapshot `name`."""
    return SnapshotError(
        f"The script does not fit the snapshot {name}: {error}\n"
        f"To resume, run the script that saved it. To start over: {how_to_reset}"
    )


def _restore_random(found: dict[str, Any], rank: int) -> None:
    if rank:
        rng_state.draw_from(found["torch"], rank)
        return
    try:
        rng_state.set_state(found)
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise training_state.StateMismatchError(f"its random states: {error}") from error
