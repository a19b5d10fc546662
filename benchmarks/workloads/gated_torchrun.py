"""torchrun that has imported everything and then waits for a file before it does anything.

So that all agents come to the first rendezvous within `last_call_timeout`, however slow importing
torch is on the machine at hand. After the gate it is stock torchrun: gated_torchrun.py READY GO ...
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from torch.distributed.run import main


def wait(ready: Path, go: Path) -> None:
    ready.touch()
    while not go.exists():
        time.sleep(0.01)


if __name__ == "__main__":
    wait(Path(sys.argv[1]), Path(sys.argv[2]))
    main(sys.argv[3:])
