"""Which errors of a step mean a broken group, and which reach the user."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import distributed

from ddpjob_protocol.messages.process import Assignment
from ddpjob_trainer.elastic.group import group_breaks
from ddpjob_trainer.elastic.group.break_errors import GroupAbortedError
from ddpjob_trainer.elastic.group.group_breaks import GroupBreaks
from ddpjob_trainer.errors import SnapshotError

GLOO = "[/build/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.1]:4."


@dataclasses.dataclass
class Agent:
    """An agent that ends the membership: at once, when a process waits for it, or never."""

    ends: str = "never"
    asked: int = 0
    assignment: Assignment = dataclasses.field(default_factory=Assignment)

    def is_superseded(self) -> bool:
        return self.ends == "at once"

    def wait_for_change(self, assignment: Assignment, seconds: float) -> bool:
        self.asked += 1
        if self.ends == "soon":
            self.ends = "at once"
        return self.ends != "never"

    def wait_until_superseded(self, seconds: float, why: str) -> bool:
        return self.ends != "never"


def raised_by(function: Callable[[], object]) -> Exception:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - whatever torch raises
        return error
    raise AssertionError("no error")


@pytest.fixture(scope="module")
def gloo_error() -> Exception:
    """A peer that does not answer: the error of gloo's own code, as torch passes it on."""
    store = distributed.HashStore()
    seconds = dt.timedelta(seconds=1)

    def join(rank: int) -> Any:  # torch's stubs lack its collectives
        return distributed.ProcessGroupGloo(store, rank, 2, seconds)

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        first, _second = threads.map(join, range(2))
    work = first.allreduce([torch.ones(1)])
    error = raised_by(work.wait)
    assert type(error) is RuntimeError, "gloo's errors have no type of their own"
    return error


def store_error() -> Exception:
    store = distributed.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=dt.timedelta(seconds=60)
    )
    return raised_by(lambda: store.wait(["never"], dt.timedelta(milliseconds=1)))


def from_script(kind: type[Exception], text: str, cause: Exception | None = None) -> Exception:
    def script() -> None:
        raise kind(text) from cause

    return raised_by(script)


def no_group() -> Exception:
    error = raised_by(lambda: distributed.all_reduce(torch.ones(1)))
    assert isinstance(error, ValueError)
    return error


def wrong_shape() -> Exception:
    loss = torch.ones(3, requires_grad=True) * 2
    return raised_by(loss.backward)


def test_errors_of_a_group_are_breaks(gloo_error: Exception) -> None:
    breaks = GroupBreaks(Agent())
    for error in (
        gloo_error,
        store_error(),
        from_script(GroupAbortedError, "aborted"),
        from_script(OSError, "my collective failed", cause=gloo_error),
    ):
        assert breaks.is_break(error), repr(error)


@pytest.mark.parametrize(
    "text",
    [
        "tokenizer: vocabulary file igloo.txt is missing",
        "cannot read /jobs/gloo-demo/data: NCCL, Connection reset, Broken pipe, process group",
        GLOO,
    ],
)
@pytest.mark.parametrize("kind", [RuntimeError, ValueError, OSError])
def test_no_word_makes_a_break_of_a_scripts_error(kind: type[Exception], text: str) -> None:
    agent = Agent()
    assert not GroupBreaks(agent).is_break(from_script(kind, text))
    assert agent.asked == 0, "the script's error is shown at once"


@pytest.mark.parametrize("make", [no_group, wrong_shape])
def test_the_agent_decides_about_errors_of_unclear_origin(make: Callable[[], Exception]) -> None:
    error, agent = make(), Agent()
    assert not GroupBreaks(agent).is_break(error)
    assert agent.asked == 1
    assert GroupBreaks(Agent("soon")).is_break(error)


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, KeyError])
def test_any_error_in_a_membership_that_has_ended_is_a_break(kind: type[Exception]) -> None:
    assert GroupBreaks(Agent("at once")).is_break(from_script(kind, "anything"))


@pytest.mark.parametrize("ends", ["never", "at once"])
def test_a_snapshot_that_does_not_fit_is_never_a_break(ends: str, gloo_error: Exception) -> None:
    misfit = from_script(SnapshotError, "the snapshot in gloo-demo does not fit", cause=gloo_error)
    assert not GroupBreaks(Agent(ends)).is_break(misfit)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_the_end_of_the_script_is_never_a_break(error: BaseException) -> None:
    assert not GroupBreaks(Agent("at once")).is_break(error)


def test_without_an_agent_no_error_is_a_break(gloo_error: Exception) -> None:
    assert not GroupBreaks(None).is_break(gloo_error)


def test_a_break_that_no_agent_confirms_reaches_the_user(
    gloo_error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_breaks, "NEWS_SECONDS", 0.0)
    with pytest.raises(RuntimeError, match=re.escape(str(gloo_error))):
        GroupBreaks(Agent()).handle(gloo_error)
