"""Target: messages of two workers to the service's functions of state, message and time."""

from __future__ import annotations

from typing import Any

from agent.fuzz.test_messages import HELLO, MESSAGES, WORKERS, check, job
from agent.membership.views import NOW
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.registration import SupersededError, on_disconnect, on_hello
from ddpjob_protocol.codec import DecodeError
from fuzz.target import Form, Target, of_json, to_json

MAX_SECONDS = 10_000.0


def hear(value: Any) -> None:
    """Apply each [worker, message]; a number is a pause, and null a disconnection."""
    state, now = job(), NOW
    for each in value if isinstance(value, list) else ():
        match each:
            case int() | float() if 0 <= each < MAX_SECONDS:
                now += each
                decide(state, now)
            case [0 | 1 as at, None]:
                on_disconnect(state, WORKERS[at], now)
            case [0 | 1 as at, {"type": "hello", "member": _} as message]:
                try:
                    on_hello(state, message, now)
                except (DecodeError, SupersededError) as error:
                    assert len(str(error)) < 2000
            case [0 | 1 as at, {"type": str(), **_rest} as message]:
                on_message(state, WORKERS[at], message, now)
    check(state)


TARGETS = (
    Target(
        "registry",
        Form.JSON,
        of_json(hear),
        (
            *to_json(*([[0, message], 1, [1, message]] for message in MESSAGES)),
            *to_json([[0, None], 2, [0, HELLO], 40, [0, MESSAGES[0]]]),
            *to_json([[0, {"type": "live"}], [0, {"type": "ready"}], [1, {"type": "ready"}], 5]),
        ),
    ),
)
