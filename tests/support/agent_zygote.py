"""Forks agents and services (`agents.py`): imports them once, and no torch."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys

from ddpjob_agent import __main__ as agent
from ddpjob_agent.forkserver import channel, child, server
from ddpjob_agent.forkserver.parent_death import die_with_parent


def main(descriptor: int) -> None:
    """Fork for the owner of the socket until it is gone; be an agent in each fork."""
    die_with_parent(signal.SIGKILL, os.getppid())
    gc.freeze()
    birth = server._ForkServer(socket.socket(fileno=descriptor)).serve()
    if birth is None:
        return
    child.become_fresh_process(birth.request, birth.descriptors)
    channel.send_event(birth.line, channel.PID, os.getpid())
    birth.line.close()
    with child.fast_exit():
        sys.exit(agent.main(birth.request.arguments[2:]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
