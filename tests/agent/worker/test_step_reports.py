"""The message of a real agent with a report of a step."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from ddpjob_agent.net.framing import accept
from ddpjob_agent.net.sockets.listening import Listener, bind
from ddpjob_protocol import environment as env
from ddpjob_protocol.environment import STEPS_BYTES, Launcher
from ddpjob_protocol.messages.agent import Message
from support.agents import start_agent
from support.keys import KEY, worker_file

PATIENCE_SECONDS = 60.0
STAY = {"type": "stay", "leave": False, "after": None, "save": False}
OLD = 100.0  # seconds; age of the step
SCRIPT = f"""
import json, os, pathlib, socket, time
file = pathlib.Path(os.environ["{env.ENV_STEPS}"])
file.write_bytes((9).to_bytes({STEPS_BYTES}, "little"))
os.utime(file, (0, time.time() - {OLD}))
report = json.dumps({{"event": "step", "step": 9}}).encode()
agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
agent.sendto(report, os.environ["{env.ENV_REPORT_SOCKET}"])
"""


def test_a_report_of_a_step_has_its_age(tmp_path: Path) -> None:
    """A process sends its last report late if no further step follows."""

    async def main() -> Message:
        served = asyncio.Event()
        found: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        async def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _authenticated: object
        ) -> None:
            await reader.readexactly(5)
            connection = await accept(reader, writer, KEY.worker)
            connection.send(STAY)
            while (message := await connection.receive()) is not None:
                if message["type"] == "report" and not found.done():
                    found.set_result(message)
            connection.close()
            served.set()

        listener = Listener(bind("127.0.0.1", 0), serve)
        agent = start_agent(
            "worker", "--", sys.executable, "-S", "-c", SCRIPT,
            folder=tmp_path,
            env={
                **os.environ,
                env.ENV_WORKER: "w",
                env.ENV_PROCESSES: "1",
                env.ENV_SERVICE: f"127.0.0.1:{listener.port}",
                env.ENV_KEYS: worker_file(tmp_path, "w"),
                env.ENV_ADDRESS: "127.0.0.1",
                env.ENV_JOB_UID: "uid",
                env.ENV_LAUNCHER: Launcher.PYTHON.value,
                env.ENV_TERMINATION_LOG: os.devnull,
            },
        )  # fmt: skip
        try:
            return await asyncio.wait_for(found, PATIENCE_SECONDS)
        finally:
            agent.kill()
            await asyncio.to_thread(agent.wait)
            await served.wait()
            listener.close()

    message = asyncio.run(main())
    assert (message["report"]["step"], message["step"]) == (9, 9)
    assert OLD <= message["step_age"] < OLD + PATIENCE_SECONDS
