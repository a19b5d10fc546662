"""The memory and the ports of the processes of a job, as root of their machine sees them."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import psutil

from ddpjob_operator.local.simulated.processes import rank_of

SPAN = re.compile(rb"^(\w+)-(\w+) rw\S+ \S+ \S+ \S+ *(\S*)", re.MULTILINE)


def role_of(process: psutil.Process) -> str:
    """Return what a process of a job is."""
    if rank_of(process) is not None:
        return "training process"
    words = process.cmdline()
    if any(word.endswith("agent.pyz") for word in words):
        return "service" if "rendezvous" in words else "agent"
    return "torchrun" if any("torchrun" in word for word in words) else "fork server"


def memory_of(process: psutil.Process) -> Iterator[bytes]:
    """Yield the memory that a process can write, with its environment."""
    folder = Path(f"/proc/{process.pid}")
    yield (folder / "environ").read_bytes()
    with (folder / "mem").open("rb", 0) as memory:
        for first, last, name in SPAN.findall((folder / "maps").read_bytes()):
            if not name.startswith((b"/dev", b"/memfd", b"[v")):
                with contextlib.suppress(OSError, ValueError):
                    memory.seek(int(first, 16))
                    yield memory.read(int(last, 16) - int(first, 16))


def keys_held(process: psutil.Process, keys: Mapping[str, bytes]) -> set[str]:
    """Return the names of the keys in the memory of a process, as bytes or as digits."""
    forms = {name: (key, key.hex().encode()) for name, key in keys.items()}
    return {
        name
        for part in memory_of(process)
        for name, (raw, digits) in forms.items()
        if raw in part or digits in part
    }


def listening(processes: Iterable[psutil.Process]) -> Counter[str]:
    """Return how many ports the processes of each role listen on."""
    found: Counter[str] = Counter()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            open_ports = process.net_connections("inet")
            found[role_of(process)] += sum(each.status == "LISTEN" for each in open_ports)
    return found
