"""The newest copy of a script's files, and the requests to workers: decided without a clock."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from agent.file_sync.replicas import NEW, OLD, A, B, C, copy, has
from agent.membership.views import NOW, membership, running, worker
from ddpjob_agent.file_sync.decisions.policy import FileSyncPolicy
from ddpjob_agent.file_sync.decisions.replica import (
    FileEntry,
    FileInstruction,
    FileInventory,
    digest_of,
    newest,
)
from ddpjob_agent.membership.policy import decide_membership
from ddpjob_agent.membership.state import Action, Decision, WorkerState
from ddpjob_protocol.messages.control import Expectation, Policy
from ddpjob_protocol.messages.membership import Member

# The oldest first: files that no agent saw written, then by membership, then by time in it.
IN_ORDER = [
    copy("0.0.0"),
    copy("1.1.1"),
    copy("1.1.1", 900.0),
    copy("1.1.2"),
    copy("1.1.2", 0.5),
    copy("1.1.10"),
    copy("1.2.3"),
    copy("2.1.1", 3.0),
]


def test_the_newest_copy_is_of_the_last_membership_whatever_the_time() -> None:
    for order in itertools.islice(itertools.permutations(IN_ORDER), 0, None, 401):
        assert sorted(order, key=lambda each: each.order) == IN_ORDER
        assert newest(order) == IN_ORDER[-1]


def test_of_nothing_there_is_no_newest() -> None:
    assert newest([]) is None


def test_content_differs_by_names_and_bytes_but_not_by_permissions() -> None:
    parts = [FileEntry("a", 1, "x", 0o644), FileEntry("b", 2, "y", 0o644)]
    assert digest_of(parts) == digest_of([part._replace(mode=0o600) for part in parts])
    others: list[list[FileEntry]] = [parts[:1], [parts[0]._replace(name="c"), parts[1]], []]
    assert len({digest_of(parts), *map(digest_of, others)}) == 4


# --- from which copy a membership begins ------------------------------------------------------------


class Round:
    """The inventories of the agents in one scope."""

    def __init__(self, scope: str = "1.1.2", **stocks: FileInventory) -> None:
        self.files = FileSyncPolicy()
        self.files.enter(scope)
        self.scope = scope
        for name, stock in stocks.items():
            self.tell(name, stock)

    def tell(self, name: str, stock: FileInventory) -> None:
        self.files.on_inventory(name, dataclasses.replace(stock, scope=self.scope))

    def words(self, *members: Member, leaving: tuple[Member, ...] = ()) -> list[FileInstruction]:
        self.files.advance(members, leaving)
        return [*map(self.files.instructions(members, leaving), (*members, *leaving))]


def test_no_instruction_is_sent_before_all_inventories_arrived() -> None:
    job = Round(a=has(OLD))
    assert job.words(A, B) == [FileInstruction("1.1.2")] * 2
    job.files.on_inventory("b", FileInventory("1.1.1", (NEW,)))
    assert job.words(A, B) == [FileInstruction("1.1.2")] * 2, "the report was of another scope"


def test_all_begin_from_the_newest_copy_that_anybody_has() -> None:
    job = Round(a=has(OLD, installed="old"), b=has(OLD, NEW, installed=None, port=7))
    put = FileInstruction("1.1.2", NEW, (("127.0.0.1", 7),), put=True)
    assert job.words(A, B) == [put, put]


def test_they_start_when_all_have_installed_it() -> None:
    job = Round(a=has(NEW, installed="new"), b=has(installed=None))
    assert not any(word.go for word in job.words(A, B))
    job.tell("b", has(NEW, installed="new"))
    assert job.words(A, B) == [FileInstruction("1.1.2", go=True)] * 2


def test_where_nobody_has_any_all_start_with_nothing() -> None:
    job = Round(a=has(), b=has(installed=None))
    assert job.words(A, B) == [FileInstruction("1.1.2", put=True)] * 2, "what b has is torn"
    job.tell("b", has())
    assert job.words(A, B) == [FileInstruction("1.1.2", go=True)] * 2


def test_next_newest_where_the_newest_is_gone() -> None:
    job = Round(a=has(OLD, installed="old"), b=has(NEW, installed=None))
    assert job.words(A, B)[0].copy == NEW
    job.tell("b", has(installed=None))
    assert [word.copy for word in job.words(A, B)] == [OLD, OLD]


def test_copy_that_an_agent_refuses_is_not_named_again() -> None:
    """All agents have the same rules, so no agent would install it."""
    job = Round(a=has(OLD, installed="old"), b=has(NEW, installed="new"))
    assert {word.copy for word in job.words(A, B)} == {NEW}
    job.tell("a", dataclasses.replace(has(OLD, installed="old"), refused=("new",)))
    assert {word.copy for word in job.words(A, B)} == {OLD}
    job.tell("b", has(OLD, NEW, installed="old"))
    assert all(word.go and not word.keep for word in job.words(A, B))


def test_who_leaves_is_asked_too_and_stays_for_so_long() -> None:
    job = Round(a=has(OLD, installed="old"))
    assert job.words(A, leaving=(B,)) == [
        FileInstruction("1.1.2"),
        FileInstruction("1.1.2", wait=True),
    ]
    job.tell("b", has(NEW, installed="new", port=7))
    word, last = job.words(A, leaving=(B,))
    assert (word.copy, word.holders, last) == (
        NEW,
        (("127.0.0.1", 7),),
        FileInstruction("1.1.2", wait=True),
    )
    job.tell("a", has(NEW, installed="new"))
    assert job.words(A, leaving=(B,)) == [FileInstruction("1.1.2", go=True)] * 2


def test_who_has_begun_lets_the_others_begin_after_the_service_forgot() -> None:
    newer = copy("1.1.2", 5)
    job = Round(a=has(newer, installed=None, begun=True), b=has(OLD, installed="old"))
    assert all(word.go for word in job.words(A, B))


# --- while they run ---------------------------------------------------------------------------------


def test_second_worker_gets_what_one_has() -> None:
    begun, saved = copy("1.1.2", 0, "begun"), copy("1.1.2", 5, "saved")
    job = Round(a=has(begun, begun=True), b=has(begun), c=has(begun))
    assert job.words(A, B, C) == [FileInstruction("1.1.2", go=True)] * 3
    assert job.files.safe_replica((A, B, C)) is None, "nothing new yet"
    job.tell("c", has(begun, saved, port=7))
    keep = FileInstruction("1.1.2", saved, (("127.0.0.1", 7),), go=True, keep=True)
    go = FileInstruction("1.1.2", go=True)
    assert job.words(A, B, C) == [keep, go, go], "it comes after c, the last one"
    assert job.files.safe_replica((A, B, C)) is None
    job.tell("a", has(begun, saved))
    assert job.words(A, B, C) == [go] * 3
    assert job.files.safe_replica((A, B, C)) == saved


def test_only_worker_is_as_safe_as_it_can_be() -> None:
    saved = copy("1.1.2", 5)
    job = Round(a=has(saved, begun=True))
    assert job.words(A) == [FileInstruction("1.1.2", go=True)]
    assert job.files.safe_replica((A,)) == saved


# --- when it has ended, and nothing follows ---------------------------------------------------------


def at_end(
    job: Round, staying: list[Member], leaving: list[Member], *, more: bool
) -> list[FileInstruction]:
    return [*map(job.files.final_instructions(staying, leaving, more=more), (*staying, *leaving))]


def test_a_staying_worker_gets_the_copy_of_a_leaving_one() -> None:
    job = Round("1.1.1+", a=has(OLD))
    assert at_end(job, [A], [B], more=False) == [
        FileInstruction("1.1.1+"),
        FileInstruction("1.1.1+", wait=True),
    ]
    job.tell("b", has(OLD, NEW, port=7))
    keep = FileInstruction("1.1.1+", NEW, (("127.0.0.1", 7),), keep=True)
    assert at_end(job, [A], [B], more=False) == [keep, FileInstruction("1.1.1+", wait=True)]
    job.tell("a", has(OLD, NEW))
    assert at_end(job, [A], [B], more=False) == [FileInstruction("1.1.1+")] * 2


@pytest.mark.parametrize("more", [True, False], ids=["successor_comes", "nobody_comes"])
def test_who_leaves_alone_waits_for_a_successor_only(more: bool) -> None:
    job = Round("1.1.1+", a=has(NEW))
    assert at_end(job, [], [A], more=more) == [FileInstruction("1.1.1+", wait=more)]


def test_who_leaves_with_nothing_waits_for_nobody() -> None:
    job = Round("1.1.1+", a=has())
    assert at_end(job, [], [A], more=True) == [FileInstruction("1.1.1+")]


# --- joiners ----------------------------------------------------------------------------------------

FILES = Policy(settle=3, max_join_wait=900, files=True)


def joining(kept_at: float | None, arrived: float, policy: Policy = FILES) -> Decision:
    joiner = worker("c", registered_at=arrived)
    workers: tuple[WorkerState, ...] = (worker("a"), worker("b"), joiner)
    expectation = Expectation(("a", "b", "c"), policy=policy)
    current = membership("a", "b")
    view = running(current, *workers, policy=policy, expectation=expectation, kept_at=kept_at)
    return decide_membership(view, NOW)


def test_joiner_waits_for_the_next_save_of_the_script() -> None:
    for kept_at in (None, NOW - 60):
        decision = joining(kept_at, arrived=NOW - 50)
        assert decision.action is Action.KEEP
        assert "c waits for the script to save its files, 900 s at most" in decision.reason
    assert joining(kept_at=NOW - 40, arrived=NOW - 50).action is Action.FORM


def test_it_does_not_wait_for_ever() -> None:
    assert joining(kept_at=None, arrived=NOW - 901).action is Action.FORM


def test_what_reports_snapshots_is_not_waited_for_in_this_way() -> None:
    joiner = worker("c", registered_at=NOW - 9)
    view = running(
        membership("a", "b"), worker("a"), worker("b"), joiner, policy=FILES, kept_at=NOW,
        expectation=Expectation(("a", "b", "c"), policy=FILES), snapshot_step=4,
    )  # fmt: skip
    assert "the next snapshot" in decide_membership(view, NOW).reason
