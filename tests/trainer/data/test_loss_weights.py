"""Losses that are means over tokens: the gradient of the whole batch, on any number of ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ddpjob_trainer.data.loss_weights import LossWeights
from ddpjob_trainer.elastic.data_feed import DataFeed
from ddpjob_trainer.elastic.ddp_model import ElasticModel
from support.forked import Forks
from trainer.data import token_means

NAMES = ("whole shares", "in parts", "deterministic", "snapshot mode", "snapshot mode, in parts")


def test_the_number_of_processes_does_not_change_the_training(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    """One to five ranks, of which some have no samples, or no tokens, in some batches."""
    found: dict[int, dict[str, list[float]]] = {}
    for world_size in (1, 2, 5):
        ranks = [
            forks.start(token_means.__file__, rank, world_size, tmp_path, env=python_env)
            for rank in range(world_size)
        ]
        assert [rank.wait() for rank in ranks] == [0] * world_size
        texts = {(tmp_path / f"{world_size}-{rank}.json").read_text() for rank in range(world_size)}
        (text,) = texts  # every rank ends with the same
        found[world_size] = json.loads(text)
    alone = found[1]["whole shares"]
    for results in found.values():
        for name in NAMES:
            assert results[name] == pytest.approx(alone, rel=1e-9, abs=1e-12), name
    assert found[2]["deterministic"] == found[5]["deterministic"] == found[1]["deterministic"]
    assert found[2]["by samples"] != pytest.approx(alone, rel=1e-3), "the counts matter"


@pytest.mark.parametrize("shards", [None, 2])
def test_a_loss_without_its_weight_is_refused(shards: int | None) -> None:
    """Before the optimizer steps, whether the shares are alike or not."""
    module = token_means.net()
    model = ElasticModel(module, {}, alone=True)
    feed = DataFeed(token_means.loader(), model, shards=shards)
    model.wrap()
    parts = feed.parts()
    token_means.loss_of(model, *next(parts)).backward()
    with pytest.raises(RuntimeError, match=r"call `step.backward\(loss\)`"):
        next(parts)


def test_counts_are_given_for_all_losses_or_for_none() -> None:
    weight = torch.nn.Parameter(torch.ones(1))

    def weights(*, parts: int = 2) -> LossWeights:
        made = LossWeights([weight])
        made.begin_part(1.0, is_last=parts == 1)
        made.backward(weight.sum(), 3)
        return made

    with pytest.raises(RuntimeError, match="for every loss of a step, or for none"):
        weights().backward(weight.sum())
    with pytest.raises(RuntimeError, match=r"one backward\(loss, count=...\) per part"):
        weights().backward(weight.sum(), 3)
    forgetful = weights()
    forgetful.begin_part(1.0, is_last=True)
    with pytest.raises(RuntimeError, match="every part of a step needs"):
        forgetful.check()
    weights(parts=1).backward(weight.sum(), 3)  # two losses, as those of a GAN
    without_model = LossWeights(())
    without_model.begin_part(0.5, is_last=False)
    with pytest.raises(RuntimeError, match=r"batches.part\(model\)"):
        without_model.backward(weight.sum(), 3)
