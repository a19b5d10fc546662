"""The choice of the snapshot from which all ranks resume, given each storage's contents: pure.

The newest snapshot that counts wins, in any storage. Each storage lists the snapshots that its own
fences do not exclude. The fences of another storage may exclude them, too; see `fencing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ddpjob_trainer.snapshots.model.fencing import Origin, is_fenced

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ddpjob_protocol.messages.membership import MembershipId
    from ddpjob_trainer.snapshots.model.fencing import Fence, Owner


class Candidate(NamedTuple):
    """A snapshot that counts in its own storage."""

    step: int
    digest: str  # equal for equal contents
    writer: Owner


class StorageContents(NamedTuple):
    """The snapshots and fences of one storage, reported by the lowest of its ranks."""

    ranks: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    fences: tuple[Fence, ...]  # by number
    unusable: tuple[str, ...] = ()  # other snapshots, with the reason why each is unusable


class Selection(NamedTuple):
    """The selected snapshot and the ranks that have it."""

    step: int
    digest: str
    ranks: frozenset[int]
    writer: Owner


def select_snapshot(
    storages: Sequence[StorageContents],
    *,
    self_owner: Owner,
    excluded: Collection[tuple[int, str]] = (),
) -> Selection | None:
    """Return the newest snapshot, if any; for equal steps, the later membership's snapshot.

    An entry of `excluded` is the lowest rank of a storage and the digest of an unusable snapshot.
    """
    usable = [
        (offer, holding.ranks)
        for holding in storages
        for offer in holding.candidates
        if (holding.ranks[0], offer.digest) not in excluded
        and not _is_fenced_anywhere(offer, storages, self_owner)
    ]
    if not usable:
        return None
    best = max((offer for offer, _ in usable), key=_age)
    ranks = {rank for offer, holders in usable if offer.digest == best.digest for rank in holders}
    return Selection(best.step, best.digest, frozenset(ranks), best.writer)


def _age(offer: Candidate) -> tuple[int, MembershipId, str]:
    return offer.step, offer.writer.order, offer.digest


def _is_fenced_anywhere(
    offer: Candidate, storages: Sequence[StorageContents], chooser: Owner
) -> bool:
    origin = Origin(offer.step, offer.writer, number=None)
    return any(is_fenced(origin, holding.fences, chooser) for holding in storages)
