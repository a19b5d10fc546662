"""Connections that a script opens while a group forms are not the group's."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.forked import Forks
from trainer.elastic.group.test_process_group import port  # noqa: F401 - the store

# Argument 1: the store's port, 2: the rank, 3: the port of the script's own server.
FORMS = """
import os, socket, sys, threading, torch
from torch import distributed
from ddpjob_trainer.elastic.group.process_group import ElasticProcessGroup

port, rank, own_server = map(int, sys.argv[1:])
formed, opened = threading.Event(), threading.Event()
pairs, listening = [], []  # connections of another thread, both ends where it has them

def works():
    while not formed.is_set():
        client = socket.create_connection(("127.0.0.1", own_server))
        pairs.append((client, client))
        server = socket.create_server(("127.0.0.1", 0))
        near = socket.create_connection(server.getsockname())
        pairs.append((near, server.accept()[0]))
        listening.append(server)
        opened.set()
        formed.wait(0.01)

def answers(one, other):
    one.settimeout(60)
    other.settimeout(60)
    one.sendall(b"x")
    return other.recv(1) == b"x"

thread = threading.Thread(target=works)
group = ElasticProcessGroup("gloo")
thread.start()
opened.wait()
group.init(group.connect_store(f"127.0.0.1:{port}", "one"), rank, 2)
formed.set()
thread.join()
distributed.barrier()
group.abort()
try:
    distributed.all_reduce(torch.ones(1))
except RuntimeError:
    print("aborted")
print(len(pairs) > 0 and all(answers(*pair) for pair in pairs))
sys.stdout.flush()
group.destroy()
os._exit(0)  # quickly: to take all of torch apart takes a second
"""


class Echo(socketserver.BaseRequestHandler):
    """The answer is the request."""

    def handle(self) -> None:
        while data := self.request.recv(1):
            self.request.sendall(data)


@pytest.fixture
def echo() -> Iterator[int]:
    """A server of the script's own; its port."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_an_abort_leaves_the_scripts_own_connections_alone(
    forks: Forks,
    tmp_path: Path,
    python_env: dict[str, str],
    port: int,  # noqa: F811 - the fixture
    echo: int,
) -> None:
    script = tmp_path / "forms.py"
    script.write_text(FORMS)
    started, outputs = [], [tmp_path / str(rank) for rank in range(2)]
    for rank, path in enumerate(outputs):
        with path.open("w") as output:
            started.append(forks.start(script, port, rank, echo, env=python_env, output=output))
    try:
        assert [process.wait(timeout=120) for process in started] == [0, 0]
    finally:
        for process in started:
            process.kill()
    assert [path.read_text().split() for path in outputs] == [["aborted", "True"]] * 2
