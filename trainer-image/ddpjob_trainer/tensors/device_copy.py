"""Copies from accelerators into host memory, on a stream of their own.

A copy waits for what the training's stream had queued when a mark was made, and for nothing later.
So it runs beside the training, and does not wait behind a collective that hangs. The bytes pass
through two pinned blocks of fixed size: the pinned allocator rounds sizes up to a power of two, so
a pinned block for a whole state could take twice its size. Devices without an entry in
ACCELERATORS, such as the CPU, need none of this.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

BLOCK_BYTES = 8 << 20  # of each of the two pinned blocks


class Accelerator(Protocol):
    """The operations of a device that a copy needs."""

    def mark(self) -> Any:
        """Return a mark of all that this thread's current stream has queued so far."""

    def wait(self, mark: Any) -> None:
        """Block this thread until the marked work is done."""

    def copying(self, after: Any) -> contextlib.AbstractContextManager[None]:
        """Let this thread queue its work on the copy stream, behind a mark, and wait at the end."""

    def pin(self, size: int) -> torch.Tensor:
        """Return pinned host memory of `size` bytes."""


class CudaAccelerator:
    """One GPU and its copy stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def mark(self) -> torch.cuda.Event:
        """Record an event on the current stream."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait(self, mark: torch.cuda.Event) -> None:
        """Wait on the host for an event."""
        mark.synchronize()

    @contextlib.contextmanager
    def copying(self, after: torch.cuda.Event) -> Iterator[None]:
        """Make the copy stream current, behind an event; synchronize it at the end."""
        self._stream.wait_event(after)
        with torch.cuda.stream(self._stream):
            yield
            self._stream.synchronize()

    def pin(self, size: int) -> torch.Tensor:
        """Allocate pinned memory."""
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)


# Type of device → the object for one device of that type.
ACCELERATORS: dict[str, Callable[[torch.device], Accelerator]] = {"cuda": CudaAccelerator}


class DeviceCopier:
    """The copies of one device; several threads may copy, one after the other."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self._lock = threading.Lock()
        self._blocks: list[torch.Tensor] = []

    def copy(self, source: torch.Tensor, target: torch.Tensor, after: Any) -> None:
        """Copy a tensor's bytes, as they are behind a mark, into host memory of equal size."""
        with self._lock, self.accelerator.copying(after):
            if not self._blocks:
                self._blocks = [self.accelerator.pin(BLOCK_BYTES) for _ in range(2)]
            self._copy_in_blocks(bytes_of(source), target)

    def _copy_in_blocks(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Move one block to the target while the device fills the other block."""
        filling: tuple[torch.Tensor, torch.Tensor, Any] | None = None
        parts = zip(source.split(BLOCK_BYTES), target.split(BLOCK_BYTES), strict=True)
        for number, (part, place) in enumerate(parts):
            block = self._blocks[number % 2][: part.numel()]
            block.copy_(part, non_blocking=True)
            filled = (place, block, self.accelerator.mark())
            self._move(filling)
            filling = filled
        self._move(filling)

    def _move(self, filling: tuple[torch.Tensor, torch.Tensor, Any] | None) -> None:
        if filling is not None:
            place, block, mark = filling
            self.accelerator.wait(mark)
            place.copy_(block)


class StreamMarks:
    """Marks of the current stream of each accelerator that has one of these tensors."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        devices = {tensor.device for tensor in tensors if tensor.device.type in ACCELERATORS}
        self._marks = {device: _copier(device).accelerator.mark() for device in devices}

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy a tensor's bytes, as they were at the marks, into host memory of equal size."""
        mark = self._marks.get(source.device)
        if mark is None:
            target.view(source.dtype).view(source.shape).copy_(source)
        else:
            _copier(source.device).copy(source, target, mark)

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Let this thread queue its work on the copy streams, behind the marks."""
        with contextlib.ExitStack() as streams:
            for device, mark in self._marks.items():
                streams.enter_context(_copier(device).accelerator.copying(mark))
            yield


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, in its memory if possible."""
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


@functools.cache
def _copier(device: torch.device) -> DeviceCopier:
    return DeviceCopier(ACCELERATORS[device.type](device))
