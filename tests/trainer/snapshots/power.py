"""A disk that may lose its power: what the code did to a folder, and all that may be left of it.

Records what is created, written, renamed, deleted and synced below one folder. After any of these
the power may fail: what a sync has not made durable is then there or not, in any combination.

- An entry of a folder (creation, renaming, deletion) is durable once the folder has been synced.
- A file's bytes are durable once it has been synced; until then it may be empty, cut, zeros, whole.
"""

from __future__ import annotations

import dataclasses
import io
import os
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest


@dataclasses.dataclass(frozen=True)
class Op:
    """One operation: link, unlink, rename, data, sync file, sync folder, or announced."""

    what: str
    node: int = 0  # a file's or folder's number
    folder: int = 0
    name: str = ""
    to: str = ""
    data: bytes = b""


class Recorder:
    """Takes down what happens below `root` while it is installed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ops: list[Op] = []
        self._numbers: dict[Path, int] = {root: 0}
        self._next = 1

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Record the calls of the trainer library and of pathlib."""
        real = {name: getattr(os, name) for name in ("mkdir", "rename", "fsync", "unlink", "rmdir")}
        real_open, real_rmtree = io.open, shutil.rmtree

        def mkdir(path: Any, *rest: Any, **options: Any) -> None:
            real["mkdir"](path, *rest, **options)
            self._create(Path(path))

        def rename(source: Any, target: Any) -> None:
            real["rename"](source, target)
            self._rename(Path(source), Path(target))

        def fsync(descriptor: int) -> None:
            real["fsync"](descriptor)
            self._sync(Path(f"/proc/self/fd/{descriptor}").readlink())

        def delete(name: str, path: Any, **options: Any) -> None:
            real[name](path, **options)
            if not options.get("dir_fd"):  # else of rmtree
                self._unlink(Path(path))

        def opened(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            file = real_open(path, mode, *rest, **options)
            if "x" in mode:
                self._create(Path(path))
            return file

        def rmtree(path: Any, **options: Any) -> None:
            if Path(path).is_dir():
                self._remove(Path(path))
            real_rmtree(path, **options)

        patch.setattr(os, "mkdir", mkdir)
        patch.setattr(os, "rename", rename)
        patch.setattr(os, "fsync", fsync)
        for name in ("unlink", "rmdir"):
            patch.setattr(os, name, partial(delete, name))
        patch.setattr(io, "open", opened)
        patch.setattr(shutil, "rmtree", rmtree)

    def adopt(self) -> None:
        """Number the files that exist before."""
        for number, path in enumerate(sorted(self.root.rglob("*")), 1):
            self._numbers[path] = -number

    def say(self, what: str) -> None:
        """Something was promised."""
        self.ops.append(Op("announced", name=what))

    def _is_ours(self, path: Path) -> bool:
        return path == self.root or self.root in path.parents

    def _create(self, path: Path) -> None:
        if self._is_ours(path):
            self._numbers[path], self._next = self._next, self._next + 1
            self.ops.append(Op("link", self._numbers[path], self._numbers[path.parent], path.name))

    def _rename(self, source: Path, target: Path) -> None:
        if not self._is_ours(source):
            return
        assert source.parent == target.parent
        node = self._numbers[source]
        self.ops.append(Op("rename", node, self._numbers[source.parent], source.name, target.name))
        for path in [each for each in self._numbers if each == source or source in each.parents]:
            self._numbers[target / path.relative_to(source)] = self._numbers.pop(path)

    def _sync(self, path: Path) -> None:
        if not self._is_ours(path):
            return
        if path.is_dir():
            self.ops.append(Op("sync folder", self._numbers[path]))
        else:
            self.ops.append(Op("data", self._numbers[path], data=path.read_bytes()))
            self.ops.append(Op("sync file", self._numbers[path]))

    def _unlink(self, path: Path) -> None:
        if self._is_ours(path):
            self.ops.append(Op("unlink", folder=self._numbers[path.parent], name=path.name))

    def _remove(self, path: Path) -> None:
        if not self._is_ours(path):
            return
        for each in sorted(path.rglob("*"), reverse=True):
            self.ops.append(Op("unlink", folder=self._numbers[each.parent], name=each.name))
        self.ops.append(Op("unlink", folder=self._numbers[path.parent], name=path.name))


@dataclasses.dataclass
class _File:
    durable: bytes = b""
    latest: bytes = b""


@dataclasses.dataclass
class _Folder:
    durable: dict[str, int] = dataclasses.field(default_factory=dict)
    pending: list[Op] = dataclasses.field(default_factory=list)


class Disk:
    """The content of the disk, and the writes that are only on their way."""

    def __init__(self, base: Path) -> None:
        """`base`: durable from the beginning."""
        self._nodes: dict[int, _File | _Folder] = {0: _Folder()}
        numbers = {base: 0}
        for number, path in enumerate(sorted(base.rglob("*")), 1):  # as Recorder.adopt does
            numbers[path] = -number
            self._folder(numbers[path.parent]).durable[path.name] = -number
            content = b"" if path.is_dir() else path.read_bytes()
            self._nodes[-number] = _Folder() if path.is_dir() else _File(content, content)

    def _folder(self, number: int) -> _Folder:
        node = self._nodes.setdefault(number, _Folder())
        if isinstance(node, _File):
            node = self._nodes[number] = _Folder()
        return node

    def _file(self, number: int) -> _File:
        node = self._nodes.setdefault(number, _File())
        assert isinstance(node, _File)
        return node

    def do(self, op: Op) -> None:
        """One more thing happens."""
        if op.what in ("link", "unlink", "rename"):
            self._folder(op.folder).pending.append(op)
        elif op.what == "data":
            self._file(op.node).latest = op.data
        elif op.what == "sync file":
            self._file(op.node).durable = self._file(op.node).latest
        elif op.what == "sync folder":
            folder = self._folder(op.node)
            folder.durable, folder.pending = _applied(folder.durable, folder.pending), []

    def after_failures(self, number: int, seed: int) -> Iterator[dict[str, Any]]:
        """Yield trees that may exist when power is back: nothing or all of what is pending, the last
        operation of each folder alone, and `number` others.
        """
        yield self._tree(0, None, keep=False)
        yield self._tree(0, None, keep=True)
        yield self._tree(0, None, keep=True, most=1)
        for each in range(number):
            yield self._tree(0, random.Random(seed * 1000 + each), keep=True)

    def _tree(
        self, number: int, chance: random.Random | None, *, keep: bool, most: int = 0
    ) -> dict[str, Any]:
        folder = self._folder(number)
        tree: dict[str, Any] = {}
        pending = folder.pending[-most:]
        chosen = [op for op in pending if (chance.random() < 0.5 if chance else keep)]
        for name, node in _applied(folder.durable, chosen).items():
            held = self._nodes.get(node, _File())
            if isinstance(held, _Folder):
                tree[name] = self._tree(node, chance, keep=keep, most=most)
            else:
                tree[name] = _content(held, chance, keep=keep)
        return tree


def _applied(entries: dict[str, int], ops: list[Op]) -> dict[str, int]:
    found = dict(entries)
    for op in ops:
        if op.what == "link":
            found[op.name] = op.node
        else:
            found.pop(op.name, None)
        if op.what == "rename":
            found[op.to] = op.node
    return found


def _content(file: _File, chance: random.Random | None, *, keep: bool) -> bytes:
    if file.durable == file.latest:
        return file.durable
    if chance is None:
        return file.latest if keep else file.durable
    whole = file.latest
    return chance.choice((whole, file.durable, whole[: len(whole) // 2], bytes(len(whole))))


def write(tree: dict[str, Any], path: Path) -> None:
    """Make a real folder of it."""
    path.mkdir()
    for name, content in tree.items():
        if isinstance(content, dict):
            write(content, path / name)
        else:
            (path / name).write_bytes(content)
