"""The script of each rank of a torchrun job: one all_reduce, then a line with its outcome."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
total = torch.tensor([float(rank)])
dist.all_reduce(total)
Path(os.environ["RESULTS"], str(rank)).write_text(f"{world_size} {total.item()}")
dist.destroy_process_group()
