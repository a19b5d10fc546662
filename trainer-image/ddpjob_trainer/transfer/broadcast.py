"""Sends a state from one rank to others: an outline first, then tensor by tensor.

The sender may start before it has the complete state. Values are encoded as in a snapshot: JSON and
tensors. May not: know the states of the ranks.
"""

from __future__ import annotations

import collections
import contextlib
import json
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from ddpjob_trainer.tensors import serialization
from ddpjob_trainer.tensors.device_copy import bytes_of
from ddpjob_trainer.tensors.safetensors_reader import TensorSpec, memory_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    ChooseMemory = Callable[[Mapping[str, Any], Sequence[TensorSpec]], Mapping[str, torch.Tensor]]

PACK_BYTES = 1 << 20  # smaller tensors are sent together
MAX_IN_FLIGHT = 8  # packs in flight, before the sender waits for the first one


class StateSender:
    """A sender of one state to ranks that call receive_state(). Methods may raise RuntimeError."""

    def __init__(self, targets: Sequence[int], device: torch.device) -> None:
        self._targets = targets
        self._device = device
        self._outlines: Sequence[TensorSpec] = ()
        self._ends: list[int] = []  # ends of packs, as numbers of tensors
        self._waiting: list[torch.Tensor] = []
        self._count = 0
        self._works: collections.deque[Any] = collections.deque()
        self.has_begun = False

    def begin(self, node: Any, outlines: Sequence[TensorSpec]) -> None:
        """Send the state as JSON, with the outlines of its tensors in order."""
        self.has_begun, self._outlines = True, outlines
        self._ends = [end for _, end in _packs([each.size for each in outlines])]
        shapes = [(each.name, str(each.kind)[6:], each.shape) for each in outlines]
        self._send_head(json.dumps([node, shapes]).encode())

    def add(self, tensor: torch.Tensor) -> None:
        """Add the next tensor."""
        self._waiting.append(bytes_of(tensor))
        self._count += 1
        if self._ends and self._count == self._ends[0]:
            del self._ends[0]
            parts, self._waiting = self._waiting, []
            self._send(joined(parts, self._device))

    def send_state(self, state: Any) -> None:
        """Send a complete state."""
        node, tensors = serialization.flatten(state)
        self.begin(node, [TensorSpec(n, t.dtype, tuple(t.shape)) for n, t in tensors.items()])
        for tensor in tensors.values():
            self.add(tensor)

    def end(self) -> None:
        """Finish sending; send zeros for missing tensors.

        The receivers learn by other means that such a state is invalid.
        """
        if not self.has_begun:
            self._send_head(b"")
        for outline in self._outlines[self._count :]:
            self.add(torch.zeros(outline.shape, dtype=outline.kind, device="cpu"))
        while self._works:
            self._works.popleft().wait()

    def _send_head(self, text: bytes) -> None:
        self._send(torch.tensor([len(text)], device="cpu"))
        if text:
            self._send(torch.frombuffer(bytearray(text), dtype=torch.uint8))

    def _send(self, pack: torch.Tensor) -> None:
        pack = pack.to(self._device)
        for target in self._targets:
            self._works.append(distributed.isend(pack, target))
        while len(self._works) > MAX_IN_FLIGHT * len(self._targets):
            self._works.popleft().wait()


def receive_state(source: int, device: torch.device, choose: ChooseMemory | None = None) -> Any:
    """Return the state of a StateSender; None if the sender has none, or the state is invalid.

    `choose` returns memory for some of the tensors, for an encoded state and their outlines.
    """
    size = torch.zeros(1, dtype=torch.int64, device=device)
    distributed.recv(size, source)
    if not int(size):
        return None
    head = torch.zeros(int(size), dtype=torch.uint8, device=device)
    distributed.recv(head, source)
    node, shapes = json.loads(bytes(head.cpu().numpy()))
    specs = [TensorSpec(name, getattr(torch, kind), tuple(shape)) for name, kind, shape in shapes]
    memory = None
    if choose is not None:
        with contextlib.suppress(KeyError, TypeError, ValueError):  # an odd state is received, too
            memory = choose(dict(node["dict"]), specs)
    tensors = {each.name: memory_for(each, memory) for each in specs}
    parts = [bytes_of(tensor) for tensor in tensors.values()]
    for first, last in _packs([part.numel() for part in parts]):
        if last - first == 1 and device.type == "cpu":
            distributed.recv(parts[first], source)
            continue
        sizes = [part.numel() for part in parts[first:last]]
        pack = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        distributed.recv(pack, source)
        for part, piece in zip(parts[first:last], pack.cpu().split(sizes), strict=True):
            part.copy_(piece)
    try:
        return serialization.restore(node, tensors)
    except (KeyError, TypeError, ValueError):
        return None


def joined(parts: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Join flat tensors of any devices on this one, with one copy from each other device."""
    if len(parts) == 1:
        return parts[0].to(device)
    moved: list[torch.Tensor] = [*parts]
    for other in {part.device for part in parts} - {device}:
        numbers = [number for number, part in enumerate(parts) if part.device == other]
        pieces = torch.cat([parts[number] for number in numbers]).to(device)
        sizes = [parts[number].numel() for number in numbers]
        for number, piece in zip(numbers, pieces.split(sizes), strict=True):
            moved[number] = piece
    return torch.cat(moved)


def _packs(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges of tensors to send together: several small ones, or a large one alone."""
    first, total = 0, 0
    for i, size in enumerate(sizes):
        if i > first and total + size > PACK_BYTES:
            yield first, i
            first, total = i, 0
        total += size
    if sizes and total:
        yield first, len(sizes)
