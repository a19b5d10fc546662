"""A real S3 server for all tests here; a bucket and the environment of a worker for each."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpjob_protocol import environment as variables
from ddpjob_protocol.environment import ENV_REPORT_SOCKET
from store.server import Server, build_program
from support.forked import environment
from trainer.conftest import Listener
from trainer.runs import Run


@pytest.fixture(scope="session")
def program() -> Path:
    return build_program()


@pytest.fixture(scope="session")
def server(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(program, tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_server(program: Path, tmp_path: Path) -> Iterator[Server]:
    """To be stopped and started."""
    server = Server(program, tmp_path / "s3")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def worker(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed in, and of no job."""
    for name in (
        "RANK",
        "WORLD_SIZE",
        *(v for k, v in vars(variables).items() if k[:4] == "ENV_"),
    ):
        monkeypatch.delenv(name, raising=False)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def uri(server: Server, worker: None) -> str:
    """A prefix of a new bucket."""
    bucket = f"test-{uuid.uuid4().hex[:12]}"
    server.bucket(bucket)
    return f"s3://{bucket}/jobs/digits"


@pytest.fixture
def python_env(worker: None) -> dict[str, str]:
    """For processes that import the trainer."""
    return environment()


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    listener = Listener(tmp_path / "report.sock")
    monkeypatch.setenv(ENV_REPORT_SOCKET, str(listener.path))
    yield listener
    listener.socket.close()


@pytest.fixture
def run() -> Run:
    return Run()
