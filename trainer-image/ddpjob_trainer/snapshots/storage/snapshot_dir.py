"""One snapshot folder: tensors, a manifest with checksums, and the commit record, written last.

The format is described in docs/snapshot-format.md. This module handles one folder at a time. It
does not decide which folder is the newest or which process may write. It deletes and renames no
folder.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpjob_trainer.snapshots.model import manifest
from ddpjob_trainer.snapshots.model.chunks import assemble
from ddpjob_trainer.snapshots.model.manifest import MANIFEST, TENSORS, UnusableError
from ddpjob_trainer.snapshots.storage import durable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from ddpjob_trainer.snapshots.model.fencing import Fence
    from ddpjob_trainer.snapshots.model.selection import Candidate
    from ddpjob_trainer.snapshots.model.staging import StagedState
    from ddpjob_trainer.tensors.file_digest import FileDigest
    from ddpjob_trainer.transfer.broadcast import StateSender

COMMIT = "COMMIT"
COMMIT_BYTES = 1000  # more than it ever has


def write(
    folder: Path,
    content: StagedState,
    fence: Fence,
    others: Callable[[], Mapping[str, FileDigest]] = dict,
) -> None:
    """Write the snapshot durably behind the fence; `others` waits for the other writers' files.

    Replace what an earlier attempt has left. Raise OSError, and the errors of `others`.
    """
    for name in (TENSORS, MANIFEST, COMMIT):
        (folder / name).unlink(missing_ok=True)
    own = content.stream_to(lambda chunks: durable.write_all(chunks, folder / TENSORS))
    record = content.record({TENSORS: own, **others()}, fence)
    durable.write(folder / MANIFEST, record)
    durable.write(folder / COMMIT, _commit_record(record))
    durable.sync(folder)


def write_part(folder: Path, content: StagedState, number: int) -> FileDigest:
    """Write one part's file durably, instead of an earlier attempt's. Raise OSError."""
    path = folder / manifest.part_name(number)
    path.unlink(missing_ok=True)
    return content.stream_to(lambda chunks: durable.write_all(chunks, path))


def write_part_record(folder: Path, number: int, record: bytes) -> None:
    """Write the record of a part for the first writer. Raise OSError."""
    path = folder / manifest.part_record_name(number)
    with path.with_suffix(".new").open("xb") as file:
        file.write(record)
    path.with_suffix(".new").rename(path)


def read_part_record(folder: Path, number: int) -> bytes | None:
    """Return the record of a part; None if there is none. Raise OSError."""
    with contextlib.suppress(FileNotFoundError):
        return (folder / manifest.part_record_name(number)).read_bytes()
    return None


def delete_part_records(folder: Path) -> None:
    """Delete the records, which are not part of the snapshot. Raise OSError."""
    for each in folder.glob("part-*"):
        each.unlink()


def check(folder: Path, *, content: bool = True) -> dict[str, Any]:
    """Return the manifest of a whole snapshot. Raise UnusableError.

    With `content=False`, only sizes are compared: cheap, but flipped bits in tensors stay
    undetected.
    """
    try:
        return _check(folder, content)
    except FileNotFoundError as error:
        raise UnusableError(f"it is incomplete: {Path(error.filename).name} is missing") from None
    except OSError as error:
        raise UnusableError(f"it cannot be read: {error.strerror}") from error


def read_candidate(folder: Path) -> Candidate:
    """Return the candidate for a whole snapshot without a read of tensors. Raise UnusableError."""
    return manifest.candidate_of(check(folder, content=False))


def read(folder: Path, sender: StateSender | None = None) -> dict[str, Any]:
    """Return the state of a whole snapshot, with each byte verified. Raise UnusableError.

    A `sender` sends the state during the read, before the verification.
    """
    from ddpjob_trainer.tensors import safetensors_reader, serialization  # noqa: PLC0415 - a list of snapshots needs no torch

    found = check(folder, content=False)
    try:
        tensors: dict[str, torch.Tensor] = {}
        files = {
            name: safetensors_reader.SafetensorsReader(folder / name, expected.kind)
            for name, expected in manifest.files_of(found).items()
        }
        if "sharded" in found:
            sender = None  # the loader sends the state when it is put together
        if sender is not None:
            outlines = [each for file in files.values() for each in file.outlines]
            sender.begin(serialization.node_of(found["state"]), outlines)
        for name, file in files.items():
            part, digest = file.read(None if sender is None else sender.add)
            manifest.check_digest(name, manifest.files_of(found)[name], digest)
            tensors.update(part)
        tensors = assemble(found, tensors)
        return {part: serialization.restore(node, tensors) for part, node in found["state"].items()}
    except (OSError, *manifest.SENSELESS) as error:
        check(folder)  # damage is the most frequent cause of a senseless content
        raise UnusableError(f"its content makes no sense: {error!r}") from error


def read_range(folder: Path, name: str, begin: int, into: memoryview) -> None:
    """Fill `into` with a file's bytes, which nothing has verified. Raise UnusableError."""
    rest = into
    try:
        with (folder / name).open("rb", buffering=0) as file:
            file.seek(begin)
            while rest and (count := file.readinto(rest)):
                rest = rest[count:]
    except OSError as error:
        raise UnusableError(f"it cannot be read: {error.strerror}") from error
    if rest:
        raise UnusableError(f"it is damaged: {name} ends early")


def _check(folder: Path, content: bool) -> dict[str, Any]:
    try:
        raw = durable.read(folder / MANIFEST, manifest.MOST_BYTES)
        committed = durable.read(folder / COMMIT, COMMIT_BYTES)
    except ValueError as error:
        raise UnusableError(f"it is damaged: {error}") from None
    found = manifest.parse(raw)
    if committed != _commit_record(raw):
        raise UnusableError(f"it is damaged: {MANIFEST} is not the one that {COMMIT} names")
    manifest.check_step(found, folder.name)
    for name, expected in manifest.files_of(found).items():
        path = folder / name
        manifest.check_size(name, expected, path.stat().st_size)
        if content:
            from ddpjob_trainer.tensors.safetensors_reader import checksum  # noqa: PLC0415 - a list of snapshots needs no torch

            try:
                digest = checksum(path, expected.kind)
            except ValueError as error:
                raise UnusableError(str(error)) from None
            manifest.check_digest(name, expected, digest)
    return found


def _commit_record(record: bytes) -> bytes:
    return f"{hashlib.sha256(record).hexdigest()}  {MANIFEST}\n".encode()
