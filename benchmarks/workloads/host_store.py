"""A process that hosts torch's own TCPStore, as the c10d rendezvous of stock torchrun needs it."""

from __future__ import annotations

import signal
import sys

from torch.distributed import TCPStore

if __name__ == "__main__":
    store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
    signal.pause()
