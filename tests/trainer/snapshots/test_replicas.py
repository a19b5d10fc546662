"""Samples of the ranks' weights: equal for equal weights, and without what may differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ddpjob_trainer.snapshots.replicas import PARAMETERS, sample
from support.forked import Forks, environment

SCRIPT = Path(__file__).with_name("two_replicas.py")
CASES = {  # what `two_replicas.py` trains, and the words of the error on rank 0
    "plain": "",
    "no wrapper": "differs on rank 1 of 2",
    "no wrapper, one save": "differs on rank 1 of 2",
    "a part wrapped": "the parameter 0.",
    "frozen and drawn apart": "the parameter 0.",
    "batch norm": "",
    "unused parameters": "",
    "average on rank 0": "",
    "low rank": "",
    "two types": "",
    "dropout": "",
}


def model(seed: int, layers: int = 2) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(layers)))


def test_equal_weights_have_equal_samples_and_others_do_not() -> None:
    one, same, other = (sample(model(seed), 5) for seed in (1, 1, 2))
    assert one == same
    assert all(one[name] != other[name] for name in one)


def test_every_parameter_has_its_turn() -> None:
    large = model(1, layers=20)
    assert len(sample(large, 1)) == PARAMETERS
    assert len({name for step in range(0, 2000, 100) for name in sample(large, step)}) == 40


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64, torch.complex64, torch.complex128])
def test_every_kind_of_parameter_is_sampled(kind: torch.dtype) -> None:
    layer = torch.nn.Linear(4, 4, dtype=kind)
    before = sample(layer, 1)
    with torch.no_grad():
        layer.weight[1, 2] += 1
    assert sample(layer, 1) != before


def test_the_layout_in_memory_and_the_buffers_make_no_difference() -> None:
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    before = sample(layers, 1)
    layers[1].running_mean.add_(1)  # type: ignore[operator]
    assert sample(layers.to(memory_format=torch.channels_last), 1) == before


@pytest.fixture(scope="module")
def told(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Run all cases in two processes; return the errors of each rank in each case."""
    folder = tmp_path_factory.mktemp("replicas")
    with (folder / "errors").open("wb") as errors:
        ranks = [
            forks.start(SCRIPT, rank, folder, *CASES, env=environment(), errors=errors)
            for rank in range(2)
        ]
        assert [rank.wait() for rank in ranks] == [0, 0], (folder / "errors").read_text()
    seen = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return {case: [rank[case] for rank in seen] for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_ranks_that_differ_are_found_and_right_scripts_are_left_alone(
    told: dict[str, list[str]], case: str
) -> None:
    on_first, on_second = told[case]
    assert CASES[case] in on_first
    assert bool(CASES[case]) == bool(on_first), on_first
    assert not on_second
