"""Which snapshot all ranks go on from, given what each directory holds: pure.

The newest one that counts, wherever it lies. A snapshot of an overtaken membership does not count:
within a directory by its fences (`fences.limit`), between directories by the memberships' order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ddpjob_protocol.membership import MembershipId

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ddpjob_trainer.snapshots.model.fencing import Fence, Owner


class Candidate(NamedTuple):
    """A snapshot that counts in its own directory."""

    step: int
    digest: str  # the same content has the same
    writer: Owner | None  # None: it was written without a word of it


class StorageContents(NamedTuple):
    """What the ranks that see one directory have, as the lowest of them tells."""

    ranks: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    fences: tuple[Fence, ...]  # by number
    unusable: tuple[str, ...] = ()  # what is there beside that, and why it is of no use


class Selection(NamedTuple):
    """What to go on from, and who has it."""

    step: int
    digest: str
    ranks: frozenset[int]


def select_snapshot(
    storages: Sequence[StorageContents],
    *,
    self_owner: Owner,
    excluded: Collection[tuple[int, str]] = (),
) -> Selection | None:
    """The newest, if there is one; of two of the same step that of the later membership.

    `without`: the lowest rank of a directory, and the digest of what is unusable there.
    """
    fences = {
        fence
        for holding in storages
        for fence in {each.owner: each for each in holding.fences}.values()  # the last of each
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
    """Whether a later membership of its job has gone on from an earlier step, anywhere."""
    writer = offer.writer
    if writer is None or not writer.job:
        return False
    return any(
        fence.owner.job == writer.job
        and _order(fence.owner) > _order(writer)
        and fence.step < offer.step
        for fence in fences
    )
