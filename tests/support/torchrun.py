"""torchrun, whose training processes are forked from the process that has this socket.

torchrun.py SOCKET ARGUMENT...
"""

from __future__ import annotations

import os
import socket
import sys

from torch.distributed import run

from ddpjob_agent.forkserver import child, torchrun_patch


def main(path: str, arguments: list[str]) -> None:
    parent = socket.socket(socket.AF_UNIX)
    parent.connect(path)
    torchrun_patch.fork_from(parent, os.environ.copy())  # no test differs in what counts at import
    with child.fast_exit():
        run.main(arguments)
        raise SystemExit


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
