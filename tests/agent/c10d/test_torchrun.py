"""A stock torchrun job, unequal nodes and all, that meets on our c10d store."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from support.forked import Forks, Program, environment

SCRIPTS = Path(__file__).parent / "scripts"
AGENT = Path(__file__).resolve().parents[3] / "trainer-image"
PATIENCE = 240  # seconds; torch is slow to start on a busy machine


def test_torchrun_completes_on_our_store(forks: Forks, tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(
            subprocess.Popen(
                [sys.executable, SCRIPTS / "c10d_server.py"],
                env={**os.environ, "PYTHONPATH": str(AGENT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(server.kill)
        assert server.stdin
        assert server.stdout
        server.stdin.write("\n")
        server.stdin.flush()
        port = int(server.stdout.readline())

        nodes = [start_node(forks, port, processes, tmp_path, stack) for processes in (1, 2)]
        codes = [node.wait(PATIENCE) for node in nodes]
        logs = "\n".join(path.read_text() for path in tmp_path.glob("*.log"))
        assert codes == [0, 0], logs
        results = {rank: (tmp_path / str(rank)).read_text() for rank in range(3)}
        assert results == dict.fromkeys(range(3), "3 3.0"), logs


def start_node(forks: Forks, port: int, processes: int, results: Path, stack: ExitStack) -> Program:
    with (results / f"node-of-{processes}.log").open("wb") as log:
        node = forks.torchrun(
            *("--nnodes=2", f"--nproc-per-node={processes}"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job"),
            *("--rdzv-conf=is_host=0", "--local-addr=127.0.0.1"),
            SCRIPTS / "allreduce.py",
            env={
                **environment(),
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "RESULTS": str(results),
            },
            output=log,
            errors=log,
        )
    stack.callback(node.terminate)  # ends its training processes, too
    return node
