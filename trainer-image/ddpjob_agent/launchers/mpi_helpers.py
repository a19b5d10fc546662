"""The programs below an agent that let mpirun start its daemons without ssh: see `mpi`.

`lead` runs the user's command and says when it is done; `shell` is what mpirun calls for each
host; `follow` runs what shells say. They meet in the membership's store, which the agent offers
on loopback: who may write there has the job's token. They end with the membership, at the latest.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from ddpjob_agent.c10d.client import StoreClient
from ddpjob_protocol.environment import ENV_STORE, ENV_WORKER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

END = "mpi/end"
NO_HOST = 255  # as of ssh
RETRY_SECONDS = 0.5
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGWINCH)


def run_launcher(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the command; if it ends well, so do the followers. Returns its exit code."""
    try:
        child = subprocess.Popen(argv)
    except OSError as error:
        sys.stderr.write(f"cannot start {argv[0]!r}: {error.strerror}\n")
        return 127
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the agent sends that to all of its processes
    for number in FORWARDED:
        signal.signal(number, lambda number, _: child.send_signal(number))
    code = child.wait()
    if code == 0:
        with contextlib.suppress(OSError):  # the membership is over
            StoreClient(environment[ENV_STORE]).set(END, "")
    return code if code >= 0 else 128 - code


def run_follower(environment: Mapping[str, str]) -> int:
    """Run every line that is meant for this worker until the command has ended well."""
    worker, store = environment[ENV_WORKER], environment[ENV_STORE]
    threading.Thread(target=_run_lines, args=(store, worker), daemon=True).start()
    _wait_for(store, END)
    return 0


def run_remote_shell(hosts: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the words that follow a host's name there, as ssh does; returns their exit code."""
    with open(hosts, encoding="utf-8") as file:
        known = [line.split()[0] for line in file]
    host, *words = arguments
    if host not in known:
        sys.stderr.write(f"ddpjob: no worker is named {host}; there are {', '.join(known)}\n")
        return NO_HOST
    line = " ".join(words)
    if host == environment[ENV_WORKER]:
        os.execv("/bin/sh", ["sh", "-c", line])  # noqa: S606 - the line is meant for one
    store = StoreClient(environment[ENV_STORE])
    number = store.add(f"mpi/{host}", 1)
    store.set(f"mpi/{host}/{number}", line)
    return int(store.get(f"mpi/{host}/{number}/code"))


def _run_lines(address: str, worker: str) -> None:
    """Beside each other: a daemon may stay when the next one starts."""
    for number in itertools.count(1):
        key = f"mpi/{worker}/{number}"
        line = _wait_for(address, key)
        threading.Thread(target=_run, args=(address, key, line), daemon=True).start()


def _wait_for(address: str, key: str) -> str:
    """The value of a key. A store that is away comes back, or the agent ends this program."""
    while True:
        with contextlib.suppress(OSError), contextlib.closing(StoreClient(address)) as store:
            return store.get(key)
        time.sleep(RETRY_SECONDS)


def _run(address: str, key: str, line: str) -> None:
    code = subprocess.call(["/bin/sh", "-c", line])
    with contextlib.suppress(OSError):
        StoreClient(address).set(f"{key}/code", str(code if code >= 0 else 128 - code))
