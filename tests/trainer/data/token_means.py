"""A language model's loss on one rank of several: token_means.py RANK WORLD_SIZE FOLDER.

Each row has another number of tokens. The loss is their mean, as a loss function returns it. Each
way to take the batches is tried with models of its own; the parameters are written at the end.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from ddpjob_trainer import ElasticBatchSampler
from ddpjob_trainer.elastic.data_feed import DataFeed
from ddpjob_trainer.elastic.ddp_model import ElasticModel

ROWS, LENGTH, WORDS = 23, 6, 5
PADDING = -100


def data() -> TensorDataset:
    numbers = torch.Generator().manual_seed(1)
    words = torch.randint(WORDS, (ROWS, LENGTH), generator=numbers)
    targets = words.roll(-1, 1)
    lengths = torch.randint(1, LENGTH + 1, (ROWS,), generator=numbers)
    targets[torch.arange(LENGTH) >= lengths[:, None]] = PADDING
    targets[4] = PADDING  # a row without tokens
    return TensorDataset(words, targets)


def loader(most: int | None = None) -> DataLoader[Any]:
    sampler = ElasticBatchSampler(ROWS, 7, max_samples_per_rank=most)
    return DataLoader(data(), batch_sampler=sampler)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(WORDS, 4), nn.Linear(4, WORDS)).double()


def loss_of(model: Any, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(words).flatten(0, 1), targets.flatten(), ignore_index=PADDING)


def live(most: int | None = None, shards: int | None = None, *, counts: bool = True) -> nn.Module:
    """Train for two epochs as a Loop does."""
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    model = ElasticModel(module, {}, alone=shards is not None)
    feed = DataFeed(loader(most), model, shards=shards)
    model.wrap()
    while feed.source.has_more(2):
        optimizer.zero_grad()
        for words, targets in feed.parts():
            tokens = (targets != PADDING).sum() if counts else None
            feed.backward(loss_of(model, words, targets), tokens)
        feed.check()
        optimizer.step()
        feed.commit()
    return module


def restarted(most: int | None) -> nn.Module:
    """Train for two epochs in snapshot mode."""
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    model = DistributedDataParallel(module)
    rows = loader(most)
    batches = rows.batch_sampler
    assert isinstance(batches, ElasticBatchSampler)
    while batches.epoch < 2:
        for words, targets in rows:
            with batches.part(model) as part:
                tokens = int((targets != PADDING).sum())
                part.backward(loss_of(model, words, targets), tokens)
            if part.is_last:
                optimizer.step()
                optimizer.zero_grad()
    return module


def results() -> dict[str, list[float]]:
    """Return the parameters that each way of training ends with."""
    trained = {
        "whole shares": live(),
        "in parts": live(most=2),
        "deterministic": live(shards=4),
        "snapshot mode": restarted(None),
        "snapshot mode, in parts": restarted(2),
        "by samples": live(counts=False),
    }
    return {
        name: torch.cat([each.flatten() for each in module.parameters()]).tolist()
        for name, module in trained.items()
    }


def main(rank: int, world_size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", f"file://{folder}/meet-{world_size}", world_size=world_size, rank=rank
    )
    (folder / f"{world_size}-{rank}.json").write_text(json.dumps(results()))
    distributed.barrier()
    os._exit(0)  # quickly: to take all of torch apart takes a second


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
