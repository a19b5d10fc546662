"""Snapshots in an object store, which has no rename: what is there is never changed.

Each snapshot has a folder of its own below its step, named by its writer's fence and a random
word. The tensors go first, the manifest last: with it the snapshot exists. The manifest's name
holds its own checksum. So no writer can replace or delete what another one wrote, however late it
comes; which of several counts is told by their fences. Only these need a request that succeeds
for one alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ddpjob_trainer import image, manifest, meeting, tree
from ddpjob_trainer.choice import Holding, Offer
from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.fences import Fence, Fences, Owner
from ddpjob_trainer.manifest import TENSORS, UnusableError
from ddpjob_trainer.objects import StoreError
from ddpjob_trainer.place import Look, Seers
from ddpjob_trainer.retention import is_abandoned, superfluous

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpjob_trainer.content import Content
    from ddpjob_trainer.objects import Found, Objects

PATIENCE = timedelta(days=1)  # from a snapshot's tensors to its manifest: far more than it takes

_PART = re.compile(
    r"(?P<folder>step-(?P<step>\d{12})/(?P<fence>\d{12})-[0-9a-f]{8})/"
    r"(?:tensors\.safetensors|manifest-(?P<digest>[0-9a-f]{64})\.json)"
)

_log = logging.getLogger("ddpjob")


class FenceObjects:
    """Fences as objects that are created only if there is none of that name."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.where = objects.uri
        self._is_proven = False

    def numbers(self) -> list[int]:
        """Of those that there are. Raises OSError."""
        found = (re.fullmatch(r"fence-(\d{12})\.json", name) for name in self._objects.list())
        return [int(match[1]) for match in found if match]

    def read(self, number: int) -> bytes | None:
        """Raises OSError."""
        return self._objects.get(self._name(number))

    def create(self, number: int, record: bytes) -> bool:
        """False if the number is taken. Raises OSError, and SnapshotError if nobody is refused."""
        name = self._name(number)
        if not self._objects.create(name, record):
            return False
        if not self._is_proven and self._objects.create(name, record):
            raise SnapshotError(
                f"The store of {self.where} replaces an object that it was told to create only if "
                "there is none (If-None-Match: *). Without that a process that was cut off could "
                "spoil snapshots. Use a store that honours it, or a directory."
            )
        self._is_proven = True
        return True

    def delete(self, number: int) -> None:
        """Raises OSError."""
        self._objects.delete(self._name(number))

    def name(self, number: int) -> str:
        """For people."""
        return f"{self.where}/{self._name(number)}"

    def _name(self, number: int) -> str:
        return f"fence-{number:012d}.json"


class Copy(NamedTuple):
    """What lies in one folder."""

    folder: str
    step: int
    fence: int
    manifest: str | None  # name of the object
    tensors: Found | None
    written: Found  # the newest of it

    @property
    def names(self) -> list[str]:
        """Its objects, in the order in which they may go."""
        shown = [self.manifest] if self.manifest else []
        return [*shown, *([f"{self.folder}/{TENSORS}"] if self.tensors else [])]


class Bucket:
    """The snapshots below one prefix, by step."""

    def __init__(self, objects: Objects, keep: int) -> None:
        self._objects = objects
        self.where = objects.uri
        self.afresh = "give another prefix (spec.snapshot.uri)"
        self._keep = keep
        self._fences = Fences(FenceObjects(objects))
        self._manifests: dict[str, dict[str, Any]] = {}  # by name: they never change

    def seers(self) -> Seers:
        """Every rank sees it; the first of each node reads, and sends to the others."""
        return meeting.all_of_one()

    def take(self, owner: Owner, step: int) -> Fence:
        """From now on `owner` alone goes on, from this step. Raises OvertakenError and OSError."""
        return self._fences.take(owner, step)

    def publish(self, step: int, content: Content, fence: Fence) -> None:
        """Makes the snapshot exist, unless it already does.

        Raises OSError, and OvertakenError if somebody else has gone on: then nothing is deleted.
        """
        if self._counts(step):
            return
        folder = f"{manifest.name_of(step)}/{fence.number:012d}-{secrets.token_hex(4)}"
        tensors, size = f"{folder}/{TENSORS}", content.tensors_size
        try:
            record = content.pour(lambda chunks: self._objects.upload(tensors, chunks, size), fence)
            self._fences.check(fence)
        except BaseException:
            with contextlib.suppress(OSError):
                self._objects.delete(tensors)
            raise
        # Whatever becomes of this request, the tensors stay: it may have succeeded.
        self._objects.put(f"{folder}/{_record_name(record)}", record)
        self._fences.check(fence)  # a successor may rely on an earlier one: delete none
        self._retain(step)

    def steps(self, chooser: Owner | None = None) -> list[int]:
        """Steps of which one may be gone on from, newest first. Raises OSError.

        Who still chooses from which one is not bound by a fence of its own.
        """
        fences = [fence for fence in self._fences.all() if fence.owner != chooser]
        return _steps(copy for copy in self._shown() if not self._is_overtaken(copy, fences))

    def all_steps(self) -> list[int]:
        """Steps of all that there are, newest first. Raises OSError."""
        return _steps(self._shown())

    def complete(self) -> list[int]:
        """Steps of which one counts and looks whole, newest first, without reading tensors."""
        return _steps(self._complete(self._shown(), self._fences.all()))

    def holding(self, ranks: tuple[int, ...], chooser: Owner) -> Holding:
        """What there is for `chooser` to choose from. Raises OSError."""
        offers: list[Offer] = []
        unusable: list[str] = []
        fences = self._fences.all()
        others = [fence for fence in fences if fence.owner != chooser]
        for copy in self._shown():
            try:
                found = self._manifest(copy)
            except UnusableError as why:
                unusable.append(f"{self._objects.uri}/{copy.folder}: {why}")
                _log.warning("ignoring snapshot %s", unusable[-1])
                continue
            if not manifest.is_overtaken(found, others):
                offers.append(manifest.offer(found))
        return Holding(ranks, tuple(offers), tuple(fences), tuple(unusable))

    def read(self, step: int, digest: str | None = None) -> dict[str, Any]:
        """The state, verified. Raises UnusableError and OSError."""
        why = UnusableError("there is no such snapshot")
        for copy in self._of(step):
            try:
                found = self._manifest(copy)
                if digest in (None, manifest.offer(found).digest):
                    return self._state(copy, found)
            except UnusableError as error:
                why = error
        raise why

    def check(self, step: int, *, content: bool = True) -> dict[str, Any]:
        """The manifest. Raises UnusableError and OSError."""
        why = UnusableError("there is no such snapshot")
        for copy in self._of(step):
            try:
                found = self._manifest(copy)
                if content:
                    self._block(copy, found)
            except UnusableError as error:
                why = error
            else:
                return found
        raise why

    def look(self, step: int) -> Look:
        """From outside. Raises OSError."""
        copy = self._of(step)[0]
        return Look(copy.tensors.size if copy.tensors else 0, copy.written.written.timestamp())

    def prune(self) -> list[int]:
        """Delete what need not stay; returns the steps. Raises OSError."""
        newest = next(iter(self.complete()), None)
        if newest is None:
            return []
        before = self.all_steps()
        self._retain(newest)
        return sorted({*before} - {*self.all_steps()})

    def name(self, step: int) -> str:
        """For people."""
        return f"{self._objects.uri}/{manifest.name_of(step)}"

    def explain(self, error: OSError, size: int) -> tuple[str, str]:
        """Why a snapshot could not be saved, and what to do."""
        del size
        assert isinstance(error, StoreError)
        return error.cause, error.remedy

    def is_away(self, error: OSError) -> bool:
        """Whether a later try may succeed although nobody does anything."""
        return isinstance(error, StoreError) and error.is_away

    # --- what is there ----------------------------------------------------------------------------

    def _copies(self) -> list[Copy]:
        """All that lies there, newest first: by step, then by fence. Raises OSError."""
        folders: dict[str, Copy] = {}
        listed = self._objects.list()
        self._manifests = {n: each for n, each in self._manifests.items() if n in listed}
        for name, found in sorted(listed.items()):
            match = _PART.fullmatch(name)
            if match is None:
                continue
            folder = match["folder"]
            empty = Copy(folder, int(match["step"]), int(match["fence"]), None, None, found)
            copy = folders.get(folder, empty)
            newest = max(copy.written, found, key=lambda each: each.written)
            if match["digest"]:
                folders[folder] = copy._replace(manifest=name, written=newest)
            else:
                folders[folder] = copy._replace(tensors=found, written=newest)
        return sorted(folders.values(), key=lambda copy: copy[1:3], reverse=True)

    def _shown(self) -> list[Copy]:
        """Those with a manifest. Raises OSError."""
        return [copy for copy in self._copies() if copy.manifest]

    def _of(self, step: int) -> list[Copy]:
        """Those of one step, first those that count. Raises OSError."""
        fences = self._fences.all()
        copies = [copy for copy in self._shown() if copy.step == step]
        return sorted(copies, key=lambda copy: self._is_overtaken(copy, fences))

    def _complete(self, copies: Sequence[Copy], fences: Sequence[Fence]) -> list[Copy]:
        return [c for c in copies if self._is_whole(c) and not self._is_overtaken(c, fences)]

    def _is_whole(self, copy: Copy) -> bool:
        try:
            self._manifest(copy)
        except UnusableError:
            return False
        return True

    def _is_overtaken(self, copy: Copy, fences: Sequence[Fence]) -> bool:
        try:
            return manifest.is_overtaken(self._manifest(copy), fences)
        except UnusableError:
            return False

    def _counts(self, step: int) -> bool:
        """Whether there is one of this step, to the last byte. Raises OSError."""
        fences = self._fences.all()
        for copy in self._complete([c for c in self._shown() if c.step == step], fences):
            with contextlib.suppress(UnusableError):
                self._block(copy, self._manifest(copy))
                return True
        return False

    # --- one of them ------------------------------------------------------------------------------

    def _manifest(self, copy: Copy) -> dict[str, Any]:
        """Raises UnusableError and OSError."""
        assert copy.manifest is not None
        found = self._manifests.get(copy.manifest)
        if found is None:
            raw = self._objects.get(copy.manifest)
            if raw is None:
                raise UnusableError("it has just been deleted")
            if not copy.manifest.endswith(_record_name(raw)):
                raise UnusableError("it is damaged: its manifest is not the one that its name says")
            found = manifest.parse(raw)
            manifest.check_step(found, manifest.name_of(copy.step))
            self._manifests[copy.manifest] = found
        if copy.tensors is None:
            raise UnusableError(f"it is incomplete: {TENSORS} is missing")
        manifest.check_size(found, copy.tensors.size)
        return found

    def _block(self, copy: Copy, found: dict[str, Any]) -> torch.Tensor:
        """The tensors' file, verified. Raises UnusableError and OSError."""
        expected = manifest.expected_of(found)
        try:
            digest = image.hasher(expected.kind)
        except ValueError as error:
            raise UnusableError(str(error)) from None
        block = torch.empty(expected.size, dtype=torch.uint8)
        name = f"{copy.folder}/{TENSORS}"
        if not self._objects.fetch(name, image.raw(block), digest.update):
            raise UnusableError("it has just been deleted")
        manifest.check_digest(found, digest.hexdigest())
        return block

    def _state(self, copy: Copy, found: dict[str, Any]) -> dict[str, Any]:
        block = self._block(copy, found)
        try:
            tensors = image.tensors(block)
            return {part: tree.restore(node, tensors) for part, node in found["state"].items()}
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise UnusableError(f"its content makes no sense: {error!r}") from error

    # --- what goes --------------------------------------------------------------------------------

    def _retain(self, newest: int) -> None:
        """Delete what is superfluous, overtaken or abandoned. Raises OSError."""
        copies, fences = self._copies(), self._fences.all()
        shown = [copy for copy in copies if copy.manifest]
        complete = self._complete(shown, fences)
        gone = superfluous(_steps(complete), newest, self._keep)
        now = max((copy.written.written for copy in copies), default=None)
        for copy in copies:
            if copy.manifest:
                goes = self._is_overtaken(copy, fences) or (copy in complete and copy.step in gone)
            else:
                assert now is not None
                age = now - copy.written.written
                goes = is_abandoned(copy.step, copy.fence, age, fences, PATIENCE)
            if goes:
                self._objects.delete(*copy.names)


def _record_name(record: bytes) -> str:
    return f"manifest-{hashlib.sha256(record).hexdigest()}.json"


def _steps(copies: Any) -> list[int]:
    return sorted({copy.step for copy in copies}, reverse=True)
