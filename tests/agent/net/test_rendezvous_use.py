"""The warning of a command that never uses torchrun's rendezvous: once, and not after a use."""

from __future__ import annotations

from ddpjob_agent.net.rendezvous_use import RENDEZVOUS_SECONDS, ExpectedUse, RendezvousUse
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId
from ddpjob_protocol.messages.warnings import AgentWarning

NOW = 1000.0
LATE = NOW + RENDEZVOUS_SECONDS
MEMBERS = (Member("a", "x", "127.0.0.1", 2), Member("b", "x", "127.0.0.1", 2))
EXPECTED = ExpectedUse.of(Membership(MembershipId(1, 1, 2), MEMBERS, Cause.STARTED, ""))


def started(expected: ExpectedUse | None = EXPECTED) -> RendezvousUse:
    use = RendezvousUse()
    use.on_start(expected, NOW)
    return use


def check(warning: AgentWarning | None, *, has_ended: bool = False) -> None:
    assert warning is not None
    assert (warning.reason, warning.membership) == ("NotDistributed", "1.1.2")
    if has_ended:
        assert warning.message == ""
    else:
        assert "not in a group of 4 processes; use [torchrun, train.py], or" in warning.message


def test_a_command_that_runs_long_is_reported_once() -> None:
    use = started()
    assert use.detect(LATE - 1) is None
    check(use.detect(LATE))
    assert use.detect(LATE + 100) is None
    assert use.on_exit(succeeded=True) is None, "the warning still holds"


def test_a_late_use_ends_the_warning() -> None:
    use = started()
    check(use.detect(LATE))
    check(use.on_request("1.1.2"), has_ended=True)
    assert use.on_request("1.1.2") is None
    assert use.on_exit(succeeded=True) is None


def test_a_command_that_succeeds_early_is_reported_at_its_end() -> None:
    use = started()
    check(use.on_exit(succeeded=True))
    assert use.detect(LATE) is None


def test_a_use_in_time_is_no_problem() -> None:
    use = started()
    assert use.on_request("1.1.2") is None
    assert use.detect(LATE) is None
    assert use.on_exit(succeeded=True) is None


def test_a_client_of_an_older_membership_does_not_count() -> None:
    use = started()
    assert use.on_request("1.1.1") is None
    check(use.detect(LATE))


def test_a_command_that_fails_or_needs_no_rendezvous_is_not_reported() -> None:
    assert started().on_exit(succeeded=False) is None
    assert started(None).detect(LATE) is None
    assert started(None).on_exit(succeeded=True) is None


def test_each_start_is_judged_anew() -> None:
    use = started()
    check(use.detect(LATE))
    use.on_start(EXPECTED, LATE)
    assert use.detect(LATE + 1) is None
    check(use.on_exit(succeeded=True))
