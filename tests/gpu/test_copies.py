"""Copies from a GPU: what they wait for, their memory, and a state that a process leaves."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from ddpjob_trainer.elastic.group.commit_gate import CommitGate
from ddpjob_trainer.elastic.group.process_group import ElasticProcessGroup
from ddpjob_trainer.elastic.state.train_state import TrainState
from ddpjob_trainer.tensors.device_copy import (
    BLOCK_BYTES,
    CudaAccelerator,
    DeviceCopier,
    StreamMarks,
)
from trainer.runs import assert_same

LONG = 2 * 10**9  # cycles of the GPU: about a second


@pytest.mark.parametrize("size", [0, 12, BLOCK_BYTES, BLOCK_BYTES * 5 // 2])
def test_a_copy_has_all_bytes(gpu: torch.device, size: int) -> None:
    accelerator = CudaAccelerator(gpu)
    source = torch.arange(size, device=gpu).to(torch.uint8)
    target = torch.empty(size, dtype=torch.uint8, device="cpu")
    DeviceCopier(accelerator).copy(source, target, accelerator.mark())
    assert torch.equal(source.cpu(), target)


def test_a_turned_tensor_is_copied_in_its_order(gpu: torch.device) -> None:
    source = torch.arange(12.0, device=gpu).reshape(3, 4).T
    target = torch.empty(48, dtype=torch.uint8, device="cpu")
    StreamMarks([source]).copy(source, target)
    assert torch.equal(target.view(torch.float32).view(4, 3), source.cpu())


def test_a_copy_waits_for_what_was_queued_before(gpu: torch.device) -> None:
    source = torch.zeros(1000, device=gpu)
    torch.cuda._sleep(LONG)
    source.fill_(7)
    marks = StreamMarks([source])
    target = torch.empty(4000, dtype=torch.uint8, device="cpu")
    marks.copy(source, target)
    assert target.view(torch.float32).eq(7).all()


def test_a_copy_waits_for_nothing_that_was_queued_later(gpu: torch.device) -> None:
    source = torch.zeros(1000, device=gpu)
    target = torch.empty(4000, dtype=torch.uint8, device="cpu")
    StreamMarks([source]).copy(source, target)  # allocates the blocks
    marks = StreamMarks([source])
    torch.cuda._sleep(LONG)
    after = torch.cuda.Event()
    after.record()
    marks.copy(source, target)
    assert not after.query(), "the kernel still runs"
    torch.cuda.synchronize(gpu)


def test_blocks_are_pinned(gpu: torch.device) -> None:
    block = CudaAccelerator(gpu).pin(BLOCK_BYTES)
    assert block.is_pinned()
    assert block.nbytes == BLOCK_BYTES


def test_a_state_is_dumped_while_a_kernel_runs(gpu: torch.device, tmp_path: Path) -> None:
    net = torch.nn.Linear(64, 64).to(gpu)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    training = TrainState(net, optimizer, None, None, None, None)
    training.done = 0
    for _ in range(2):
        training.begin()
        optimizer.zero_grad()
        net(torch.ones(2, 64, device=gpu)).square().mean().backward()
        optimizer.step()
        training.count()
    expected = {name: each.cpu() for name, each in net.state_dict().items()}
    torch.cuda._sleep(5 * LONG)
    after = torch.cuda.Event()
    after.record()
    dumped: list[int | None] = []
    thread = threading.Thread(target=lambda: dumped.append(training.dump(tmp_path / "left")))
    thread.start()
    thread.join()
    assert dumped == [2]
    assert not after.query(), "the kernel still runs"
    torch.cuda.synchronize(gpu)
    left = torch.load(tmp_path / "left", map_location="cpu", weights_only=False)
    assert_same(expected, dict(left["state"]["model"]))


def test_a_step_in_a_cuda_graph_is_refused(gpu: torch.device) -> None:
    parameter = torch.nn.Parameter(torch.ones(3, device=gpu))
    gate = CommitGate(ElasticProcessGroup("gloo"), [parameter])
    gate.check()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(RuntimeError, match="captured in a CUDA graph"):
        gate.check()
