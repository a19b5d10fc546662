"""Copies from a device that works through a queue: what they wait for, and through which memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpjob_trainer.elastic.state.train_state import TrainState
from ddpjob_trainer.tensors import device_copy
from ddpjob_trainer.tensors.device_copy import ACCELERATORS, BLOCK_BYTES, DeviceCopier
from ddpjob_trainer.tensors.safetensors_writer import SafetensorsBuffer, StagingBuffer
from support.async_group import Device
from trainer.runs import Run


class QueuedAccelerator:
    """A device in the memory of the CPU; the training's stream is a queue."""

    def __init__(self) -> None:
        self.stream = Device()
        self.pinned: list[int] = []
        self._here = threading.local()

    def mark(self) -> threading.Event:
        done = threading.Event()
        if getattr(self._here, "copies", False):
            done.set()  # a copy is done when it returns
        else:
            self.stream.queue(done.set)
        return done

    def wait(self, mark: Any) -> None:
        mark.wait()

    @contextlib.contextmanager
    def copying(self, after: Any) -> Iterator[None]:
        after.wait()
        self._here.copies = True
        yield
        self._here.copies = False

    def pin(self, size: int) -> torch.Tensor:
        self.pinned.append(size)
        return torch.empty(size, dtype=torch.uint8)


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueuedAccelerator]:
    """Such a device in the place of the CPU."""
    found = QueuedAccelerator()
    monkeypatch.setitem(ACCELERATORS, "cpu", lambda _: found)
    device_copy._copier.cache_clear()
    yield found
    device_copy._copier.cache_clear()


def read(image: SafetensorsBuffer) -> bytes:
    parts: list[bytes] = []
    image.stream_to(lambda chunks: parts.extend(map(bytes, chunks)))
    return b"".join(parts)


@pytest.mark.parametrize("copies", [True, False])
def test_a_copy_waits_for_what_was_queued_before_the_save_and_for_nothing_later(
    accelerator: QueuedAccelerator, *, copies: bool
) -> None:
    tensor, may_step, hangs = torch.zeros(1000), threading.Event(), threading.Event()
    accelerator.stream.queue(lambda: (may_step.wait(), tensor.fill_(7.0)))  # type: ignore[arg-type]
    image = SafetensorsBuffer({"a": tensor})
    accelerator.stream.queue(hangs.wait)  # type: ignore[arg-type]
    if copies:
        image.allocate(StagingBuffer())
    may_step.set()
    if copies:
        image.copy(["a"])
    assert read(image).endswith(torch.full((1000,), 7.0).numpy().tobytes())
    hangs.set()


def test_bytes_pass_through_two_small_pinned_blocks() -> None:
    accelerator = QueuedAccelerator()
    copier = DeviceCopier(accelerator)
    for size in (BLOCK_BYTES * 5 // 2, 12, 0):
        source = torch.arange(size, dtype=torch.int64).to(torch.uint8)
        target = torch.empty_like(source)
        copier.copy(source, target, accelerator.mark())
        assert torch.equal(source, target)
    turned = torch.arange(12.0).reshape(3, 4).T
    target = torch.empty(48, dtype=torch.uint8)
    copier.copy(turned, target, accelerator.mark())
    assert torch.equal(target.view(torch.float32).view(4, 3), turned)
    assert accelerator.pinned == [BLOCK_BYTES] * 2


def test_a_state_is_dumped_although_the_device_hangs(
    accelerator: QueuedAccelerator, tmp_path: Path
) -> None:
    run, hangs = Run(), threading.Event()
    training = TrainState(run.model, run.optimizer, None, None, None, None)
    training.done = 0
    training.begin()
    run.train(1)
    training.count()  # the first body shows what a body does
    training.begin()
    run.train(1)
    accelerator.stream.queue(hangs.wait)  # type: ignore[arg-type] # a collective behind the step
    dumped: list[int | None] = []
    thread = threading.Thread(target=lambda: dumped.append(training.dump(tmp_path / "left")))
    thread.start()
    thread.join()
    assert dumped == [2]
    hangs.set()
