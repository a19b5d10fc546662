"""A stock torchrun job, unequal nodes and all, that meets on our c10d store."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

SCRIPTS = Path(__file__).parent / "scripts"
AGENT = Path(__file__).resolve().parents[2] / "trainer-image"
PATIENCE = 240  # seconds; torch is slow to start on a busy machine


def test_torchrun_completes_on_our_store(tmp_path: Path) -> None:
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

        nodes = [start_node(port, processes, tmp_path, stack) for processes in (1, 2)]
        codes = [node.wait(PATIENCE) for node in nodes]
        logs = "\n".join(path.read_text() for path in tmp_path.glob("*.log"))
        assert codes == [0, 0], logs
        results = {rank: (tmp_path / str(rank)).read_text() for rank in range(3)}
        assert results == dict.fromkeys(range(3), "3 3.0"), logs


def start_node(
    port: int, processes: int, results: Path, stack: ExitStack
) -> subprocess.Popen[bytes]:
    log = stack.enter_context((results / f"node-of-{processes}.log").open("wb"))
    node = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes=2", f"--nproc-per-node={processes}"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job"),
            *("--rdzv-conf=is_host=0", "--local-addr=127.0.0.1"),
            str(SCRIPTS / "allreduce.py"),
        ],
        env={
            **os.environ,
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "RESULTS": str(results),
        },
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    stack.callback(end, node)
    return node


def end(node: subprocess.Popen[bytes]) -> None:
    """With its workers, each of which torchrun put into a session of its own."""
    if node.poll() is None:
        torchrun = psutil.Process(node.pid)
        for process in [*torchrun.children(recursive=True), torchrun]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    node.wait()
