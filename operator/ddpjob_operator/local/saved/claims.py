"""Claims on the files of `snapshot.files`: two runs on this machine never write the same ones.

A claim is a name in Linux's abstract namespace of sockets, which ends with its process. The state
folder does not suffice: two runs may have folders of their own and one working directory.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path


class FilesInUseError(Exception):
    """Another run on this machine writes the files of an entry of `snapshot.files`."""


class FileClaims:
    """The claims of one run."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, entries: Sequence[str], workdir: Path) -> None:
        """Claim the files of these entries; raise FilesInUseError."""
        for entry in entries:
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._held.append(claim)
            try:
                claim.bind(_name(workdir / entry))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                raise FilesInUseError(
                    f"another run on this machine writes '{entry}' in {workdir} (snapshot.files); wait"
                    " for its end, or choose another folder with --workdir"
                ) from None

    def release(self) -> None:
        """Let other runs write the files."""
        while self._held:
            self._held.pop().close()


def _name(path: Path) -> str:
    digest = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()
    return f"\0ddpjob-files-{digest}"
