"""Command line of the zipapp: `worker -- COMMAND…`, `rendezvous`, and the helpers of a worker.

This module reads the environment and the arguments, and passes them to the roles.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from ddpjob_agent.forkserver.parent_death import die_with_parent
from ddpjob_agent.launchers import mpi_helpers
from ddpjob_agent.registry.state import initial_state
from ddpjob_agent.service.server import RendezvousServer
from ddpjob_agent.worker.agent import Agent
from ddpjob_agent.worker.settings import AgentSettings
from ddpjob_protocol.environment import (
    ENV_ADDRESS,
    ENV_GRACE_SECONDS,
    ENV_LAUNCHER,
    ENV_ORPHAN_SECONDS,
    ENV_OUTPUT,
    ENV_PROCESSES,
    ENV_SERVICE,
    ENV_SNAPSHOT_DIR,
    ENV_SNAPSHOT_FILES,
    ENV_TERMINATION_LOG,
    ENV_TOKEN,
    ENV_WARM_PARENT,
    ENV_WARM_START,
    ENV_WORKER,
    GRACE_SECONDS,
    Launcher,
)
from ddpjob_protocol.exit_codes import Exit

if TYPE_CHECKING:
    from collections.abc import Mapping


class UsageError(Exception):
    """A variable or flag is missing or wrong; the message names it and the remedy."""


def main(arguments: list[str] | None = None) -> int:
    """Run one of the roles; return the exit code."""
    parser = argparse.ArgumentParser(prog="ddpjob-agent", description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    worker = roles.add_parser("worker", help="run a command as one worker of a job")
    worker.add_argument("argv", nargs="+", metavar="COMMAND", help="the command, after --")
    service = roles.add_parser("rendezvous", help="run the rendezvous service of one job")
    service.add_argument("--host", default="0.0.0.0")  # noqa: S104 - other pods call it
    service.add_argument("--port", type=int, default=29400)
    service.add_argument("--term", type=int, default=1, help="counts rendezvous pods")
    service.add_argument("--boot-file", help="counts the starts of this container")
    first = roles.add_parser("mpi-lead", help="run a command that runs mpirun")
    first.add_argument("argv", nargs="+", metavar="COMMAND", help="the command, after --")
    roles.add_parser("mpi-follow", help="run mpirun's daemons at another worker than the first")
    shell = roles.add_parser("mpi-shell", help="run a command at a worker; mpirun calls it")
    shell.add_argument("hosts", help="file with the workers' names")
    shell.add_argument("argv", nargs=argparse.REMAINDER, help="host and command")
    parser.add_argument("--die-with-parent", action="store_true", help="SIGTERM when it ends")
    options = parser.parse_args(arguments)
    if options.die_with_parent:
        die_with_parent(signal.SIGTERM, os.getppid())
    logging.basicConfig(
        level=os.environ.get("DDPJOB_LOG_LEVEL", "INFO"),
        format="%(asctime)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    try:
        if options.role == "worker":
            return asyncio.run(_run_worker(options.argv, os.environ))
        if options.role == "mpi-lead":
            return mpi_helpers.run_launcher(options.argv, os.environ)
        if options.role == "mpi-follow":
            return mpi_helpers.run_follower(os.environ)
        if options.role == "mpi-shell":
            return mpi_helpers.run_remote_shell(options.hosts, options.argv, os.environ)
        return asyncio.run(_run_service(options, os.environ))
    except UsageError as error:
        print(f"ddpjob-agent: {error}", file=sys.stderr)
        return Exit.USAGE


async def _run_worker(argv: list[str], environment: Mapping[str, str]) -> int:
    host, _, port = _required(environment, ENV_SERVICE).rpartition(":")
    settings = AgentSettings(
        worker=_required(environment, ENV_WORKER),
        processes=_positive(environment, ENV_PROCESSES),
        host=host,
        port=_number(ENV_SERVICE, port),
        token=_required(environment, ENV_TOKEN),
        address=_required(environment, ENV_ADDRESS),
        orphan_seconds=float(environment.get(ENV_ORPHAN_SECONDS, "60")),
        grace_seconds=float(environment.get(ENV_GRACE_SECONDS, GRACE_SECONDS)),
        program=_program(),
        fork_server_enabled=environment.get(ENV_WARM_START, "1") != "0",
        fork_server=_pair(environment, ENV_WARM_PARENT),
        termination_log=environment.get(ENV_TERMINATION_LOG, "/dev/termination-log"),
        launcher=_launcher(environment),
        files=_texts(environment, ENV_SNAPSHOT_FILES),
        snapshot_folder=environment.get(ENV_SNAPSHOT_DIR, ""),
        output=environment.get(ENV_OUTPUT, ""),
    )
    return await Agent(settings, argv, environment).run()


async def _run_service(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    token = _required(environment, ENV_TOKEN)
    boot = _next_boot(options.boot_file) if options.boot_file else 1
    state = initial_state(options.term, boot, time.time() - time.monotonic())
    server = asyncio.ensure_future(RendezvousServer(state, token).run(options.host, options.port))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.cancel)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await server
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        print(
            f"ddpjob-agent: port {options.port} is in use; end what listens there or choose"
            " another with --port",
            file=sys.stderr,
        )
        return Exit.PORT_IN_USE
    return Exit.OK


def _program() -> tuple[str, str]:
    return sys.executable, os.path.abspath(sys.argv[0])


def _next_boot(path: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            boot = int(file.read()) + 1
    except FileNotFoundError:
        boot = 1
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(str(boot))
    os.replace(path + ".new", path)
    return boot


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise UsageError(f"{name} is not set; the operator sets it in every pod of a job")
    return value


def _positive(environment: Mapping[str, str], name: str) -> int:
    number = _number(name, _required(environment, name))
    if number < 1:
        raise UsageError(f"{name} must be at least 1, not {number}")
    return number


def _launcher(environment: Mapping[str, str]) -> Launcher:
    text = environment.get(ENV_LAUNCHER) or Launcher.TORCHRUN.value
    try:
        return Launcher(text)
    except ValueError:
        known = " or ".join(map(str, Launcher))
        raise UsageError(f"{ENV_LAUNCHER} must be {known}, not {text!r}") from None


def _texts(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    try:
        found = json.loads(environment.get(name) or "[]")
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise ValueError("no list of texts")
    except ValueError as error:
        raise UsageError(f"{name} must hold a JSON list of texts: {error}") from None
    return tuple(found)


def _pair(environment: Mapping[str, str], name: str) -> tuple[int, int] | None:
    first, _, second = environment.get(name, "").partition(" ")
    return (_number(name, first), _number(name, second)) if first else None


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{name} must hold a number, not {value!r}") from None


def run() -> None:
    """Run the zipapp; exit with the code of `main`."""
    sys.exit(main())


if __name__ == "__main__":
    run()
