"""The two changes to a forked torchrun. Its user can observe only shorter times.

The forked torchrun requests training processes from the fork server and does not execute them. If a
process cannot be forked, it starts cold, and stderr shows the reason.
The rendezvous skips delays that only reduce the load of the store: the number of nodes is known,
and all nodes join at once.
Both changes replace a private function of torch, found by name and shape; see `is_supported_torch`.
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import TYPE_CHECKING, Any

from ddpjob_agent.forkserver.eligibility import NotEligibleError, check_arguments, check_environment
from ddpjob_agent.forkserver.popen import ForkedPopen
from ddpjob_agent.output import streams

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

HANDLERS = (  # modules of the class that starts a process, the newest version first
    "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler",
    "torch.distributed.elastic.multiprocessing.api",
)
RENDEZVOUS = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
# Seconds between two reads of the store. torch waits 1 s, and up to 0.3 s before the first read.
PAUSE_SECONDS, PAUSE_SECONDS_PER_NODE = 0.02, 0.001


def is_supported_torch() -> bool:
    """Return whether this torch starts processes by the function that the patch replaces."""
    code = getattr(getattr(_handler(), "_popen", None), "__code__", None)
    return code is not None and code.co_varnames[: code.co_argcount] == ("self", "args", "env")


def _handler() -> Any:
    found = (getattr(sys.modules.get(name), "SubprocessHandler", None) for name in HANDLERS)
    return next((handler for handler in found if handler is not None), None)


def fork_from(parent: socket.socket, imported: Mapping[str, str]) -> None:
    """Request all later processes from `parent`, which imported torch in `imported`."""
    handler, said = _handler(), set()
    execute = handler._popen  # noqa: SLF001 - see the head of the module

    def start(self: Any, args: Sequence[str], env: Mapping[str, str]) -> Any:
        try:
            rank = streams.open_for(sys.executable, args, env)
            try:
                if rank.arguments[:2] != [sys.executable, "-u"]:
                    raise NotEligibleError("it is not run by the Python of torchrun")
                check_arguments(rank.arguments[2:])
                check_environment(imported, rank.environment)
                files = (self._stdout, self._stderr)
                own = [file.fileno() if file else i for i, file in enumerate(files, 1)]
                out, err = rank.streams or own
                return ForkedPopen(parent, rank.arguments, rank.environment, (0, out, err))
            finally:
                for descriptor in rank.streams or ():
                    os.close(descriptor)
        except (NotEligibleError, OSError) as error:
            if str(error) not in said:
                sys.stderr.write(f"ddpjob: a training process is started cold: {error}\n")
                said.add(str(error))
            return execute(self, args, env)

    handler._popen = start  # noqa: SLF001


def shorten_rendezvous_delays(nodes: str) -> None:
    """Shorten the delays in the rendezvous of N or MIN:MAX nodes."""
    module: Any = sys.modules.get(RENDEZVOUS)
    most = nodes.rpartition(":")[2]
    longest = PAUSE_SECONDS + PAUSE_SECONDS_PER_NODE * (int(most) if most.isdigit() else 1)

    def pause(seconds: float | tuple[float, float]) -> None:
        wanted = random.uniform(*seconds) if isinstance(seconds, tuple) else seconds  # noqa: S311
        time.sleep(min(wanted, longest))

    if hasattr(module, "_delay"):
        module._delay = pause  # noqa: SLF001 - see the head of the module
