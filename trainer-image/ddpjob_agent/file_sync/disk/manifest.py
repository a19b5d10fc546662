"""The manifest of a stored replica: its files, and what they were copied from.

Others may write to the store's volume, so a manifest is read like a message of another worker.
May not: choose a replica.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from ddpjob_agent.file_sync.decisions.admission import MalformedError, admit, parse_parts
from ddpjob_agent.file_sync.disk import places
from ddpjob_agent.file_sync.disk.local_files import FileFingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpjob_agent.file_sync.decisions.replica import Parts
    from ddpjob_agent.file_sync.disk.places import Place

NAME = "manifest.json"
MAX_BYTES = 64 << 20

Seen = tuple[FileFingerprint, ...]


def write_manifest(folder: Place, parts: Parts, seen: Seen) -> None:
    """Write the manifest of a replica into its folder, durably. Raises OSError."""
    with places.create(folder.below(NAME)) as file:
        file.write(json.dumps({"parts": parts, "seen": seen}).encode())
    places.complete(folder.below(NAME))


def read_manifest(folder: Place, entries: Sequence[str]) -> tuple[Parts, Seen]:
    """Return the files of a replica, and what they were copied from.

    Raises OSError, MalformedError and RefusedError.
    """
    with places.open_to_read(folder.below(NAME)) as file:
        size = os.fstat(file.fileno()).st_size  # a read takes the memory that it asks for
        text = file.read(size) if size <= MAX_BYTES else b""
    try:
        manifest: dict[str, Any] = json.loads(text)
        listed, seen = manifest["parts"], manifest["seen"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise MalformedError(f"its {NAME} cannot be read") from error
    parts = parse_parts(listed)
    admit(parts, entries)
    return parts, _parse_seen(seen, parts)


def _parse_seen(listed: object, parts: Parts) -> Seen:
    """Return the fingerprints of exactly these files, or none."""
    if listed == []:
        return ()
    if isinstance(listed, list) and len(listed) == len(parts):
        for each, part in zip(listed, parts):
            is_fitting = isinstance(each, list) and [*map(type, each)] == [str, int, int, int]
            if not is_fitting or each[:2] != [*part[:2]]:
                break
        else:
            return tuple(FileFingerprint(*each) for each in listed)
    raise MalformedError(f"its {NAME} was not written by an agent")
