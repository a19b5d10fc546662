"""Replicas that differ are found, and named; what may differ is left alone."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed

from ddpjob_trainer.elastic.state.checksum import checksum
from ddpjob_trainer.elastic.state.replica_check import ReplicaCheck
from ddpjob_trainer.snapshots.replicas import describe_difference
from support.forked import Forks, environment

RANKS = 3
CASES = {  # what `replicas.py` does, and the words of the error
    "two models": "",
    "accumulated": "",
    "frozen weights": "",
    "other buffers": "",
    "one weight": "the parameter d.bias differs on rank 1 of 3",
    "one weight, not compared": "",
    "after the last step": "the parameter g.weight differs on rank 2 of 3",
    "another momentum": "momentum_buffer of g.weight in optimizer 1 (SGD) differs on rank 0 of 3",
}


@pytest.fixture(scope="module")
def told(
    forks: Forks, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[dict[str, list[str]]]]:
    """Run all cases in three processes; return the error and the result of each rank in each case."""
    stores = [
        distributed.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=dt.timedelta(seconds=60)
        )
        for _ in CASES
    ]
    ports = ",".join(str(store.port) for store in stores)
    folder, script = tmp_path_factory.mktemp("replicas"), Path(__file__).with_name("replicas.py")
    base = {
        **environment(),
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(RANKS),
    }
    ranks = [
        forks.start(script, ports, *CASES, env={**base, "RANK": str(rank)}, folder=folder)
        for rank in range(RANKS)
    ]
    try:
        assert [rank.wait(timeout=240) for rank in ranks] == [0] * RANKS
    finally:
        for each in ranks:
            each.kill()
    yield [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    stores.clear()


@pytest.mark.parametrize("case", CASES)
def test_replicas_that_differ_are_named(told: list[dict[str, list[str]]], case: str) -> None:
    errors = [rank[case][0] for rank in told]
    assert len(set(errors)) == 1, "all ranks raise the same"
    assert CASES[case] in errors[0]
    assert bool(CASES[case]) == bool(errors[0]), errors[0]


def test_two_models_train_as_one(told: list[dict[str, list[str]]]) -> None:
    assert len({rank["two models"][1] for rank in told}) == 1
    assert len({rank["frozen weights"][1] for rank in told}) == 1


def test_accumulated_batches_are_one(told: list[dict[str, list[str]]]) -> None:
    assert [rank["accumulated"][1] for rank in told] == ["3 steps, as in one process"] * RANKS


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int8, torch.complex64])
def test_a_checksum_sees_each_element(kind: torch.dtype) -> None:
    for size in (1, 7, 64):
        values = torch.arange(size).to(kind)
        seen = {checksum(values)}
        for place in range(size):
            other = values.clone()
            other[place] += 1
            seen.add(checksum(other))
        assert len(seen) == size + 1 or size > 1
        assert checksum(values) not in seen - {checksum(values)}


def test_a_checksum_goes_by_value() -> None:
    """Strides, views with odd offsets and lazy conjugates make no difference."""
    whole = torch.randn(6, 5)
    assert checksum(whole.T) == checksum(whole.T.contiguous())
    assert checksum(whole.view(-1)[1:8]) == checksum(whole.view(-1)[1:8].clone())
    assert checksum(whole.view(-1)[1:9]) == checksum(whole.view(-1)[1:9].clone())
    turned = torch.randn(4, dtype=torch.complex64).conj()
    assert checksum(turned) == checksum(turned.resolve_conj())
    assert checksum(torch.empty(0)) == 0


def test_all_that_must_be_equal_is_summed() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    check = ReplicaCheck(model, [optimizer], enabled=True)
    before = check.checksums()
    model[1].running_mean.add_(1)  # type: ignore[operator]
    assert check.checksums() == before, "buffers may differ"

    inputs = torch.randn(4, 2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().sum()
        loss.backward()
        return loss  # type: ignore[no-any-return]

    optimizer.step(closure)
    after = check.checksums()
    assert all(after[name] != each for name, each in before.items() if "0.weight" in name)
    assert any("old_dirs" in name for name in after), "lists of tensors, too"
    assert any("func_evals" in name for name in after), "and numbers"


def test_the_first_difference_is_named() -> None:
    assert describe_difference([{"a": 1, "b": 2}, {"a": 1, "b": 2}]) == ""
    assert "b differs on rank 0 of 3" in describe_difference([{"b": 3}, {"b": 2}, {"b": 2}])
    assert "c differs on ranks 1, 2 of 4" in describe_difference([{"c": 1}, {}, {"c": 2}, {"c": 1}])
