"""The number of repeated steps: a membership repeats steps if it resumes from an older snapshot.

The steps done in a membership are the last step that its processes reported, or wrote to
`ENV_STEPS` before they were stopped. The highest step of any worker counts. Pure; reads no time.
"""

from __future__ import annotations

from ddpjob_protocol.messages.membership import MembershipId

_NEVER = MembershipId(0, 0, 0)


class RepeatedSteps:
    """The count over all memberships of a job, also over restarts of the service."""

    def __init__(self) -> None:
        self._earlier = 0  # repeated in the memberships before the newest
        self._newest = _NEVER
        self._since = _NEVER  # before it, the last membership that resumed
        self._before = 0  # steps done when the newest began
        self._loaded: int | None = None  # step of the snapshot that the newest loaded
        self._has_resumed = False
        self._done = 0  # steps done so far

    @property
    def total(self) -> int:
        """Number of steps that were, or will be, repeated."""
        return self._earlier + self.newest

    @property
    def newest(self) -> int:
        """Number of steps that the newest membership repeats."""
        return 0 if self._loaded is None else max(0, self._before - self._loaded)

    def on_membership(self, membership: MembershipId, so_far: int) -> None:
        """Start a membership, formed or relearned; `so_far` steps were repeated before it."""
        self._earlier = max(self.total, so_far)
        self._since = self._newest if self._has_resumed else self._since
        self._newest, self._before = membership, self._done
        self._loaded, self._has_resumed = None, False

    def on_resumed(self, step: int, *, loaded: bool) -> None:
        """Record the step that the newest membership resumes from, in a snapshot or in memory."""
        if not self._has_resumed:
            self._loaded = step if loaded else None
            self._has_resumed, self._done = True, step

    def on_step(self, step: int) -> None:
        """Record the last step of the newest membership."""
        self._done = step

    def on_steps_done(self, membership: MembershipId, step: int) -> None:
        """Record the last step of stopped processes of this membership."""
        if membership == self._newest:
            self._done = max(self._done, step)
        elif self._since <= membership < self._newest:
            self._before = max(self._before, step)
            if not self._has_resumed:
                self._done = max(self._done, step)
