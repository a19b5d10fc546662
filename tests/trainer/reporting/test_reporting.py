"""Reports reach the agent when they can, and cost training nothing when they cannot."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ddpjob_protocol.environment import ENV_REPORT_SOCKET
from ddpjob_protocol.parsers.progress import ProgressReport
from ddpjob_trainer import step_done
from ddpjob_trainer.reporting import progress
from support.forked import Forks

if TYPE_CHECKING:
    from trainer.conftest import Listener


def fill(path: Path) -> int:
    """Sends until the socket takes no more; how many that were."""
    sent = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        while True:
            try:
                sender.sendto(b'{"event": "filler"}', str(path))
            except BlockingIOError:
                return sent
            sent += 1


def events(listener: Listener) -> list[tuple[str, int]]:
    return [(each["event"], each["step"]) for each in listener.pending()]


def test_a_step_travels_with_total_and_metrics(listener: Listener) -> None:
    step_done(12, 900, loss=0.5, accuracy=torch.tensor(0.25))  # type: ignore[arg-type]
    assert listener.next() == {
        "event": "step",
        "step": 12,
        "total": 900,
        "metrics": {"loss": 0.5, "accuracy": 0.25},
    }


def test_a_step_without_total_reports_none(listener: Listener) -> None:
    step_done(3)
    assert listener.next() == {"event": "step", "step": 3, "metrics": {}}


def test_metrics_that_json_cannot_hold_are_left_out(listener: Listener) -> None:
    step_done(1, loss=float("nan"), best=float("inf"), name="x", rate=1)  # type: ignore[arg-type]
    assert listener.next()["metrics"] == {"rate": 1.0}


def test_an_agent_accepts_a_report_of_any_metrics(listener: Listener) -> None:
    many: dict[str, Any] = {f"metric {n}": float(n) for n in range(100)}
    odd = {"": 1.0, "x" * 65: 1.0, "two\nlines": 1.0, "huge": 10**400}
    step_done(1, **{**many, **odd})
    metrics = ProgressReport.parse(listener.next()).metrics
    assert list(metrics) == list(many)[-64:]


def test_saved_and_resumed_travel(listener: Listener) -> None:
    progress.saved(20)
    progress.resumed(0)
    assert listener.pending() == [
        {"event": "saved", "step": 20},
        {"event": "resumed", "step": 0},
    ]


def test_only_rank_0_reports(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    step_done(1)
    progress.saved(1)
    progress.resumed(1)
    assert listener.pending() == []


@pytest.mark.parametrize(
    "path",
    [None, "", "/nowhere/report.sock", "/" + "x" * 200],
    ids=["unset", "empty", "no listener", "too long"],
)
def test_without_an_agent_nothing_happens(
    path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path is not None:
        monkeypatch.setenv(ENV_REPORT_SOCKET, path)
    step_done(1, 2, loss=1.0)
    progress.saved(1)
    progress.resumed(1)


def test_a_full_socket_drops_steps_without_waiting(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SEND_SECONDS", 3600)  # a step that waited would hang the test
    fill(listener.path)
    step_done(1, 3, loss=1.0)
    step_done(2, 3, accuracy=0.5)
    told = [each for each in listener.pending() if each["event"] == "step"]
    if not told:  # the pulse may have been quicker
        step_done(2, 3)
        told = listener.pending()
    assert {message["step"] for message in told} == {2}
    assert told[0]["metrics"] == {"loss": 1.0, "accuracy": 0.5}


def test_a_full_socket_does_not_hold_up_rare_reports_for_ever(listener: Listener) -> None:
    fillers = fill(listener.path)
    progress.saved(1)
    progress.resumed(1)
    assert len(listener.pending()) == fillers


def test_of_many_steps_the_newest_is_reported(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the pulse, if none comes after it; of each metric the newest value is in it."""
    monkeypatch.setattr(progress, "INTERVAL", 3600)
    for step in range(1, 100):
        step_done(step, 200, **({"loss": 1 / step} if step < 50 else {"accuracy": 0.5}))
    told = [listener.next()]
    while told[-1]["step"] < 99:
        told.append(listener.next())
    assert told[0]["step"] == 1
    assert len(told) < 5
    metrics: dict[str, float] = {}
    for each in told:
        metrics |= each["metrics"]
    assert metrics == {"loss": 1 / 49, "accuracy": 0.5}


def test_events_after_a_step_are_sent_after_it(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 3600)
    for step in (1, 2):
        step_done(step)
    progress.saved(2)
    assert events(listener) == [("step", 1), ("step", 2), ("saved", 2)]


def test_steps_of_an_ended_membership_are_not_reported_in_the_next(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step of the new one is reported at once."""
    monkeypatch.setattr(progress, "INTERVAL", 3600)
    for step in (1, 2):
        step_done(step)
    progress.resumed(0)
    step_done(1)
    told = [each for each in events(listener) if each != ("step", 2)]  # of the pulse, perhaps
    assert told == [("step", 1), ("resumed", 0), ("step", 1)]


def test_the_last_step_is_reported_when_the_script_ends(
    forks: Forks, tmp_path: Path, listener: Listener, python_env: dict[str, str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from ddpjob_trainer import step_done\nfor step in range(50): step_done(step)"
    )
    env = {**python_env, ENV_REPORT_SOCKET: str(listener.path)}
    assert forks.start(script, env=env).wait() == 0
    assert listener.pending()[-1]["step"] == 49


def test_the_last_step_waits_for_room(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    about_to_send = threading.Event()
    patience: list[float | None] = []

    class Watched(socket.socket):
        def send(self, *arguments: Any) -> int:
            patience.append(self.gettimeout())
            about_to_send.set()
            return super().send(*arguments)

    monkeypatch.setattr(socket, "socket", Watched)
    monkeypatch.setattr(progress, "SEND_SECONDS", 100)
    fillers = fill(listener.path)
    training = threading.Thread(target=step_done, args=(9, 9), kwargs={"accuracy": 1.0})
    training.start()
    about_to_send.wait()
    assert patience == [100]
    messages = [listener.next() for _ in range(fillers + 1)]
    training.join()
    assert messages[-1] == {"event": "step", "step": 9, "total": 9, "metrics": {"accuracy": 1.0}}
