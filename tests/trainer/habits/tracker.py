"""The experiment tracker of the scripts: `watch` models, `log` each step.

The test reads what is logged, answers each call, and may let the process end or pause in the middle
of a later step: at a backward, or before or after an optimizer's step.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

_models: list[torch.nn.Module] = []
_order: dict[str, Any] = {"what": "", "after": 0}
_agent: Any = None


def watch(*models: torch.nn.Module) -> None:
    """Log the parameters of these models with each step."""
    global _agent  # noqa: PLW0603 - one connection for each process
    _models.extend(models)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.environ["TRACKER"])
    _agent = connection.makefile("rw")
    backward = torch.autograd.backward

    def counted(*arguments: Any, **options: Any) -> None:
        _pass_point()
        backward(*arguments, **options)

    torch.autograd.backward = counted
    register_optimizer_step_pre_hook(lambda *_: _pass_point())
    register_optimizer_step_post_hook(lambda *_: _pass_point())


def log(step: int, loss: float = 0.0, samples: int = 1) -> None:
    """Log the loss of this process after `step` steps."""
    tensors = [tensor.detach() for model in _models for tensor in model.parameters()]
    norm = float(sum(tensor.double().abs().sum() for tensor in tensors))
    digest = hashlib.sha256(b"".join(t.contiguous().cpu().numpy().tobytes() for t in tensors))
    waits = step % int(os.environ["TRACKER_EVERY"]) == 0
    answer = _ask(
        waits=waits,
        step=step,
        membership=os.environ.get("DDPJOB_MEMBERSHIP", "1.1.0"),
        rank=int(os.environ.get("RANK", "0")),
        world=int(os.environ.get("WORLD_SIZE", "1")),
        loss=float(loss),
        samples=samples,
        norm=norm,
        digest=digest.hexdigest()[:16],
    )
    if answer["what"]:
        _order.update(answer)


def _pass_point() -> None:
    """Do what the test has ordered, at the point that it has chosen."""
    if not _order["what"]:
        return
    _order["after"] -= 1
    if _order["after"] > 0:
        return
    if _order["what"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    _order["what"] = ""
    _ask(waits=True, paused=True)


def _ask(*, waits: bool, **facts: Any) -> Any:
    _agent.write(json.dumps({"pid": os.getpid(), "waits": waits, **facts}) + "\n")
    _agent.flush()
    return json.loads(_agent.readline()) if waits else {"what": ""}
