"""Runs a command as an agent starts it; the first argument: 1 for warm, 0 for cold."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from ddpjob_agent.forkserver.client import ForkServerClient
from ddpjob_agent.output.capture import OutputCapture
from ddpjob_agent.worker.processes.process_tree import ProcessTree


async def main() -> None:
    warm, argv = sys.argv[1] == "1", sys.argv[2:]
    ended = asyncio.get_running_loop().create_future()
    standby = ForkServerClient()
    output = OutputCapture()
    processes = ProcessTree(ended.set_result, standby, output)
    standby.begin(argv, os.environ, wanted=warm)
    await standby.wait()
    was_warm = standby.pid is not None
    await processes.start(argv, os.environ)
    code = await ended
    standby.close()
    await processes.stop(grace=0)
    told = output.stderr_tail.decode()
    sys.stdout.write("ENDED " + json.dumps({"code": code, "warm": was_warm, "stderr": told}) + "\n")


signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been ignored from outside
asyncio.run(main())
