"""The strict parser of an operator's expectation, for the service.

The service adds its numbers to times and counts, so an odd one would make each later decision fail.
"""

from __future__ import annotations

from typing import Any

from ddpjob_protocol.codec import DecodeError, decode, show
from ddpjob_protocol.failures.failure_rules import MAX_RULES
from ddpjob_protocol.messages.control import Expectation
from ddpjob_protocol.parsers.checks import (
    MAX_COUNT,
    count,
    count_to,
    each,
    fields,
    flag,
    name,
    number,
    seconds,
)
from ddpjob_protocol.parsers.report_check import (
    FAILURE_TIMES,
    MAX_RESTARTS,
    MAX_WORKERS,
    check_exit_code,
)

MAX_GROUPS = 1000
MAX_EXIT_CODES = 255


def parse_expectation(data: Any) -> Expectation:
    """Return the expectation in a JSON object; raise DecodeError if a value is odd."""
    return decode(Expectation, _EXPECTATION(data, "Expectation"))


def _minimum(data: Any, where: str) -> list[Any]:
    if type(data) is not list or len(data) != 2:
        raise DecodeError(f"{where} is {show(data)} instead of a prefix and a number of workers")
    return [name(data[0], where), count(data[1], where)]


def _steps(data: Any, where: str) -> float:
    if not 0 <= number(data, where) <= MAX_COUNT:
        raise DecodeError(f"{where} is {show(data)} instead of a number of steps")
    return float(data)


_RULE = fields(
    {
        "action": name,
        "exit_codes": each(check_exit_code, MAX_EXIT_CODES),
        "other_codes": flag,
        "reasons": each(name, MAX_RULES),
    },
    "action",
)
_POLICY = fields(
    {
        "minimum": count,
        "minimums": each(_minimum, MAX_GROUPS),
        "startup_wait": seconds,
        "settle": seconds,
        "join_policy": name,
        "min_between_joins": seconds,
        "max_join_wait": seconds,
        "max_failures": count,
        "max_losses": count,
        "window": seconds,
        "rules": each(_RULE, MAX_RULES),
        "backoff": seconds,
        "reconnect_grace": seconds,
        "heartbeat_deadline": seconds,
        "live_deadline": seconds,
        "host_deadline": seconds,
        "live_host_deadline": seconds,
        "process_deadline": seconds,
        "live_process_deadline": seconds,
        "stall_steps": _steps,
        "stall_seconds": seconds,
        "on_hang": name,
        "files": flag,
    }
)
_EXPECTATION = fields(
    {
        "workers": each(name, MAX_WORKERS),
        "draining": each(name, MAX_WORKERS),
        "policy": _POLICY,
        "failures": count_to(MAX_RESTARTS),
        "failure_times": FAILURE_TIMES,
    },
    "workers",
)
