"""An exact checksum of a tensor: the sum of its bytes as 64-bit integers, which may overflow.

It is computed on the tensor's device, and is equal for equal bytes on each device.
"""

from __future__ import annotations

import torch

WORD_BYTES = 8


def checksum(tensor: torch.Tensor) -> int:
    """Return the checksum of a strided tensor; a GPU has to finish its work for it."""
    return int(lazy_checksum(tensor))


def lazy_checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Return the checksum as a tensor of one int64 on the tensor's device."""
    plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    begin = plain.storage_offset() * plain.itemsize
    if not (begin % WORD_BYTES or plain.nbytes % WORD_BYTES or plain.itemsize > WORD_BYTES):
        return plain.view(torch.int64).sum()
    flat = plain.view(torch.uint8)
    if flat.storage_offset() % WORD_BYTES:
        flat = flat.clone()
    whole = flat.numel() // WORD_BYTES * WORD_BYTES
    total = flat[whole:].sum(dtype=torch.int64)
    return total + flat[:whole].view(torch.int64).sum()
