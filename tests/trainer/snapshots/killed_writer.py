"""Trains, saves in the background after every step, and is killed at some moment; many times.

    killed_writer.py DIRECTORY KILLS SEED

After each kill what is left is restored: nothing older than what was announced, and to the bit what
an undisturbed run has after that step. The next writer resumes from there, in that directory.
"""

from __future__ import annotations

import json
import logging
import os
import random
import select
import signal
import socket
import sys
import time
from pathlib import Path

import torch

from ddpjob_protocol.environment import ENV_REPORT_SOCKET
from ddpjob_protocol.messages.process import ProgressEvent
from ddpjob_trainer import Snapshots
from trainer.runs import Run, assert_same


class Undisturbed:
    """The weights after each step of an undisturbed run."""

    def __init__(self) -> None:
        self._run = Run()
        self._weights = [self._run.weights()]

    def after(self, step: int) -> dict[str, torch.Tensor]:
        while step >= len(self._weights):
            self._run.train(1, first=len(self._weights) - 1)
            self._weights.append(self._run.weights())
        return self._weights[step]


def train_on(directory: Path) -> None:
    run, snapshots = Run(seed=1), Snapshots(directory, keep=2)
    loaded = snapshots.load(**run.parts())
    step = loaded.step if loaded else 0
    if loaded is None:
        run = Run()
    while True:
        run.train(1, first=step)
        step += 1
        snapshots.save(step, **run.parts())


class Reports:
    """The reports of the writer, over the socket that an agent would have."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.announced = 0  # the highest step

    def wait(self, seconds: float) -> bool:
        """Return whether there was a report within these seconds."""
        if not select.select([self._socket], [], [], seconds)[0]:
            return False
        report = json.loads(self._socket.recv(1 << 16))
        if report["event"] == ProgressEvent.SAVED.value:
            self.announced = max(self.announced, report["step"])
        return True


def kill_one(directory: Path, reports: Reports, saves: int, moment: float, period: float) -> float:
    """Kill the writer some time after this many snapshots; return the time of one snapshot."""
    child = os.fork()
    if child == 0:
        try:
            train_on(directory)
        finally:
            os._exit(1)
    assert reports.wait(300), "it does not start"
    for _ in range(saves):
        began = time.monotonic()
        assert reports.wait(300), "it does not save"
        period = time.monotonic() - began
    until = time.monotonic() + moment * period
    while reports.wait(max(0.0, until - time.monotonic())):
        pass
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it ended by itself"
    while reports.wait(0):
        pass
    return period


def main(directory: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    socket_path = directory.with_suffix(".sock")
    reports = Reports(socket_path)
    undisturbed, numbers, period, later = Undisturbed(), random.Random(seed), 0.0, 0
    for kill in range(kills):
        saves = numbers.choice((0, 1, 2)) if kill else 2
        os.environ[ENV_REPORT_SOCKET] = str(socket_path)
        period = kill_one(directory, reports, saves, numbers.random(), period)
        del os.environ[ENV_REPORT_SOCKET]
        run, announced = Run(seed=1), reports.announced
        loaded = Snapshots(directory).load(**run.parts())
        assert loaded is not None, f"kill {kill}: {announced} was announced, nothing is there"
        step = loaded.step
        assert step >= announced, f"kill {kill}: {announced} was announced, {step} is there"
        assert_same(undisturbed.after(step), run.weights())
        later += step > announced
        reports.announced = step
    told = {"step": reports.announced, "later than announced": later}
    sys.stdout.write(f"{json.dumps(told)}\n")


if __name__ == "__main__":
    logging.disable()
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
