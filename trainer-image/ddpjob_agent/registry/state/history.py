"""The history of a job's memberships, for its status and timeline."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any

from ddpjob_agent.registry.state.repeated_steps import RepeatedSteps
from ddpjob_protocol.messages.control import MembershipRecord
from ddpjob_protocol.messages.membership import Membership, MembershipId
from ddpjob_protocol.messages.process import ProgressEvent
from ddpjob_protocol.parsers.progress import merge_metrics

if TYPE_CHECKING:
    from ddpjob_protocol.parsers.progress import ProgressReport

MAX_RECORDS = 50
RATE_SECONDS = 60.0  # the rate of steps is an average over this time
SAMPLE_SECONDS = 1.0  # between two samples of the rate


class MembershipHistory:
    """The last memberships of a job, and the progress of the newest one."""

    def __init__(self) -> None:
        self.records: collections.deque[MembershipRecord] = collections.deque(maxlen=MAX_RECORDS)
        self.step: int | None = None
        self.step_at: float | None = None
        self._samples: collections.deque[tuple[float, int]] = collections.deque()
        self.total_steps: int | None = None
        self.metrics: dict[str, float] = {}
        self.snapshot_step: int | None = None
        self.snapshots_skipped = 0  # between the two newest snapshots
        self._copies: set[int] = set()  # directories with the snapshot of `_copied_step`
        self._copied_step: int | None = None
        self._repeats = RepeatedSteps()

    @property
    def repeated_steps(self) -> int:
        """Number of steps repeated so far because a snapshot was older."""
        return self._repeats.total

    @property
    def steps_per_second(self) -> float | None:
        """Rate of the newest membership's steps, or None before its second sample."""
        if len(self._samples) < 2:
            return None
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last - first) / (ended - began)

    def on_membership(self, membership: Membership, wall: float) -> None:
        """Add a membership that was formed, or relearned from an agent."""
        self.records.append(
            MembershipRecord(
                id=str(membership.id),
                cause=membership.cause.value,
                detail=membership.detail,
                workers=tuple(member.worker for member in membership.members),
                world_size=membership.world_size,
                since=wall,
                snapshot_step=self.snapshot_step,
            )
        )
        self._samples.clear()
        self._repeats.on_membership(membership.id, membership.repeated_steps)

    def had(self, worker: str, membership: str) -> bool:
        """Return whether this worker was a member of a recorded membership."""
        return any(each.id == membership and worker in each.workers for each in self.records)

    def on_steps_done(self, membership: str, step: int) -> None:
        """Record the last step of a worker's stopped processes in this membership."""
        self._repeats.on_steps_done(MembershipId.parse(membership), step)
        self._count_repeats()

    def on_progress(self, report: ProgressReport, wall: float) -> None:
        """Record a report of the processes."""
        event, step = report.event, report.step
        if event is ProgressEvent.SAVED:
            if self._on_saved(step, report.storage, report.storages):
                self.snapshots_skipped = report.skipped
        elif event is ProgressEvent.RESUMED:
            self._repeats.on_resumed(step, loaded=report.loaded)
            self._update_newest(resumed_step=step)
            self._count_repeats()
        elif event is ProgressEvent.STEP:
            self._on_step(step, wall)
            self.total_steps = report.total or self.total_steps
            self.metrics = merge_metrics(self.metrics, report.metrics)

    def _on_saved(self, step: int, storage: int, storages: int) -> bool:
        """Return whether a snapshot is safe: if directories are not shared, two must hold it."""
        if step != self._copied_step:
            self._copied_step, self._copies = step, set()
        self._copies.add(storage)
        is_safe = len(self._copies) >= min(2, storages)
        self.snapshot_step = step if is_safe else self.snapshot_step
        return is_safe

    def _on_step(self, step: int, wall: float) -> None:
        self.step, self.step_at = step, wall
        self._sample(step, wall)
        self._repeats.on_step(step)
        if self.records and self.records[-1].first_step is None:
            self._update_newest(first_step=step, first_step_at=wall)
        self._update_newest(last_step=step, last_step_at=wall)

    def _sample(self, step: int, wall: float) -> None:
        """Keep a sample of each second of the last minute; start again if a clock or step falls."""
        samples = self._samples
        if samples and (step < samples[-1][1] or wall < samples[-1][0]):
            samples.clear()
        if not samples or (wall - samples[-1][0] >= SAMPLE_SECONDS and step > samples[-1][1]):
            samples.append((wall, step))
        while len(samples) > 2 and wall - samples[0][0] > RATE_SECONDS:
            samples.popleft()

    def _count_repeats(self) -> None:
        self._update_newest(repeated_steps=self._repeats.newest)

    def _update_newest(self, **changes: Any) -> None:
        if self.records:
            self.records[-1] = dataclasses.replace(self.records[-1], **changes)
