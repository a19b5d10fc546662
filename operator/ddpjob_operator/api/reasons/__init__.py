"""The catalogue of reasons: what each word means in a condition, an event or a warning.

`ddpjob explain`, `docs/reasons.md` and the tests read it. A new reason needs an entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ddpjob_operator.api.constants import EventReason, Reason
from ddpjob_operator.api.reasons.conditions import ENDED, RUNS, STALLED
from ddpjob_operator.api.reasons.entry import Entry
from ddpjob_operator.api.reasons.events import EVENTS
from ddpjob_operator.api.reasons.warnings import WARNINGS
from ddpjob_protocol.messages.warnings import WarningReason

PARTS: Mapping[str, Mapping[str, Entry]] = {
    "Jobs that run or wait": {key.value: entry for key, entry in RUNS.items()},
    "Jobs that are stalled": {key.value: entry for key, entry in STALLED.items()},
    "Jobs that have ended": {key.value: entry for key, entry in ENDED.items()},
    "Events": {key.value: entry for key, entry in EVENTS.items()},
    "Warnings": {key.value: entry for key, entry in WARNINGS.items()},
}
CATALOGUE = {word: entry for part in PARTS.values() for word, entry in part.items()}
KINDS: Mapping[str, type[Enum]] = {
    "a condition": Reason,
    "an event": EventReason,
    "a warning": WarningReason,
}


def kinds_of(word: str) -> str:
    """Return where a reason appears, such as `a condition and an event`."""
    found = [kind for kind, words in KINDS.items() if word in {each.value for each in words}]
    return " and ".join(found)
