"""Deterministic mode: not one bit depends on how many there are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from ddpjob_trainer import ElasticBatchSampler, Loop
from ddpjob_trainer.data.deterministic import SumTree, TreeNode, subtrees
from ddpjob_trainer.data.partition import shards_of
from support.forked import Forks
from trainer.runs import Run

SCRIPT = """
import hashlib, os, pathlib, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from ddpjob_trainer import ElasticBatchSampler, Loop

mode = int(sys.argv[1]) or None
torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 0.1  # loaders end with their process
torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(50, 7)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used = torch.nn.Sequential(
            torch.nn.Linear(7, 33), torch.nn.GELU(), torch.nn.Dropout(0.3), torch.nn.Linear(33, 3)
        )
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, values):
        return self.used(values)

net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
loader = DataLoader(
    TensorDataset(inputs, inputs.sum(1)), num_workers=1,
    batch_sampler=ElasticBatchSampler(50, 20, seed=5, speed=[3.0, 1.0, 0.5][int(os.environ["RANK"]) % 3]),
)
options = {} if mode else {"find_unused_parameters": True}
loop = Loop(net, optimizer, loader=loader, epochs=4, deterministic=mode, **options)
for step in loop:
    with step:
        optimizer.zero_grad()
        for values, sums in step.parts():
            step.backward((loop.model(values).sum(1) - sums).square().mean())
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
assert net.unused.weight.grad is None or not mode
flat = torch.cat([each.flatten() for each in net.state_dict().values()])
digest = hashlib.sha256(flat.detach().numpy().tobytes()).hexdigest()
pathlib.Path(f"digest-{os.environ['RANK']}").write_text(digest)
os._exit(0)  # torch now and then aborts a process that has finished (docs/failures.md)
"""


def reference(values: list[float]) -> torch.Tensor:
    """The whole tree, by one."""
    if len(values) == 1:
        return torch.tensor(values)
    half = len(values) // 2
    return reference(values[:half]) + reference(values[half:])


@given(
    level=st.integers(0, 5),
    speeds=st.lists(st.floats(0.1, 10), min_size=1, max_size=9),
    seed=st.integers(0, 2**32),
)
def test_the_sum_is_formed_in_one_order(level: int, speeds: list[float], seed: int) -> None:
    numbers = random.Random(seed)
    values = [numbers.gauss(0, 1) * 10 ** numbers.randint(-6, 6) for _ in range(2**level)]
    whole = SumTree()
    for shards in shards_of(speeds, len(values)):
        own = SumTree()
        for shard in shards:
            own.add(TreeNode(0, shard), torch.tensor([values[shard]]))
        assert [node for node, _ in own.sums] == subtrees(shards)
        for node, value in own.sums:
            whole.add(node, value)
    total = whole.total()
    assert total is not None
    assert torch.equal(total, reference(values))


def test_shards_without_samples_add_nothing() -> None:
    tree = SumTree()
    for shard, value in enumerate((None, torch.ones(1), None, None)):
        tree.add(TreeNode(0, shard), value)
    total = tree.total()
    assert total is not None
    assert total.tolist() == [1.0]


def digests(forks: Forks, folder: Path, env: dict[str, str], processes: int, mode: int) -> set[str]:
    """Return the digests of the parameters that the processes end with."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    command = ["--standalone", f"--nproc-per-node={processes}", "train.py", mode]
    assert forks.torchrun(*command, env=env, folder=folder).wait() == 0
    found = [path.read_text() for path in folder.glob("digest-*")]
    assert len(found) == processes
    return {*found}


def test_the_same_bits_for_any_number_of_processes(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    """With dropout, a short last batch and processes of unequal speed."""
    found = set()
    for processes in (1, 3, 5):
        found |= digests(forks, tmp_path / str(processes), python_env, processes, mode=8)
    assert len(found) == 1


def test_without_it_they_differ(forks: Forks, tmp_path: Path, python_env: dict[str, str]) -> None:
    """The test above can fail."""
    found = set()
    for processes in (1, 3):
        found |= digests(forks, tmp_path / str(processes), python_env, processes, mode=0)
    assert len(found) == 2


def train(loop: Loop) -> None:
    for step in loop:
        with step:
            for _ in step.parts():
                step.backward(loop.model(torch.ones(4, 3)).mean())


def test_what_cannot_be_deterministic_is_refused() -> None:
    run = Run()
    data = TensorDataset(torch.ones(2))
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, 2))
    with pytest.raises(ValueError, match="a power of two is needed"):
        Loop(run.model, run.optimizer, loader=loader, epochs=1, deterministic=6)
    with pytest.raises(ValueError, match="needs a loader"):
        Loop(run.model, run.optimizer, steps=1, deterministic=8)
    try:
        loop = Loop(run.model, run.optimizer, loader=loader, epochs=1, deterministic=2)
        with pytest.raises(RuntimeError, match="Use LayerNorm or GroupNorm"):
            train(loop)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.distributed.destroy_process_group()


class Turning(torch.nn.Module):
    """A complex parameter beside a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = torch.nn.Parameter(torch.tensor([0.5 + 0.25j, -1j]))
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        turned: torch.Tensor = self.turn * values
        return self.scale * (turned.real + 2 * turned.imag).square().sum(1)


def test_a_complex_parameter_has_its_whole_gradient() -> None:
    values = torch.randn(10, 2, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(values)
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, 10, shuffle=False))
    model, plain = Turning(), Turning()
    plain(values).mean().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    try:
        for step in Loop(model, optimizer, loader=loader, epochs=1, deterministic=4):
            with step:
                for (part,) in step.parts():
                    step.backward(model(part).mean())
                optimizer.step()
    finally:
        torch.use_deterministic_algorithms(False)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert other.grad is not None
        assert torch.allclose(mine, other - other.grad, atol=1e-5)
