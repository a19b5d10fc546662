"""Orders about the script's files follow the inventories that agents report."""

from __future__ import annotations

import dataclasses

from agent.file_sync.replicas import NEW, A, B, copy, has
from agent.membership.views import NOW, hello, membership, order_for
from ddpjob_agent.file_sync.decisions.replica import FileInstruction, FileInventory
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.registration import (
    on_disconnect,
    on_expectation,
    on_hello,
)
from ddpjob_agent.registry.report import build_report
from ddpjob_agent.registry.state.registry_state import RegistryState, initial_state
from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.messages.control import Expectation, Policy
from ddpjob_protocol.messages.membership import Member


def job_of(names: str, *, files: bool = True) -> RegistryState:
    found = initial_state(term=1, boot=1, wall_offset=0.0)
    policy = Policy(minimum=1, files=files, join_policy="Immediate", settle=0)
    on_expectation(found, Expectation(tuple(names), policy=policy), NOW)
    for name in names:
        on_hello(found, hello(Member(name, f"{name}-first", "127.0.0.1", 1)), NOW)
    decide(found, NOW)
    return found


def word_for(found: RegistryState, name: str) -> FileInstruction | None:
    said = order_for(found, name, NOW)["files"]
    return decode(FileInstruction, said) if said else None


def tell(found: RegistryState, name: str, stock: FileInventory, scope: str = "1.1.1") -> None:
    message = {"type": "files", **encode(dataclasses.replace(stock, scope=scope))}
    on_message(found, name, message, NOW)
    decide(found, NOW)


def test_without_files_nothing_is_asked_for() -> None:
    assert word_for(job_of("ab", files=False), "a") is None


def test_orders_follow_the_messages() -> None:
    found = job_of("ab")
    assert word_for(found, "a") == FileInstruction("1.1.1")
    for name in "ab":
        tell(found, name, has())
    assert [word_for(found, name) for name in "ab"] == [FileInstruction("1.1.1", go=True)] * 2
    saved = copy("1.1.1", 5)
    tell(found, "a", has(saved, begun=True))
    tell(found, "b", has(begun=True))
    assert build_report(found, 1).files is None, "one has it"
    tell(found, "b", has(saved, begun=True))
    told = build_report(found, 1).files
    assert told is not None
    assert (told.synced_at, told.size) == (NOW, 10)


def test_service_that_restarts_learns_it_from_the_hellos() -> None:
    found = initial_state(term=1, boot=2, wall_offset=0.0)
    held, stock = encode(membership("a", "b")), has(copy("1.1.1", 5), installed=None, begun=True)
    told = encode(dataclasses.replace(stock, scope="1.1.1"))
    for member in (A, B):
        on_hello(found, hello(member, membership=held, running=True, files=told), NOW)
    on_expectation(found, Expectation(("a", "b"), policy=Policy(files=True)), NOW)
    decide(found, NOW)
    assert [word_for(found, name) for name in "ab"] == [FileInstruction("1.1.1", go=True)] * 2
    kept = build_report(found, 1).files
    assert kept is not None
    assert kept.synced_at == NOW


def test_halt_states_whether_it_was_planned() -> None:
    for planned in (True, False):
        found = job_of("ab")
        policy = Policy(minimum=2, files=True)
        on_expectation(found, Expectation(("a", "b"), policy=policy), NOW)
        if planned:
            on_message(found, "b", {"type": "bye"}, NOW)
        else:
            on_disconnect(found, "b", NOW - 9)
        decide(found, NOW)
        order = order_for(found, "a", NOW)
        assert (order["type"], order["planned"]) == ("halt", planned)


def test_a_worker_that_returns_from_a_superseded_membership_is_not_asked() -> None:
    found = job_of("ab")
    on_disconnect(found, "b", NOW - 9)
    decide(found, NOW)
    back = hello(B, membership=encode(membership("a", "b")), files=encode(has(NEW)))
    policy = Policy(files=True, join_policy="Never")
    on_expectation(found, Expectation(("a", "b"), policy=policy), NOW)
    on_hello(found, back, NOW)
    decide(found, NOW)
    assert word_for(found, "b") is None
    tell(found, "a", has(), "1.1.2")
    assert word_for(found, "a") == FileInstruction("1.1.2", go=True)
