"""Every process reports by itself that it is alive, its step and its line in the script."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from support.forked import Forks, Program

if TYPE_CHECKING:
    from trainer.conftest import Listener

SCRIPT = """
    import json, sys, time
    from ddpjob_trainer.reporting import progress

    def wait_for_data():
        json.dumps(time.sleep(3600))

    progress.resumed(41)
    progress.step_done(42)
    wait_for_data()
"""


@pytest.fixture
def start(
    forks: Forks, tmp_path: Path, listener: Listener, python_env: dict[str, str]
) -> Iterator[Callable[..., Program]]:
    """Starts the script with further variables; it ends with the test."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    started = []

    def start(**variables: str) -> Program:
        environment = {**python_env, "DDPJOB_REPORT_SOCKET": str(listener.path), **variables}
        started.append(forks.start(script, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("rank", [0, 3])
def test_a_process_that_hangs_reports_its_line(
    listener: Listener, start: Callable[..., Program], rank: int
) -> None:
    start(RANK=str(rank), DDPJOB_MEMBERSHIP="1.1.7")
    while listener.next_sign()["step"] != 42:
        pass  # the first sign is given as soon as there is a step
    for _ in range(2):  # again and again
        assert listener.next_sign() == {
            "event": "alive",
            "rank": rank,
            "step": 42,
            "where": "train.py:6 in wait_for_data",
            "membership": "1.1.7",
        }


def test_a_process_that_is_stopped_sends_no_heartbeat(
    listener: Listener, start: Callable[..., Program]
) -> None:
    process = start(RANK="1")
    while listener.next_sign()["step"] != 42:
        pass
    process.send_signal(signal.SIGSTOP)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        pass
    listener.pending()  # its earlier output
    listener.socket.settimeout(3)  # three times as long as one that lives is silent
    with pytest.raises(TimeoutError):
        listener.next_sign()
    listener.socket.settimeout(120)
    process.send_signal(signal.SIGCONT)
    assert listener.next_sign()["step"] == 42


def test_without_a_rank_the_message_has_none(
    listener: Listener, start: Callable[..., Program]
) -> None:
    """Every process would be taken for the first one."""
    unranked, ranked = start(), start(RANK="1")
    signs = [listener.next_sign() for _ in range(3)]
    assert {each["rank"] for each in signs} == {1}
    assert (unranked.poll(), ranked.poll()) == (None, None)
