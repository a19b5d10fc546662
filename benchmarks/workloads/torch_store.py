"""A TCPStore of torch in a process of its own; it prints its port, and ends with stdin."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch.distributed as dist

store = dist.TCPStore(
    "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=600)
)
print(store.port, flush=True)
sys.stdin.read()
