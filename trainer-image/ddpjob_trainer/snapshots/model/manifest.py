"""The manifest of a snapshot: built, parsed and checked here, for each kind of storage.

The format is described in docs/snapshot-format.md. This module must not open a file or an object;
`storage.stored` does.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpjob_protocol.codec import show
from ddpjob_protocol.text import excerpt
from ddpjob_trainer.snapshots.model.fencing import Fence, Origin, Owner, parse_owner
from ddpjob_trainer.snapshots.model.selection import Candidate
from ddpjob_trainer.tensors.file_digest import FileDigest

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = "ddpjob-snapshot"
VERSION = 1
TENSORS = "tensors.safetensors"
MANIFEST = "manifest.json"
BLOCK_BYTES = 2 << 20  # size of a block that has a checksum of its own

MAX_REASON = 1000  # characters

# Raised by code that reads a content which is intact, but senseless.
SENSELESS = (
    LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError, MemoryError,
)  # fmt: skip


class UnusableError(Exception):
    """The snapshot is not whole, or this version cannot read it; the text states the reason."""

    def __init__(self, reason: str) -> None:
        """Others may have written the snapshot, so only an excerpt of the reason is kept."""
        super().__init__(excerpt(reason, MAX_REASON))


def name_of(step: int) -> str:
    """Return the folder's name, such as step-000000000123."""
    return f"step-{step:012d}"


def part_name(number: int) -> str:
    """Return the file name of one writer's part, such as tensors-1.safetensors for number 1."""
    return f"tensors-{number}.safetensors" if number else TENSORS


def part_record_name(number: int) -> str:
    """Return the file name of a writer's record for the first writer; not in the snapshot."""
    return f"part-{number}.json"


def build(
    step: int,
    state: dict[str, Any],
    files: Mapping[str, FileDigest],
    fence: Fence,
    sharded: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the manifest of a state behind a fence, whose tensors are in `files`.

    `sharded` describes the tensors that are saved in chunks.
    """
    import torch  # noqa: PLC0415 - a list of snapshots needs no torch

    return json.dumps({
        "format": FORMAT,
        "version": VERSION,
        "step": step,
        "fence": fence.number,
        "writer": fence.owner._asdict(),
        "torch": torch.__version__,
        "code": _code(),
        "files": {name: _entry(file) for name, file in files.items()},
        **({} if sharded is None else {"sharded": sharded}),
        "state": state,
    }, allow_nan=False).encode()  # fmt: skip


def _entry(file: FileDigest) -> dict[str, Any]:
    blocks = {"blocks": file.blocks} if file.blocks else {}
    return {"size": file.size, file.kind: file.digest, **blocks}


def parse(raw: bytes) -> dict[str, Any]:
    """Return the manifest, with each value of the right type. Raise UnusableError otherwise."""
    try:
        manifest = json.loads(raw)
    except ValueError:
        raise UnusableError(f"it is damaged: {MANIFEST} is not JSON") from None
    except RecursionError:
        raise UnusableError(f"it is damaged: {MANIFEST} is nested too deeply") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UnusableError(f"it is not a ddpjob snapshot: {MANIFEST} does not say {FORMAT}")
    if manifest.get("version") != VERSION:
        raise UnusableError(
            f"it has format version {show(manifest.get('version'))}, this ddpjob_trainer reads"
            f" {VERSION}"
        )
    try:
        _check_types(manifest)
    except SENSELESS as error:
        raise UnusableError(f"its content makes no sense: {error!r}") from None
    return manifest


def _check_types(manifest: dict[str, Any]) -> None:
    """Raise UnusableError, or one of SENSELESS, if a value of another type is in the manifest."""
    for name in ("step", "fence"):
        if type(manifest[name]) is not int or not 0 <= manifest[name] < 10**12:
            raise ValueError(f"{name} is {show(manifest[name])}")
    parse_owner(manifest["writer"])
    files = manifest["files"]
    sizes = [entry["size"] for entry in files.values()]
    if not sizes or any(type(size) is not int or size < 0 for size in sizes):
        raise ValueError("files have no size")
    files_of(manifest)
    if not {"model", "types"} <= manifest["state"].keys():
        raise ValueError("there is no state of a model")


def check_step(manifest: dict[str, Any], name: str) -> None:
    """Raise UnusableError if the snapshot has the name of another step."""
    if name != name_of(manifest["step"]):
        raise UnusableError(f"it was renamed: it holds step {manifest['step']}")


def check_size(name: str, expected: FileDigest, size: int) -> None:
    """Raise UnusableError if a file has another size."""
    if size != expected.size:
        raise UnusableError(f"it is damaged: {name} has {size} bytes instead of {expected.size}")


def check_digest(name: str, expected: FileDigest, digest: str) -> None:
    """Raise UnusableError if a file has another checksum."""
    if digest != expected.digest:
        raise UnusableError(f"it is damaged: the checksum of {name} does not match")


def files_of(manifest: dict[str, Any]) -> dict[str, FileDigest]:
    """Return the digests of the tensors' files by name. Raise UnusableError for a foreign name."""
    found = {}
    for name, entry in manifest["files"].items():
        if re.fullmatch(r"tensors(-[1-9]\d*)?\.safetensors", name) is None:
            raise UnusableError(f"its content makes no sense: {name} is not a name of a file in it")
        kinds = entry.keys() - {"size", "blocks"}
        [(kind, digest)] = [(kind, entry[kind]) for kind in kinds]
        size, blocks = int(entry["size"]), tuple(map(str, entry.get("blocks", ())))
        if blocks and len(blocks) != -(-size // BLOCK_BYTES):
            raise UnusableError(f"its content makes no sense: {name} has {len(blocks)} checksums")
        found[name] = FileDigest(size, kind, str(digest), blocks)
    return found


def candidate_of(manifest: dict[str, Any]) -> Candidate:
    """Return the candidate that describes this snapshot to all ranks. Raise UnusableError."""
    state = {part: node for part, node in manifest["state"].items() if part != "random"}
    content = [manifest["step"], manifest["files"], state]  # equal in each copy
    content += [manifest["sharded"]] if "sharded" in manifest else []
    try:
        text = json.dumps(content, sort_keys=True)
    except RecursionError:
        raise UnusableError(f"it is damaged: {MANIFEST} is nested too deeply") from None
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Candidate(manifest["step"], digest, writer_of(manifest))


def origin_of(manifest: dict[str, Any]) -> Origin:
    """Return the step and the writer."""
    return Origin(manifest["step"], writer_of(manifest), manifest["fence"])


def writer_of(manifest: dict[str, Any]) -> Owner:
    """Return the writer."""
    return parse_owner(manifest["writer"])


@functools.cache
def _code() -> dict[str, str]:
    """Return the name and the checksum of the running script, for information."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        content = Path(path or "").read_bytes()
    except OSError:
        return {}
    return {"script": Path(str(path)).name, "sha256": hashlib.sha256(content).hexdigest()}
