"""The committed inputs of each target: one in base64 on each line, the shortest first."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

from fuzz.target import CORPORA

MAX_BYTES = 9_000  # of the file of one target
MAX_INPUT_BYTES = 2_000


def read(name: str) -> list[bytes]:
    """Return the inputs of a target."""
    path = CORPORA / f"{name}.txt"
    return [base64.b64decode(line) for line in path.read_text().split()] if path.exists() else []


def write(name: str, inputs: Iterable[bytes]) -> None:
    """Replace the inputs of a target by the shortest of these."""
    lines, size = [], 0
    for each in sorted({*inputs}, key=lambda data: (len(data), data)):
        line = base64.b64encode(each).decode()
        size += len(line) + 1
        if size <= MAX_BYTES and len(each) <= MAX_INPUT_BYTES:
            lines.append(line + "\n")
    CORPORA.mkdir(exist_ok=True)
    (CORPORA / f"{name}.txt").write_text("".join(lines))


def unpack(inputs: Iterable[bytes], folder: Path) -> None:
    """Write each input to a file of its own, as the fuzzer reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in inputs:
        (folder / hashlib.sha1(each).hexdigest()).write_bytes(each)
