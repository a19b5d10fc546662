"""Which place a text means: a directory, or an object store's URI. `place` says what each can do."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ddpjob_trainer.bucket import Bucket
from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.objects import SCHEMES, connect
from ddpjob_trainer.place import Place
from ddpjob_trainer.shelf import Shelf


def find(where: str, keep: int) -> Place:
    """Raises SnapshotError if it means none. Nothing is read yet."""
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", where):
        return Shelf(Path(where).absolute(), keep)
    parts = urlsplit(where)
    path = unquote(parts.path)
    if parts.scheme == "file" and not parts.netloc and path.strip("/"):
        return Shelf(Path(path), keep)
    if parts.scheme not in SCHEMES or not parts.netloc or parts.query or parts.fragment:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise SnapshotError(
            f"{where} is no place for snapshots: give a directory, or a bucket with a prefix as in "
            f"s3://bucket/jobs/digits ({known})"
        )
    return Bucket(connect(parts.scheme, parts.netloc, path.strip("/")), keep)
