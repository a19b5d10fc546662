"""The choice of the snapshot from which all ranks resume, given each storage's contents: pure.

The newest snapshot that counts wins, in any storage. A snapshot of a fenced membership does not
count. Within a storage, its fences decide (`fencing.fence_limit`); between storages, the order of
the memberships decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ddpjob_protocol.membership import MembershipId

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ddpjob_trainer.snapshots.model.fencing import Fence, Owner


class Candidate(NamedTuple):
    """A snapshot that counts in its own storage."""

    step: int
    digest: str  # equal for equal contents
    writer: Owner | None  # None: written without an owner


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


def select_snapshot(
    storages: Sequence[StorageContents],
    *,
    self_owner: Owner,
    excluded: Collection[tuple[int, str]] = (),
) -> Selection | None:
    """Return the newest snapshot, if any; for equal steps, the later membership's snapshot.

    An entry of `excluded` is the lowest rank of a storage and the digest of an unusable snapshot.
    """
    fences = {
        fence
        for holding in storages
        for fence in {each.owner: each for each in holding.fences}.values()  # the owner's last
        if fence.owner != self_owner
    }
    usable = [
        (offer, holding.ranks)
        for holding in storages
        for offer in holding.candidates
        if (holding.ranks[0], offer.digest) not in excluded and not _is_overtaken(offer, fences)
    ]
    if not usable:
        return None
    best = max((offer for offer, _ in usable), key=_age)
    ranks = {rank for offer, holders in usable if offer.digest == best.digest for rank in holders}
    return Selection(best.step, best.digest, frozenset(ranks))


def _age(offer: Candidate) -> tuple[int, MembershipId, str]:
    return offer.step, _order(offer.writer), offer.digest


def _order(owner: Owner | None) -> MembershipId:
    return MembershipId.parse(owner.membership) if owner and owner.job else MembershipId(0, 0, 0)


def _is_overtaken(offer: Candidate, fences: Collection[Fence]) -> bool:
    """Return whether a later membership of the writer's job has resumed from an earlier step."""
    writer = offer.writer
    if writer is None or not writer.job:
        return False
    return any(
        fence.owner.job == writer.job
        and _order(fence.owner) > _order(writer)
        and fence.step < offer.step
        for fence in fences
    )
