"""The checks of the messages of a live process to its agent, and of an agent to the service.

The state of the service takes only checked messages, so none of them can stop a later decision.
Of the messages for the c10d store this checks the envelope; the store checks their content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddpjob_protocol.codec import DecodeError, decode, show
from ddpjob_protocol.failures.failure_rules import MAX_TIMES
from ddpjob_protocol.messages.agent import Failure, Message
from ddpjob_protocol.messages.membership import Member, Membership
from ddpjob_protocol.messages.process import ProcessMessage
from ddpjob_protocol.messages.warnings import MAX_STACKS
from ddpjob_protocol.parsers import checks
from ddpjob_protocol.parsers.checks import Check, count, each, fields, flag, identity, name, text
from ddpjob_protocol.parsers.progress import MAX_WHERE, Position, ProgressReport
from ddpjob_protocol.text import last_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_PROCESSES = 2**16  # of one worker
MAX_RESTARTS = 2**30  # the status of a job has 32 bits
MAX_RANKS = 2**20  # processes of a membership
MAX_WORKERS = 100_000
MAX_REPLICAS = 1000  # of the script's files, at one worker
MAX_REPORTS = 100
MAX_WARNING = 4000  # characters
MAX_REASON = 64  # characters
MAX_WRITES = 2**20  # to the c10d store, in one message
MAX_TRACEBACK = 20_000  # characters


def check_message(message: Message) -> Message:
    """Return the message with its checked values; raise DecodeError if a value is odd."""
    check = _MESSAGES.get(message["type"])
    return message if check is None else check(message, message["type"])


def check_process_message(message: Any) -> tuple[ProcessMessage, Message]:
    """Return the kind and the checked message of a live process; raise DecodeError if it is odd."""
    checked: Message = _PROCESS(message, "message")
    kind: ProcessMessage = checked["answer"]
    return kind, _PROCESS_MESSAGES.get(kind, _PROCESS)(checked, kind.value)


def check_member(data: Any) -> Member:
    """Return the worker that registers; raise DecodeError if a value is odd."""
    return decode(Member, _MEMBER(data, "hello.member"))


def check_hello(message: Message) -> tuple[Message, dict[str, str]]:
    """Return a hello with neutral values for odd facts, and each refused fact with its problem."""
    checked, problems = dict(message), {}
    for fact, (check, neutral) in _HELLO.items():
        data = message.get(fact)
        try:
            checked[fact] = neutral if data is None else check(data, f"hello.{fact}")
        except DecodeError as error:
            checked[fact], problems[fact] = neutral, str(error)
    return checked, problems


def _answer(data: Any, where: str) -> ProcessMessage:
    if data not in [each.value for each in ProcessMessage]:
        raise DecodeError(f"{where} is {show(data)} instead of a known message")
    return ProcessMessage(data)


def _processes(data: Any, where: str) -> int:
    if not 1 <= count(data, where) <= MAX_PROCESSES:
        raise DecodeError(f"{where} is {data} instead of 1 to {MAX_PROCESSES}")
    return int(data)


def _failure(data: Any, where: str) -> Any:
    checked = _FAILURE(data, where)
    decode(Failure, checked)
    return checked


def _traceback(data: Any, where: str) -> str:
    return last_lines(text(data, where), MAX_TRACEBACK)


def check_exit_code(data: Any, where: str) -> int:
    """Return the exit code of a process; it is negative after a signal."""
    if type(data) is not int or abs(data) >= 2**31:
        raise DecodeError(f"{where} is {show(data)} instead of an exit code")
    return data


def check_membership(data: Any) -> Membership:
    """Return the membership that a hello has; raise DecodeError if a value is odd."""
    membership = decode(Membership, MEMBERSHIP(data, "hello.membership"))
    if not 0 < len(membership.by_worker) == len(membership.members):
        raise DecodeError("hello.membership has no members, or a worker twice")
    count(membership.world_size, "the number of processes of hello.membership", MAX_RANKS)
    return membership


def check_reason(data: Any, where: str) -> str:
    """Return the reason of a warning, which is the reason of an event, too."""
    is_word = text(data, where).isalnum() and data.isascii() and len(data) <= MAX_REASON
    if not is_word:
        raise DecodeError(f"{where} is {show(data)} instead of one CamelCase word")
    return str(data)


FAILURE_TIMES = each(checks.count_to(int(checks.MAX_SECONDS)), MAX_TIMES)
_FAILURE = fields(
    {
        "at": checks.seconds,
        "summary": checks.text_to(MAX_WARNING),
        "traceback": _traceback,
        "rank": count,
        "exit_code": check_exit_code,
        "reason": name,
        "worker": name,
    }
)
_MEMBER = fields({"worker": name, "incarnation": name, "address": name, "processes": _processes})
MEMBERSHIP = fields(
    {
        "id": identity,
        "members": each(_MEMBER, MAX_WORKERS),
        "detail": checks.text_to(MAX_WARNING),
        "failures": checks.count_to(MAX_RESTARTS),
        "failure_times": FAILURE_TIMES,
        "losses": checks.count_to(MAX_RESTARTS),
        "after": count,
        "snapshot_step": count,
        "repeated_steps": count,
    },
    "id",
)
_PROCESS = fields(
    {"answer": _answer, "local_rank": checks.count_to(MAX_PROCESSES)}, "answer", "local_rank"
)
_PROCESS_MESSAGES: Mapping[ProcessMessage, Check] = {
    ProcessMessage.PROMISE: fields({"step": count}, "step"),
    ProcessMessage.BROKEN: fields(
        {"membership": identity, "why": checks.text_to(MAX_WARNING)}, "membership", "why"
    ),
    ProcessMessage.AT: fields({"line": checks.text_to(MAX_WHERE), "free": flag}, "where"),
    ProcessMessage.ARRIVED: fields({"membership": name}, "membership"),
    ProcessMessage.ENTERED: fields({"membership": identity}, "membership"),
    ProcessMessage.STOPS: fields({"membership": name, "rank": count}, "membership"),
    ProcessMessage.FINISHED: fields({"membership": identity}),  # an older library names none
    ProcessMessage.LEFT: fields({"step": count}),
}
_PORT = checks.count_to(checks.MAX_PORT)
_STEPS_DONE = fields({"membership": identity, "step": count}, "membership", "step")
_REPLICA = fields(
    {"membership": identity, "seconds": checks.seconds, "digest": name, "size": count},
    "membership",
    "seconds",
    "digest",
    "size",
)
_INVENTORY = fields(
    {
        "scope": name,
        "copies": each(_REPLICA, MAX_REPLICAS),
        "installed": name,
        "begun": flag,
        "port": _PORT,
        "problem": checks.text_to(MAX_WARNING),
        "refused": each(name, MAX_REPLICAS),
    },
    "scope",
)
_LIST = each(lambda data, _: data, MAX_WRITES)
_STEP_FACTS: Mapping[str, Check] = {"step": count, "step_age": checks.seconds}
_MESSAGES: Mapping[str, Check] = {
    "exited": fields(
        {"membership": name, "live": flag, "failure": _failure, "clock": checks.seconds},
        "membership",
    ),
    "broken": fields({"membership": name, "why": checks.text_to(MAX_WARNING)}, "membership", "why"),
    "asks": fields({"membership": name, "rank": count}, "membership"),
    "stops": fields({"membership": name}, "membership"),
    "finished": fields({"membership": name}, "membership"),
    "promise": fields({"step": count}, "step"),
    "stopped": fields({"membership": name}, "membership"),
    "steps_done": _STEPS_DONE,
    "files": _INVENTORY,
    "report": fields(
        {
            "membership": name,
            "report": lambda data, _: ProgressReport.parse(data),
            **_STEP_FACTS,
        },
        "membership",
        "report",
    ),
    "beat": fields(
        {
            "processes": each(Position.parse, MAX_PROCESSES),
            "settled": count,
            **_STEP_FACTS,
        }
    ),
    "warning": fields(
        {
            "reason": check_reason,
            "message": checks.text_to(MAX_WARNING),
            "ongoing": flag,
            "membership": name,
        },
        "reason",
        "message",
    ),
    "stacks": fields(
        {"membership": name, "text": checks.text_to(MAX_STACKS)}, "membership", "text"
    ),
    "store": fields(
        {"id": count, "membership": name, "data": text, "more": flag, "settled": count},
        "id",
        "membership",
        "data",
    ),
    "cancel": fields({"id": count}, "id"),
    "writes": fields(
        {"membership": name, "first": flag, "writes": _LIST, "version": count},
        "membership",
        "writes",
    ),
    "forgot": fields({"membership": name, "keys": _LIST}, "membership", "keys"),
}
_HELLO: Mapping[str, tuple[Check, Any]] = {
    "membership": (fields({"id": identity}, "id"), None),  # the rest: `check_membership`
    "running": (flag, False),
    "live": (flag, False),
    "ready": (flag, False),
    "finished": (flag, False),
    "stops": (flag, False),
    "done": (flag, False),
    "leaving": (flag, False),
    "failure": (_failure, None),
    "clock": (checks.seconds, None),  # of its node; seconds since the epoch
    "stopped": (name, ""),
    "steps_done": (_STEPS_DONE, None),
    "reports": (each(lambda data, _: ProgressReport.parse(data), MAX_REPORTS), []),
    "files": (_INVENTORY, None),
    "port": (_PORT, None),
    "reach": (_PORT, None),
}
