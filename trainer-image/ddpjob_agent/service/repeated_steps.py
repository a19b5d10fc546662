"""Which steps are done again, because a membership goes on from a snapshot that was older.

What a membership had done is what its processes last reported, or left behind (`ENV_STEPS`)
when they were ended; the most of any of its workers counts. Pure; knows nothing of times.
"""

from __future__ import annotations

from ddpjob_protocol.membership import MembershipId

_NEVER = MembershipId(0, 0, 0)


class RepeatedSteps:
    """Counts over the memberships of one service, and goes on from what an earlier one had."""

    def __init__(self) -> None:
        self._earlier = 0  # those of the memberships before the newest
        self._newest = _NEVER
        self._since = _NEVER  # before it, the last one that went on from anywhere
        self._before = 0  # steps that were done when the newest began
        self._loaded: int | None = None  # the step of the snapshot that it loaded
        self._went_on = False
        self._done = 0  # steps, by now

    @property
    def total(self) -> int:
        """Steps that were, or will be, done again."""
        return self._earlier + self.newest

    @property
    def newest(self) -> int:
        """Those of the newest membership."""
        return 0 if self._loaded is None else max(0, self._before - self._loaded)

    def on_membership(self, membership: MembershipId, so_far: int) -> None:
        """A membership was formed, or relearned: then this many were repeated before it."""
        self._earlier = max(self.total, so_far)
        self._since = self._newest if self._went_on else self._since
        self._newest, self._before = membership, self._done
        self._loaded, self._went_on = None, False

    def on_resumed(self, step: int, *, loaded: bool) -> None:
        """The newest membership goes on from there: from a snapshot, or else from memory."""
        if not self._went_on:
            self._loaded = step if loaded else None
            self._went_on, self._done = True, step

    def on_step(self, step: int) -> None:
        """The newest membership has done so many steps."""
        self._done = step

    def on_steps_done(self, membership: MembershipId, step: int) -> None:
        """Processes of this one had done so many steps when they were ended."""
        if membership == self._newest:
            self._done = max(self._done, step)
        elif self._since <= membership < self._newest:
            self._before = max(self._before, step)
            if not self._went_on:
                self._done = max(self._done, step)
