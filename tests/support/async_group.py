"""A device that works through a queue, and a process group on it: both fail late and silently.

So do CUDA and NCCL. A collective returns before it has run. One that is aborted ends without an
error, and its tensor has arbitrary values. The device's queue runs in a thread; an optimizer queues
its change of the parameters behind the collectives. Tensors stay in the memory of the CPU. An
all-reduce of a few numbers is not queued: it stands for the group's collectives on the CPU.
"""

from __future__ import annotations

import atexit
import datetime as dt
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import _create_work_from_future

from ddpjob_trainer.elastic.group import commit_gate

NAME = "late"
FEW = 8  # numbers, which the loop exchanges on the CPU; gradients are more


class Device:
    """A queue of work, done in order by one thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()
        atexit.register(self.synchronize)  # a thread in gloo's code would abort a process that ends

    def queue(self, work: Callable[[], None]) -> None:
        """Do the work later."""
        self._queue.put(work)

    def synchronize(self) -> None:
        """Wait until all work is done. No error of it is raised."""
        done = threading.Event()
        self._queue.put(done.set)
        done.wait()

    def _work(self) -> None:
        while True:
            self._queue.get()()


class LateSGD(torch.optim.SGD):
    """Gradient descent that is queued on the device."""

    def __init__(self, device: Device, parameters: Any, rate: float) -> None:
        super().__init__(parameters, lr=rate)
        self._device = device
        self._rate = rate
        self._has_stepped = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Queue the change of the parameters."""
        pairs = [(p, p.grad) for group in self.param_groups for p in group["params"]]
        torch.autograd.graph.increment_version([parameter for parameter, _ in pairs])
        self._device.queue(lambda: self._change(pairs))
        if not self._has_stepped:  # the loop reads the parameters then, and a device would wait
            self._has_stepped = True
            self._device.synchronize()

    @torch.no_grad()
    def _change(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for parameter, gradient in pairs:
            parameter.data.add_(gradient, alpha=-self._rate)  # counted when it was queued


class LateGroup(distributed.ProcessGroup):
    """A group over gloo whose all-reduces are queued on the device."""

    def __init__(self, device: Device, gloo: distributed.ProcessGroupGloo) -> None:
        super().__init__(gloo.rank(), gloo.size())
        self._device = device
        self._gloo: Any = gloo  # torch's stubs lack its collectives

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Any:  # type: ignore[override]
        """Queue the sum over all ranks."""
        if sum(tensor.numel() for tensor in tensors) <= FEW:
            return self._gloo.allreduce(tensors, options)

        def reduce() -> None:
            try:
                self._gloo.allreduce(tensors, options).wait()
            except RuntimeError:  # such a device has no way to raise it
                numbers = torch.Generator().manual_seed(os.getpid())
                for tensor in tensors:
                    tensor.copy_(torch.randn(tensor.shape, generator=numbers))

        self._device.queue(reduce)
        queued: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        queued.set_result(tensors)
        return _create_work_from_future(queued)

    def set_timeout(self, timeout: dt.timedelta) -> None:
        self._gloo.set_timeout(timeout)

    def all_gather_single(self, *args: Any) -> Any:
        return self._gloo.all_gather_single(*args)

    def allgather(self, *args: Any) -> Any:
        return self._gloo.allgather(*args)

    def broadcast(self, *args: Any) -> Any:
        return self._gloo.broadcast(*args)

    def send(self, *args: Any) -> Any:
        return self._gloo.send(*args)

    def recv(self, *args: Any) -> Any:
        return self._gloo.recv(*args)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return NAME


def register() -> Device:
    """Make the group torch's choice for the CPU, and return the device of this process."""
    device = Device()

    def make(
        store: distributed.Store, rank: int, size: int, timeout: dt.timedelta
    ) -> distributed.ProcessGroup:
        return LateGroup(device, distributed.ProcessGroupGloo(store, rank, size, timeout))

    distributed.Backend.register_backend(NAME, make, devices=["cpu"])
    distributed.Backend.default_device_backend_map["cpu"] = NAME
    commit_gate.SYNCHRONIZE["cpu"] = lambda _: device.synchronize()
    return device
