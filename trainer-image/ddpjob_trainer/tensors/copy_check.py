"""Comparisons of a copy with its tensors, which find changes of the state during the copy.

torch counts changes of a tensor (`_version`), but not those through `.data` or in a foreign kernel.
The full comparison is by bits. A sample is cheap enough to be taken before the copy begins. May not:
know of training state.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from ddpjob_trainer.tensors.device_copy import StreamMarks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SAMPLE_BYTES = 64  # from the middle of each tensor
CHUNK_BYTES = 16 << 20  # of a GPU's tensor, compared at a time
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(copy: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Return whether a contiguous copy on the CPU equals a tensor, bit by bit."""
    bits = _BITS[tensor.itemsize]
    now = tensor.resolve_conj().resolve_neg().contiguous()
    if tensor.device.type == "cpu":  # twice as fast as torch.equal, and without the GIL
        return bool(_memcmp(copy.data_ptr(), now.data_ptr(), tensor.nbytes) == 0)
    count = CHUNK_BYTES // tensor.itemsize
    parts = now.view(-1).view(bits).split(count)
    copies = copy.view(-1).view(bits).split(count)
    return all(
        torch.equal(its.to(tensor.device), part) for its, part in zip(copies, parts, strict=True)
    )


class Sample:
    """A few bytes of each tensor, as they are now."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._spans = {name: _span(each) for name, each in tensors.items()}
        on_gpu = [name for name, each in tensors.items() if each.device.type != "cpu"]
        self._on_host = {
            name: ctypes.string_at(
                each.data_ptr() + self._spans[name].start, len(self._spans[name])
            )
            for name, each in tensors.items()
            if each.device.type == "cpu"
        }
        self._on_gpu = {name: _slice(tensors[name], self._spans[name]) for name in on_gpu}
        self._marks = StreamMarks(self._on_gpu.values())

    def is_in(self, copy_of: Callable[[str], torch.Tensor]) -> bool:
        """Return whether the copies, contiguous and on the CPU, have these bytes."""
        with self._marks.copying():
            gpus = {name: bytes(each.cpu().tolist()) for name, each in self._on_gpu.items()}
        return all(
            ctypes.string_at(copy_of(name).data_ptr() + self._spans[name].start, len(found))
            == found
            for name, found in {**self._on_host, **gpus}.items()
        )


def _span(tensor: torch.Tensor) -> range:
    """Return the bytes to sample: the same in the tensor's memory and in a contiguous copy."""
    if not tensor.numel() or tensor.is_conj() or tensor.is_neg():
        return range(0)
    if not tensor.is_contiguous():
        return range(tensor.itemsize)
    begin = tensor.nbytes // 2 // tensor.itemsize * tensor.itemsize
    return range(begin, min(begin + SAMPLE_BYTES, tensor.nbytes))


def _slice(tensor: torch.Tensor, span: range) -> torch.Tensor:
    """Return a copy of these bytes on the tensor's device; the host does not wait for it."""
    first, last = span.start // tensor.itemsize, span.stop // tensor.itemsize
    flat = (
        tensor.as_strided((tensor.numel(),), (1,))
        if tensor.is_contiguous()
        else tensor.as_strided((1,), (1,))
    )
    return flat[first:last].clone().view(torch.uint8)
