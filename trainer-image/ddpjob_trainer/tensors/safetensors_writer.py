"""Copies tensors into one block of host memory, laid out as a safetensors file.

Every snapshot reuses the block. The block equals the file's content: one pass over memory writes it
and computes the checksum. Tensors of a GPU are copied as they were at the construction.
May not: know of training state and folders.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import threading
from typing import TYPE_CHECKING, Any

import torch

from ddpjob_trainer.errors import NoCopyMemoryError
from ddpjob_trainer.tensors import copy_check
from ddpjob_trainer.tensors.device_copy import StreamMarks
from ddpjob_trainer.tensors.file_digest import FileDigest

xxhash: Any = None
with contextlib.suppress(ImportError):  # a compiled package; an image may lack it
    import xxhash

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

CHECKSUM = "sha256" if xxhash is None else "xxh3_128"
CHUNK_BYTES = 8 << 20  # size of one write and hash
ASIDE_BYTES = 1 << 20  # smallest chunk that is worth a thread

# safetensors' names of the types that a snapshot can hold
TYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16",
    torch.int32: "I32", torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
NAMES = {name: kind for kind, name in TYPES.items()}


class StagingBuffer:
    """A block of host memory that grows to the largest request and is never freed."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8, device="cpu")

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self._block.numel()

    def allocate(self, size: int) -> torch.Tensor:
        """Return `size` bytes of the block; the previous allocation becomes invalid."""
        if self._block.numel() < size:
            self._block = torch.empty(0, dtype=torch.uint8, device="cpu")
            self._block = torch.empty(size, dtype=torch.uint8, device="cpu")
        return self._block[:size]


class SafetensorsBuffer:
    """A safetensors file in preparation: first its layout, then its tensors.

    Without an allocated copy, `stream_to` reads the tensors themselves.
    """

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Lay out the file; `metadata` goes into its header, for other programs."""
        # safetensors' order, which aligns each tensor to a multiple of its element size.
        self._tensors = dict(sorted(tensors.items(), key=lambda each: (-each[1].itemsize, each[0])))
        self._marks = StreamMarks(tensors.values())
        self._begins: dict[str, int] = {}
        entries: dict[str, Any] = {} if metadata is None else {"__metadata__": {**metadata}}
        end = 0
        for name, tensor in self._tensors.items():
            self._begins[name], end = end, end + tensor.nbytes
            entry = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape)}
            entries[name] = {**entry, "data_offsets": [self._begins[name], end]}
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._header = len(text).to_bytes(8, "little") + text
        self._data_size = end
        self._block: torch.Tensor | None = None

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return len(self._header) + self._data_size

    @property
    def is_copied(self) -> bool:
        """True if memory for a copy is allocated."""
        return self._block is not None

    def begins(self, names: Collection[str]) -> dict[str, int]:
        """Return the offsets of these tensors, in bytes from the first tensor, in file order."""
        return {name: begin for name, begin in self._begins.items() if name in names}

    def allocate(self, memory: StagingBuffer) -> None:
        """Allocate memory for a copy. Raises NoCopyMemoryError if there is not enough."""
        try:
            self._block = memory.allocate(self._data_size)
        except (RuntimeError, MemoryError) as error:
            raise NoCopyMemoryError(
                f"There is no host memory for a snapshot of {self._data_size:,} bytes. Give the "
                "worker more memory: a snapshot needs as much as the model and its optimizer."
            ) from error

    def copy_of(self, name: str) -> torch.Tensor:
        """Return the memory for the copy of a tensor, with its type and shape."""
        assert self._block is not None
        tensor, begin = self._tensors[name], self._begins[name]
        return self._block[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def copy(self, names: Collection[str]) -> None:
        """Copy these tensors into the block. Other threads can run meanwhile."""
        for name in names:
            target = self.copy_of(name).view(-1).view(torch.uint8)
            self._marks.copy(self._tensors[name], target)

    def is_equal(self, name: str) -> bool:
        """Return whether the copy of a tensor equals the tensor as it is now, bit by bit."""
        with self._marks.copying():
            return copy_check.same_bits(self.copy_of(name), self._tensors[name])

    def stream_to(
        self,
        into: Callable[[Iterator[memoryview]], object],
        ready: Callable[[int], None] = lambda _: None,
    ) -> FileDigest:
        """Pass the file to `into`, chunk by chunk. Raises the exceptions of `into`.

        `ready` blocks until this number of bytes has been copied into the block.
        """
        digest = hasher(CHECKSUM)

        def chunks() -> Iterator[memoryview]:
            for chunk in self._chunks(ready):
                if len(chunk) < ASIDE_BYTES:
                    digest.update(chunk)
                    yield chunk
                    continue
                # An executor would accept no more work after the end of the script.
                hashing = threading.Thread(target=digest.update, args=(chunk,))
                hashing.start()
                try:
                    yield chunk
                finally:
                    hashing.join()

        into(chunks())
        return FileDigest(self.size, CHECKSUM, digest.hexdigest())

    def _chunks(self, ready: Callable[[int], None]) -> Iterator[memoryview]:
        yield memoryview(self._header)
        if self._block is not None:
            end = 0
            for chunk in _pieces(self._block[: self._data_size]):
                end += len(chunk)
                ready(end)
                yield chunk
            return
        for tensor in self._tensors.values():
            with self._marks.copying():
                flat = tensor.resolve_conj().resolve_neg().contiguous().view(-1)
            for part in flat.split(CHUNK_BYTES // tensor.itemsize):
                with self._marks.copying():
                    host = part.cpu()
                yield from _pieces(host.view(torch.uint8))


def _pieces(block: torch.Tensor) -> Iterator[memoryview]:
    if block.numel():
        content = raw(block)
        for begin in range(0, len(content), CHUNK_BYTES):
            yield content[begin : begin + CHUNK_BYTES]


def raw(block: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor of bytes, without NumPy."""
    array = (ctypes.c_ubyte * block.numel()).from_address(block.data_ptr())
    return memoryview(array).cast("B")


def hasher(kind: str) -> Any:
    """Return a hash object like hashlib's. Raises ValueError for an unavailable kind."""
    if kind == "sha256":
        return hashlib.sha256()
    if kind == "xxh3_128" and xxhash is not None:
        return xxhash.xxh3_128()
    raise ValueError(
        f"its checksum is {kind}, which needs another package here: pip install xxhash"
    )
