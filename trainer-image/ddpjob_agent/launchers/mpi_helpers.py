"""The agent's programs with which mpirun starts its daemons without ssh: see `mpi`.

lead runs the user's command and reports its end. mpirun calls shell for each host, with a line to
run there. follow runs the lines for its worker. They communicate over the membership's store, which
the agent serves on loopback. Each line has a code of the membership's key, and follow runs no other
line. They end with the membership.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from ddpjob_agent.c10d.client import StoreClient
from ddpjob_agent.launchers.signals import FORWARDED
from ddpjob_protocol.environment import ENV_MPI_KEY, ENV_STORE, ENV_WORKER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

END = "mpi/end"
NO_HOST = 255  # exit code, as ssh returns it
RETRY_SECONDS = 0.5


def run_launcher(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the command and return its exit code; if the code is 0, end the followers."""
    try:
        child = subprocess.Popen(argv)
    except OSError as error:
        sys.stderr.write(f"cannot start {argv[0]!r}: {error.strerror}\n")
        return 127
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the agent sends SIGTERM to all of its processes
    for number in FORWARDED:
        signal.signal(number, lambda number, _: child.send_signal(number))
    code = child.wait()
    if code == 0:
        with contextlib.suppress(OSError):  # the membership has ended
            StoreClient(environment[ENV_STORE]).set(END, "")
    return code if code >= 0 else 128 - code


def run_follower(environment: Mapping[str, str]) -> int:
    """Run every line for this worker until the command has ended with 0."""
    worker, store = environment[ENV_WORKER], environment[ENV_STORE]
    key = _read_key(environment)
    threading.Thread(target=_run_lines, args=(store, worker, key), daemon=True).start()
    _wait_for(store, END)
    return 0


def run_remote_shell(hosts: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the words after a host name on that host, as ssh does; return their exit code."""
    with open(hosts, encoding="utf-8") as file:
        known = [line.split()[0] for line in file]
    host, *words = arguments
    if host not in known:
        sys.stderr.write(f"ddpjob: no worker is named {host}; there are {', '.join(known)}\n")
        return NO_HOST
    line = " ".join(words)
    if host == environment[ENV_WORKER]:
        os.execv("/bin/sh", ["sh", "-c", line])  # noqa: S606 - the line is a shell command
    store = StoreClient(environment[ENV_STORE])
    number = store.add(f"mpi/{host}", 1)
    place = f"mpi/{host}/{number}"
    store.set(place, _signed(_read_key(environment), place, line))
    return int(store.get(f"{place}/code"))


def _run_lines(address: str, worker: str, secret: bytes) -> None:
    """Run the lines concurrently: a daemon may still run when the next one starts."""
    for number in itertools.count(1):
        key = f"mpi/{worker}/{number}"
        code, _, line = _wait_for(address, key).partition(" ")
        if not hmac.compare_digest(code.encode(), _code(secret, key, line).encode()):
            sys.stderr.write(
                f"ddpjob: {key} has a line without this membership's code: another user of this"
                " machine or another program wrote it; it is not run\n"
            )
            with contextlib.suppress(OSError):
                StoreClient(address).set(f"{key}/code", str(NO_HOST))
            continue
        threading.Thread(target=_run, args=(address, key, line), daemon=True).start()


def _read_key(environment: Mapping[str, str]) -> bytes:
    with open(environment[ENV_MPI_KEY], "rb") as file:
        return file.read()


def _signed(secret: bytes, key: str, line: str) -> str:
    return f"{_code(secret, key, line)} {line}"


def _code(secret: bytes, key: str, line: str) -> str:
    return hmac.digest(secret, f"{key}\0{line}".encode(), "sha256").hex()


def _wait_for(address: str, key: str) -> str:
    """Return the value of a key; retry until the store returns or the agent ends this program."""
    while True:
        with contextlib.suppress(OSError), contextlib.closing(StoreClient(address)) as store:
            return store.get(key)
        time.sleep(RETRY_SECONDS)


def _run(address: str, key: str, line: str) -> None:
    code = subprocess.call(["/bin/sh", "-c", line])
    with contextlib.suppress(OSError):
        StoreClient(address).set(f"{key}/code", str(code if code >= 0 else 128 - code))
