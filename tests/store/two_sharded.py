"""One rank of two that hold a model together, in a bucket; writes what it saw to OUT/RANK.json.

two_sharded.py RANK OUT URI
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from ddpjob_protocol.environment import ENV_JOB_UID, ENV_MEMBERSHIP
from ddpjob_trainer import Snapshots
from ddpjob_trainer.snapshots.model.fencing import Owner
from store.objects_of import bucket, content, names, parts_of, replace
from trainer.snapshots.sharded.ranks import Training, error_of


def main(rank: int, out: Path, uri: str) -> None:
    logging.disable()
    torch.set_num_threads(1)
    os.environ |= {"LOCAL_RANK": str(rank), ENV_JOB_UID: "job", ENV_MEMBERSHIP: "1.1.2"}
    distributed.init_process_group("gloo", f"file://{out}/meet", world_size=2, rank=rank)
    training, snapshots = Training(1), Snapshots(uri)
    seen: dict[str, Any] = {"nothing": snapshots.load(**training.parts) is None}
    for step in (0, 1):
        training.train(step, step + 1)
        seen[f"loss {step + 1}"] = training.loss()
        snapshots.save(step + 1, **training.parts, wait=True)
    fresh = Training(2)
    loaded = Snapshots(uri).load(**fresh.parts)
    seen["loaded"] = loaded and loaded.step, fresh.loss()
    distributed.barrier()
    if rank == 0:
        tensors = parts_of(uri, 2)[1]
        assert tensors.endswith("tensors-1.safetensors")
        replace(uri, tensors, content(uri, tensors)[:-1] + b"?")
    distributed.barrier()
    fresh = Training(3)
    loaded = Snapshots(uri).load(**fresh.parts)
    seen["damaged"] = loaded and loaded.step, fresh.loss()
    distributed.barrier()
    if rank == 0:
        bucket(uri).fence(Owner("job", "1.2.2"), 1)
        seen["names"] = names(uri)
    distributed.barrier()
    seen["fenced"] = error_of(lambda: snapshots.save(3, **training.parts, wait=True))
    if rank == 0:
        seen["later"] = [name for name in names(uri) if name not in seen["names"]]
    (out / f"{rank}.json").write_text(json.dumps(seen))
    distributed.barrier()
    os._exit(0)  # without destructors of gloo's threads: see trainer/snapshots/two_ranks.py


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
