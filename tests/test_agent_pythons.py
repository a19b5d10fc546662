"""The packed agent on the Pythons of this machine, with the standard library alone.

`make test` runs a job on the oldest, our own and the newest one; DDPJOB_PYTHONS=all (`make soak-pythons`)
runs a job on each, and fails if there is no other one than our own.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddpjob_operator.agent_bundle import build_agent
from ddpjob_operator.local.simulated.rendezvous_process import free_port
from ddpjob_operator.rendezvous.client import (
    ServiceClient,
    ServiceUnavailableError,
    connect_directly,
)
from ddpjob_protocol import environment as env
from ddpjob_protocol.environment import Launcher
from ddpjob_protocol.messages.control import Expectation, Policy, Report
from support.keys import KEY, service_file, worker_file
from support.pythons import Version, pythons

ROOT = Path(__file__).resolve().parent.parent
AGENT = tuple(ROOT / "trainer-image" / name for name in ("ddpjob_agent", "ddpjob_protocol"))
OWN = sys.version_info[:2]
WORKERS = ("a", "b")
POLICY = Policy(minimum=2, settle=0, backoff=0.1, files=True)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent with bytecode of our own Python, which the others ignore."""
    target = tmp_path_factory.mktemp("agent") / "ddpjob-agent.pyz"
    build_agent(target, compiled=True)
    return target


# Names

IMPORT_ALL = """
import importlib, json, pkgutil, runpy, sys
archive = sys.argv.pop(1)
for module, name in json.load(sys.stdin):
    assert hasattr(importlib.import_module(module), name), f"there is no {module}.{name}"
sys.path.insert(0, archive)
import ddpjob_agent
for module in pkgutil.walk_packages(ddpjob_agent.__path__, "ddpjob_agent."):
    module.name.endswith("__main__") or importlib.import_module(module.name)
sys.argv.append("--help")
runpy.run_path(archive, run_name="__main__")
"""


def test_each_python_has_the_names_that_the_agent_uses_and_imports_it(agent: Path) -> None:
    names = {name for package in AGENT for path in package.rglob("*.py") for name in used(path)}
    assert ("os", "getpid") in names
    failures = []
    for version, python in pythons().items():
        # bare interpreters: no site-packages, no environment
        command = [str(python), "-W", "error", "-S", "-E", "-c", IMPORT_ALL, str(agent)]
        asked = json.dumps(sorted(names))
        done = subprocess.run(command, input=asked, check=False, capture_output=True, text=True)
        if done.returncode != 0 or "usage:" not in done.stdout:
            failures.append(f"{version}: {done.stdout}{done.stderr}")
    assert not failures, "\n".join(failures)


def used(path: Path) -> Iterator[tuple[str, str]]:
    """Each `module.name` of the standard library, but not below a condition on the version."""
    tree = ast.parse(path.read_text())
    imports = [each for each in ast.walk(tree) if isinstance(each, ast.Import)]
    modules = {alias.asname or alias.name: alias.name for each in imports for alias in each.names}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "sys.version_info" in ast.unparse(node.test):
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules:
            module = modules[ast.unparse(node.value)]
            if module.partition(".")[0] in sys.stdlib_module_names:
                yield module, node.attr


# A job

# Two processes meet: in the job's store, through the relays of their agents, or at MASTER_PORT. In the
# first membership rank 0 saves a file, and rank 1 fails; in the second one both find the file.
SCRIPT = """
import os, pathlib, signal, socket, struct, sys, time
blob = lambda data: struct.pack("<Q", len(data)) + data
rank, saved = os.environ["NODE_RANK"], pathlib.Path("state.txt")
assert os.environ["NNODES"] == "2" and "DDPJOB_KEYS" not in os.environ
began = saved.exists()
if rank == "0" and not began:
    saved.write_text("step 1")
if "PET_RDZV_ENDPOINT" in os.environ:
    host, port = os.environ["PET_RDZV_ENDPOINT"].rsplit(":", 1)
    with socket.create_connection((host, int(port))) as relay:
        relay.sendall(b"\\0" + struct.pack("<I", 0x3C85F7CE))
        relay.sendall(b"\\1" + blob(rank.encode()) + blob(b""))
        relay.sendall(b"\\6" + struct.pack("<Q", 2) + blob(b"0") + blob(b"1"))
        assert relay.recv(1) == b"\\0"
elif rank == "0":
    server = socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    server.accept()
else:
    while True:
        try:
            socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
if not began:
    rank == "1" and sys.exit(3)
    signal.pause()
assert saved.read_text() == "step 1"
print("%d.%d" % sys.version_info[:2], "of rank", rank, "has its file", flush=True)
"""


def test_a_job_restarts_and_completes_on_each_python(
    agent: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Service, agents, relays, copies of files and the command itself."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    found, launchers = pythons(), [Launcher.TORCHRUN]
    at_once = [{min(found), OWN, max(found)}]
    if os.environ.get("DDPJOB_PYTHONS") == "all":
        assert found.keys() > {OWN}, "this machine has no other Python from 3.9 to 3.13"
        at_once, launchers = [{version} for version in found], [Launcher.TORCHRUN, Launcher.PYTHON]
    versions = sorted(set.union(*at_once))
    record_property("agent ran on", ", ".join(f"{major}.{minor}" for major, minor in versions))
    for some in at_once:
        jobs = [(version, launcher) for version in some for launcher in launchers]
        with contextlib.ExitStack() as stack:
            running = [
                stack.enter_context(
                    _Job(
                        found[version],
                        agent,
                        script,
                        launcher,
                        tmp_path / f"{version[1]}-{launcher}",
                    )
                )
                for version, launcher in jobs
            ]
            for job in running:
                asyncio.run(job.expect())
            ends = [asyncio.run(job.end()) for job in running]
        assert ends == [expected_end(version) for version, _ in jobs]


def expected_end(version: Version) -> tuple[list[int], list[str], list[str]]:
    """Exit codes of the agents, causes of the memberships, and what the commands printed."""
    said = [f"{version[0]}.{version[1]} of rank {rank} has its file" for rank in (0, 1)]
    return [0, 0], ["started", "failed"], said


class _Job(contextlib.ExitStack):
    """A rendezvous service and two workers, each with a folder of its own."""

    def __init__(
        self, python: Path, agent: Path, script: Path, launcher: Launcher, folder: Path
    ) -> None:
        super().__init__()
        folder.mkdir()
        port = free_port()
        self._client = ServiceClient(connect_directly("127.0.0.1", port), KEY.operator)
        self._given = {
            "PATH": os.defpath,
            env.ENV_SERVICE: f"127.0.0.1:{port}",
            env.ENV_ADDRESS: "127.0.0.1",
            env.ENV_PROCESSES: "1",
            env.ENV_LAUNCHER: launcher.value,
            env.ENV_SNAPSHOT_FILES: '["state.txt"]',
            env.ENV_TERMINATION_LOG: str(folder / "end"),
        }
        self._python, self._folder = [str(python), "-S", "-E"], folder
        listening = ["rendezvous", "--host", "127.0.0.1", "--port", str(port)]
        self._start("service", agent, listening, {env.ENV_KEYS: service_file(folder)})
        command = ["worker", "--", *self._python, str(script)]
        keys = {name: worker_file(folder, name) for name in WORKERS}
        self._workers = [
            self._start(name, agent, command, {env.ENV_WORKER: name, env.ENV_KEYS: keys[name]})
            for name in WORKERS
        ]

    def _start(
        self, name: str, agent: Path, arguments: list[str], given: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        folder = self._folder / name
        folder.mkdir()
        log = self.enter_context((self._folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            [*self._python, str(agent), *arguments],
            cwd=folder,
            env={**self._given, "TMPDIR": str(folder), **given},
            stdout=log,
            stderr=log,
        )
        self.callback(process.wait)
        self.callback(process.kill)
        return process

    async def expect(self) -> None:
        """Send the expected workers as soon as the service listens."""
        deadline = time.monotonic() + 180
        while True:
            try:
                await self._client.expect(Expectation(WORKERS, policy=POLICY))
            except ServiceUnavailableError:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    async def end(self) -> tuple[list[int], list[str], list[str]]:
        """Wait for the workers; return what expected_end() names."""
        codes = [worker.wait(300) for worker in self._workers]
        report: Report = await self._client.report()
        logs = [(self._folder / f"{name}.log").read_text() for name in WORKERS]
        lines = (line for log in logs for line in log.splitlines() if "has its file" in line)
        return codes, [each.cause for each in report.memberships], sorted(lines)
