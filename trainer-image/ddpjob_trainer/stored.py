"""Tensors in a safetensors file, read and verified in one pass.

May not: know of training state and of folders, nor how such a file is made (`image`).
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import torch

from ddpjob_trainer.image import CHUNK_BYTES, NAMES, hasher, raw

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import FileIO
    from pathlib import Path


class Outline(NamedTuple):
    """A tensor that is to come."""

    name: str
    kind: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.kind.itemsize * torch.Size(self.shape).numel()


class Stored:
    """A file with tensors, to be read once: what is in it, then one after the other."""

    def __init__(self, path: Path, kind: str) -> None:
        """`kind`: of the checksum. Raises OSError, KeyError, TypeError and ValueError."""
        self._digest = hasher(kind)
        with path.open("rb", buffering=0) as file:
            size = file.read(8)
            text = file.read(int.from_bytes(size, "little"))
            end = os.fstat(file.fileno()).st_size
        self._path, self._begin = path, 8 + len(text)
        self._digest.update(size + text)
        self._header = json.loads(text)
        self._header.pop("__metadata__", None)
        names = sorted(self._header, key=lambda name: self._header[name]["data_offsets"])
        self.outlines = [self._outline(name) for name in names]
        at = 0
        for outline in self.outlines:
            begin, at = at, at + outline.size
            if self._header[outline.name]["data_offsets"] != [begin, at]:
                raise ValueError(f"{outline.name} lies elsewhere than after what is before it")
        if at != end - self._begin:
            raise ValueError(f"its tensors take {at} bytes of {end - self._begin}")

    def _outline(self, name: str) -> Outline:
        entry = self._header[name]
        return Outline(name, NAMES[entry["dtype"]], tuple(map(int, entry["shape"])))

    def read(
        self, each: Callable[[torch.Tensor], None] | None = None
    ) -> tuple[dict[str, torch.Tensor], str]:
        """The tensors, and the checksum; each lies in memory of its own, aligned.

        A mapped tensor would not: sums over it round differently, and the resumed run would leave
        the path of the undisturbed one. Another thread makes the checksum, one piece behind; `each`
        is called with what is there, and not verified yet.
        Raises OSError, ValueError and RuntimeError, and what `each` raises.
        """
        found: dict[str, torch.Tensor] = {}
        with self._path.open("rb", buffering=0) as file, ThreadPoolExecutor(1) as hashing:
            file.seek(self._begin)
            for name, kind, shape in self.outlines:
                tensor = found[name] = torch.empty(shape, dtype=kind)
                _fill(tensor, file, lambda piece: hashing.submit(self._digest.update, piece))
                if each is not None:
                    each(tensor)
        return {name: found[name] for name in self._header}, self._digest.hexdigest()


def _fill(tensor: torch.Tensor, file: FileIO, seen: Callable[[memoryview], object]) -> None:
    rest = raw(tensor.view(-1).view(torch.uint8)) if tensor.numel() else memoryview(b"")
    while rest:
        count = file.readinto(rest[:CHUNK_BYTES])
        if not count:
            raise ValueError("the file ends early")
        seen(rest[:count])
        rest = rest[count:]


def tensors(block: torch.Tensor) -> dict[str, torch.Tensor]:
    """Those of a safetensors file that lies in memory, each copied to where it is aligned.

    Raises KeyError, TypeError, ValueError and RuntimeError for what is none.
    """
    content = raw(block)
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8:begin]))
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        data = block[begin + first : begin + last].clone()
        found[name] = data.view(NAMES[entry["dtype"]]).view(entry["shape"])
    return found


def checksum(path: Path, kind: str) -> str:
    """Of a file's content. Raises OSError, and ValueError for a kind that there is none of here."""
    digest = hasher(kind)
    with path.open("rb", buffering=0) as file:
        while block := file.read(CHUNK_BYTES):
            digest.update(block)
    found: str = digest.hexdigest()
    return found
