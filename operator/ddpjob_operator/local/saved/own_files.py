"""The files of `snapshot.files` in the working directory of a local run.

May not: read their content, or delete them.
"""

from __future__ import annotations

import glob
import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path


class OwnFiles:
    """The files that the script itself saves: paths, patterns or directories."""

    def __init__(self, entries: Sequence[str], workdir: Path) -> None:
        self._entries = entries
        self._workdir = workdir

    def found(self) -> list[str]:
        """Return the existing files and directories, as people name them."""
        return sorted({os.path.relpath(path, self._workdir) for path in self._paths()})

    def fingerprint(self) -> frozenset[tuple[str, int, int, int]]:
        """Return facts of all files; a write to one of them changes the facts."""
        facts = []
        for file in {file for path in self._paths() for file in _files(path)}:
            status = file.stat()
            facts.append((str(file), status.st_size, status.st_mtime_ns, status.st_ino))
        return frozenset(facts)

    def move_aside(self, folder: Path) -> Path | None:
        """Move everything into a new folder below `folder`; return it, or None without files."""
        paths = list(self._paths())
        if not paths:
            return None
        target = next(path for n in itertools.count(1) if not (path := folder / str(n)).exists())
        for path in paths:
            if path.exists():  # not moved with its directory
                inside = os.path.relpath(path, self._workdir)
                aside = target / (path.name if inside.startswith("..") else inside)
                aside.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, aside)
        return target

    def _paths(self) -> Iterator[Path]:
        for entry in self._entries:
            path = self._workdir / entry
            if path.exists():
                yield path
            elif glob.has_magic(entry):
                root = Path(Path(entry).anchor or self._workdir)
                found = root.glob(entry.lstrip("/"))
                yield from (each for each in found if not each.name.startswith("."))


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        below = (each for each in path.rglob("*") if each.is_file())
        yield from (each for each in below if not each.name.startswith("."))
    elif path.is_file():
        yield path
