"""Samples of the ranks' weights: equal for equal weights, and without what may differ."""

from __future__ import annotations

import pytest
import torch

from ddpjob_trainer.snapshots.replicas import PARAMETERS, sample


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
