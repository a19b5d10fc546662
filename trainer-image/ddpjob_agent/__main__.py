"""Command line of the zipapp: `worker -- COMMAND…`, `rendezvous`, and the helpers of a worker.

This module reads the arguments and starts the roles.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from ddpjob_agent.c10d.budget import limits_for
from ddpjob_agent.forkserver.parent_death import die_with_parent
from ddpjob_agent.launchers import mpi_helpers
from ddpjob_agent.net.sockets.descriptors import raise_limit
from ddpjob_agent.output.log_writer import LOG, LogStream
from ddpjob_agent.registry.registration import SupersededError
from ddpjob_agent.registry.state.registry_state import initial_state
from ddpjob_agent.service.boot_count import next_boot
from ddpjob_agent.service.server import RendezvousServer
from ddpjob_agent.worker.agent import Agent
from ddpjob_agent.worker.key_file import close_memory, read_job_key, take_worker_keys
from ddpjob_agent.worker.settings import UsageError, memory_bytes, read_settings, required
from ddpjob_protocol.environment import ENV_KEYS
from ddpjob_protocol.exit_codes import Exit

if TYPE_CHECKING:
    from collections.abc import Mapping

OWN_LOOP = ("worker", "rendezvous")  # roles with an event loop, which no reader may delay


def main(arguments: list[str] | None = None) -> int:
    """Run one of the roles; return the exit code."""
    parser = argparse.ArgumentParser(prog="ddpjob-agent", description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    worker = roles.add_parser("worker", help="run a command as one worker of a job")
    worker.add_argument("argv", nargs="+", metavar="COMMAND", help="the command, after --")
    service = roles.add_parser("rendezvous", help="run the rendezvous service of one job")
    service.add_argument("--host", default="", help="address to listen on; default: all")
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
        stream=LogStream() if options.role in OWN_LOOP else sys.stderr,
    )
    try:
        if options.role == "worker":
            raise_limit()
            return asyncio.run(
                _run_worker(options.argv, os.environ, is_local=options.die_with_parent)
            )
        if options.role == "mpi-lead":
            return mpi_helpers.run_launcher(options.argv, os.environ)
        if options.role == "mpi-follow":
            return mpi_helpers.run_follower(os.environ)
        if options.role == "mpi-shell":
            return mpi_helpers.run_remote_shell(options.hosts, options.argv, os.environ)
        raise_limit()
        if not options.die_with_parent:
            close_memory()
        return asyncio.run(_run_service(options, os.environ))
    except UsageError as error:
        print(f"ddpjob-agent: {error}", file=sys.stderr)
        return Exit.USAGE
    finally:
        LOG.flush()


async def _run_worker(argv: list[str], environment: Mapping[str, str], *, is_local: bool) -> int:
    settings = read_settings(environment)
    if not is_local:  # a local run finds its agents by their environment
        close_memory()
    keys = take_worker_keys(settings.keys_file)
    return await Agent(settings, keys, argv, environment).run()


async def _run_service(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    key = read_job_key(required(environment, ENV_KEYS))
    boot = next_boot(options.boot_file) if options.boot_file else 1
    state = initial_state(options.term, boot, time.time() - time.monotonic())
    service = RendezvousServer(state, key, limits_for(memory_bytes(environment)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, service.depart)
    try:
        await service.run(options.host, options.port)
    except SupersededError as error:
        print(f"ddpjob-agent: {error}", file=sys.stderr)
        return Exit.SUPERSEDED
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


def run() -> None:
    """Run the zipapp; exit with the code of `main`."""
    sys.exit(main())


if __name__ == "__main__":
    run()
