"""The effects of messages: what the service has to do after it has recorded one."""

from __future__ import annotations

import enum


class Effect(enum.IntEnum):
    """The effect of a message; of several effects, the highest covers all."""

    NOTHING = 0  # no decision, order or report depends on what was recorded
    REPORT = 1  # the report for the operator changes
    TURN = 2  # decisions or orders may change, too

    @classmethod
    def turn_if(cls, changed: bool) -> Effect:
        """Return the effect of a change of the policy's input."""
        return cls.TURN if changed else cls.NOTHING

    @classmethod
    def report_if(cls, changed: bool) -> Effect:
        """Return the effect of a change that only the report shows."""
        return cls.REPORT if changed else cls.NOTHING
