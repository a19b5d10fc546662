"""The manifest of a snapshot: built, parsed and checked here, for each kind of storage.

The format is described in docs/snapshot-format.md. This module must not open a file or an object;
`snapshot_dir` and `object_store` do.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpjob_trainer.snapshots.model.fencing import Fence, Origin, Owner
from ddpjob_trainer.snapshots.model.selection import Candidate
from ddpjob_trainer.tensors.file_digest import FileDigest

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = "ddpjob-snapshot"
VERSION = 1
TENSORS = "tensors.safetensors"
MANIFEST = "manifest.json"


class UnusableError(Exception):
    """The snapshot is not whole, or this version cannot read it; the text states the reason."""


def name_of(step: int) -> str:
    """Return the folder's name, such as step-000000000123."""
    return f"step-{step:012d}"


def step_of(name: str) -> int | None:
    """Return the step of a name of name_of(); None for any other name."""
    match = re.fullmatch(r"step-(\d{12})", name)
    return int(match[1]) if match else None


def part_name(number: int) -> str:
    """Return the file name of one writer's part, such as tensors-1.safetensors for number 1."""
    return f"tensors-{number}.safetensors" if number else TENSORS


def part_record_name(number: int) -> str:
    """Return the file name of a writer's record for the first writer; not in the snapshot."""
    return f"part-{number}.json"


def build(step: int, state: dict[str, Any], files: Mapping[str, FileDigest], fence: Fence) -> bytes:
    """Return the manifest of a state behind a fence, whose tensors are in `files`."""
    import torch  # noqa: PLC0415 - a list of snapshots needs no torch

    return json.dumps({
        "format": FORMAT,
        "version": VERSION,
        "step": step,
        "fence": fence.number,
        "writer": {"job": fence.owner.job, "membership": fence.owner.membership},
        "torch": torch.__version__,
        "code": _code(),
        "files": {name: {"size": f.size, f.kind: f.digest} for name, f in files.items()},
        "state": state,
    }, allow_nan=False).encode()  # fmt: skip


def parse(raw: bytes) -> dict[str, Any]:
    """Return the manifest. Raise UnusableError if the format is foreign or of another version."""
    try:
        manifest = json.loads(raw)
    except ValueError:
        raise UnusableError(f"it is damaged: {MANIFEST} is not JSON") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UnusableError(f"it is not a ddpjob snapshot: {MANIFEST} does not say {FORMAT}")
    if manifest.get("version") != VERSION:
        raise UnusableError(
            f"it has format version {manifest.get('version')}, this ddpjob_trainer reads {VERSION}"
        )
    return manifest


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
            raise UnusableError(f"its content makes no sense: {name} is no name of a file in it")
        [(kind, digest)] = [(kind, each) for kind, each in entry.items() if kind != "size"]
        found[name] = FileDigest(int(entry["size"]), kind, str(digest))
    return found


def candidate_of(manifest: dict[str, Any]) -> Candidate:
    """Return the candidate that describes this snapshot to all ranks."""
    state = {part: node for part, node in manifest["state"].items() if part != "random"}
    content = [manifest["step"], manifest["files"], state]  # equal in each copy
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return Candidate(manifest["step"], digest, writer_of(manifest))


def origin_of(manifest: dict[str, Any]) -> Origin:
    """Return the step and the writer."""
    return Origin(manifest["step"], writer_of(manifest), manifest["fence"])


def writer_of(manifest: dict[str, Any]) -> Owner:
    """Return the writer."""
    return Owner(str(manifest["writer"]["job"]), str(manifest["writer"]["membership"]))


@functools.cache
def _code() -> dict[str, str]:
    """Return the name and the checksum of the running script, for information."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        content = Path(path or "").read_bytes()
    except OSError:
        return {}
    return {"script": Path(str(path)).name, "sha256": hashlib.sha256(content).hexdigest()}
