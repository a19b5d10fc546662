"""Real sockets and environments to try the trainer library with."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from ddpjob_protocol import environment as variables
from ddpjob_protocol.environment import ENV_REPORT_SOCKET
from ddpjob_trainer.reporting import progress
from support.forked import environment
from trainer.runs import Run

torch.set_num_threads(1)  # a second one spins while it waits: 30 times the CPU seconds


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "RANK",
        "WORLD_SIZE",
        *(v for k, v in vars(variables).items() if k[:4] == "ENV_"),
    ):
        monkeypatch.delenv(name, raising=False)
    progress._steps.begin()  # nothing of the test before


@pytest.fixture
def python_env() -> dict[str, str]:
    """For processes that import the trainer."""
    return environment()


class Listener:
    """An agent's report socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(120)

    def next(self) -> dict[str, Any]:
        """The next report; that a process is alive is none."""
        while (message := self._receive())["event"] == "alive":
            pass
        return message

    def next_sign(self) -> dict[str, Any]:
        """The next word that a process is alive."""
        while (message := self._receive())["event"] != "alive":
            pass
        return message

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.socket.recv(1 << 16))
        return message

    def pending(self) -> list[dict[str, Any]]:
        self.socket.setblocking(False)
        messages = []
        while True:
            try:
                messages.append(self.next())
            except BlockingIOError:
                self.socket.settimeout(120)
                return messages


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    listener = Listener(tmp_path / "report.sock")
    monkeypatch.setenv(ENV_REPORT_SOCKET, str(listener.path))
    yield listener
    listener.socket.close()


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of one rank."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
