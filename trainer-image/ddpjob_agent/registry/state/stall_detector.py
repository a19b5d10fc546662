"""The detection of a hang in the current membership, and of the processes that lag behind.

The first process reports steps; each process reports its position every second. A job hangs when
its next step takes a multiple of the usual step time, and twice the longest pause that ended by
itself, such as an evaluation. Once all steps are done or a command has ended, the other commands
may end without a step, and have END_SECONDS more: the last save, evaluation or upload takes minutes.
What follows is the matter of `hang_restart`.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

from ddpjob_protocol.messages.control import RankGroup, Stall

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddpjob_protocol.messages.control import Policy
    from ddpjob_protocol.messages.membership import Membership
    from ddpjob_protocol.parsers.progress import Position

WINDOW = 51  # last pauses between steps; their median is the usual step time
END_SECONDS = 600.0  # more, for the end of a training
SILENT_SECONDS = 5.0  # without a heartbeat; processes send one every second


@dataclasses.dataclass(frozen=True)
class _Process:
    worker: str
    step: int
    where: str
    heartbeat_at: float


class StallDetector:
    """The steps of the current membership, its processes and the usual step time."""

    def __init__(self) -> None:
        self._pauses: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._longest = 0.0  # longest pause that ended with a step
        self._first: float | None = None  # seconds of the first step, with the startup before it
        self._begun_at: float | None = None
        self._step: int | None = None
        self._at = 0.0
        self._wall = 0.0
        self._moved_at = 0.0  # when a process was last seen to do a step
        self._ended: tuple[str, ...] | None = None  # at the end: the workers that have ended
        self._ended_at = 0.0  # since when this is so
        self._world_size = 0
        self._processes: dict[int, _Process] = {}
        self.stall: Stall | None = None  # the hang, as first detected

    def on_membership(
        self, membership: Membership, now: float | None, *, waits_for_last: bool = False
    ) -> None:
        """Start a membership that was formed, or relearned at an unknown time.

        If it waits for the last step of the previous membership, keep the hang detected there.
        """
        if not waits_for_last:
            self.stall = None
        self._begun_at, self._step, self._ended = now, None, None
        self._world_size = membership.world_size
        self._processes.clear()

    def on_step(self, step: int, now: float, wall: float) -> None:
        """Record a step of the first process; `wall` is the wall-clock time for the report."""
        if step == self._step:
            return
        if self._step is None:
            self._first = None if self._begun_at is None else now - self._begun_at
        elif step > self._step:
            self._pauses.append((now - self._at) / (step - self._step))
            self._longest = max(self._longest, now - self._at)
        self._step, self._at, self._wall, self.stall = step, now, wall, None

    def on_heartbeat(self, worker: str, positions: Iterable[Position], now: float) -> None:
        """Record the heartbeats of an agent's processes; ignore ranks that do not exist."""
        for each in positions:
            if each.rank < self._world_size:
                known = self._processes.get(each.rank)
                if known is not None and each.step > known.step:
                    self._moved_at = now
                self._processes[each.rank] = _Process(worker, each.step, each.where, now - each.age)

    def extend_deadlines(self, seconds: float) -> None:
        """Extend the deadlines by the seconds for which the service itself was stalled."""
        self._at, self._moved_at = self._at + seconds, self._moved_at + seconds
        self._ended_at += seconds
        for rank, each in self._processes.items():
            self._processes[rank] = dataclasses.replace(
                each, heartbeat_at=each.heartbeat_at + seconds
            )

    def detect(self, policy: Policy, now: float, *, due: bool, changing: bool) -> None:
        """Set `stall` if the processes hang; `due`: a next step is expected."""
        self._ended = None
        if not due:
            self.stall = None
        elif self.stall is None and self._step is not None and not changing:
            usual = self._usual_step_seconds()
            if usual is not None and now - self._at > self._limit(policy, usual):
                self.stall = Stall(self._wall, self._step, usual, self._rank_groups(now))

    def detect_end(
        self,
        policy: Policy,
        now: float,
        last: tuple[int, float],
        *,
        ended: tuple[str, ...],
        left: tuple[str, ...],
    ) -> None:
        """Set `stall` if the commands of the workers `left` neither end nor do a step.

        `last` is the last step that was reported, with its wall-clock time.
        """
        if ended != self._ended:
            self._ended, self._ended_at, self.stall = ended, now, None
        usual = self._usual_step_seconds()
        since = max(self._at, self._moved_at, self._ended_at)
        if now - since <= END_SECONDS + self._limit(policy, usual or 0.0):
            self.stall = None
        elif self.stall is None:
            step, wall = last
            groups = self._rank_groups(now, without=ended)
            self.stall = Stall(wall, step, usual, groups, ended=ended, left=left)

    def _limit(self, policy: Policy, usual: float) -> float:
        return max(policy.stall_seconds, 2 * self._longest, policy.stall_steps * usual)

    def _usual_step_seconds(self) -> float | None:
        """Return the median seconds of a step; before the second step, those of the first."""
        if not self._pauses:
            return self._first
        return sorted(self._pauses)[len(self._pauses) // 2]

    def _rank_groups(self, now: float, without: tuple[str, ...] = ()) -> tuple[RankGroup, ...]:
        asked = {r: each for r, each in self._processes.items() if each.worker not in without}
        furthest = max((each.step for each in asked.values()), default=None)
        alike: dict[RankGroup, list[int]] = {}
        for rank, each in sorted(asked.items()):
            silent = now - each.heartbeat_at > SILENT_SECONDS
            lags = silent or each.step != furthest
            point = RankGroup((), (), each.step, each.where, silent, lags)
            alike.setdefault(point, []).append(rank)
        missing = [rank for rank in range(self._world_size) if rank not in self._processes]
        found = [self._rank_group(point, ranks) for point, ranks in alike.items()]
        if found and missing:
            found.append(RankGroup(tuple(missing), (), None))
        return tuple(sorted(found, key=lambda each: not each.behind))

    def _rank_group(self, point: RankGroup, ranks: list[int]) -> RankGroup:
        workers = dict.fromkeys(self._processes[rank].worker for rank in ranks)
        return dataclasses.replace(point, ranks=tuple(ranks), workers=tuple(workers))
