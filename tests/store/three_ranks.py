"""One rank of three on two nodes that save and load together; writes what it saw to OUT/RANK.json.

three_ranks.py RANK OUT URI
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from ddpjob_trainer import Snapshots
from store.objects_of import content, names, parts_of, replace
from trainer.runs import Run

LOCAL = ("0", "1", "0")


def main(rank: int, out: Path, uri: str) -> None:
    logging.disable()
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = LOCAL[rank]
    distributed.init_process_group("gloo", f"file://{out}/meet", world_size=3, rank=rank)
    run = Run(seed=rank)
    model = DistributedDataParallel(run.model)
    snapshots = Snapshots(uri, check_replicas=False)
    seen = []

    def load() -> None:
        run.first.bias.data.zero_()
        loaded = snapshots.load(model=model, optimizer=run.optimizer)
        seen.append([loaded and loaded.step, run.first.bias.tolist()])

    load()
    for step in (5, 6):
        run.first.bias.data.fill_(float(10 * step + rank))
        snapshots.save(step, model=model, optimizer=run.optimizer, wait=True)
    distributed.barrier()
    load()
    if rank == 0:
        (out / "names.json").write_text(json.dumps(names(uri)))
        tensors = parts_of(uri, 6)[1]
        replace(uri, tensors, content(uri, tensors)[:-1] + b"?")
    distributed.barrier()
    load()
    (out / f"{rank}.json").write_text(json.dumps(seen))
    distributed.barrier()
    os._exit(0)  # torch now and then aborts a process that has finished (docs/failures.md)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
