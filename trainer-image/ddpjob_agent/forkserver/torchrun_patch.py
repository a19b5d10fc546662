"""What is different in a torchrun that was forked: nothing that its user could tell, but time.

Training processes are asked of the warm parent instead of executed; whatever cannot be is started
as ever, and stderr says why. And its rendezvous does not wait where that only spares the store:
how many nodes come is known, and all come at once.
Both replace a private function of torch's, found by name and shape; see `is_known`.
"""

from __future__ import annotations

import random
import sys
import time
from typing import TYPE_CHECKING, Any

from ddpjob_agent.forkserver.eligibility import NotEligibleError, check_arguments, check_environment
from ddpjob_agent.forkserver.popen import ForkedPopen

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

HANDLERS = (  # where torch has the class that starts a process, the newest first
    "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler",
    "torch.distributed.elastic.multiprocessing.api",
)
RENDEZVOUS = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
# Between two questions to the store. torch waits 1 s, and up to 0.3 s before it asks at all.
PAUSE_SECONDS, PAUSE_SECONDS_PER_NODE = 0.02, 0.001


def is_supported_torch() -> bool:
    """Whether this torch starts processes in the way that is replaced."""
    code = getattr(getattr(_handler(), "_popen", None), "__code__", None)
    return code is not None and code.co_varnames[: code.co_argcount] == ("self", "args", "env")


def _handler() -> Any:
    found = (getattr(sys.modules.get(name), "SubprocessHandler", None) for name in HANDLERS)
    return next((handler for handler in found if handler is not None), None)


def fork_from(parent: socket.socket, imported: Mapping[str, str]) -> None:
    """From now on processes come from there, where torch was imported in that environment."""
    handler, said = _handler(), set()
    execute = handler._popen  # noqa: SLF001 - see the head of the module

    def start(self: Any, args: Sequence[str], env: Mapping[str, str]) -> Any:
        try:
            if list(args[:2]) != [sys.executable, "-u"]:
                raise NotEligibleError("it is not run by the Python of torchrun")
            check_arguments(args[2:])
            check_environment(imported, env)
            files = (self._stdout, self._stderr)
            out, err = (file.fileno() if file else i for i, file in enumerate(files, 1))
            return ForkedPopen(parent, args, env, (0, out, err))
        except (NotEligibleError, OSError) as error:
            if str(error) not in said:
                sys.stderr.write(f"ddpjob: a training process is started cold: {error}\n")
                said.add(str(error))
            return execute(self, args, env)

    handler._popen = start  # noqa: SLF001


def shorten_rendezvous_delays(nodes: str) -> None:
    """Let the rendezvous of N or MIN:MAX nodes take no longer than it must."""
    module: Any = sys.modules.get(RENDEZVOUS)
    most = nodes.rpartition(":")[2]
    longest = PAUSE_SECONDS + PAUSE_SECONDS_PER_NODE * (int(most) if most.isdigit() else 1)

    def pause(seconds: float | tuple[float, float]) -> None:
        wanted = random.uniform(*seconds) if isinstance(seconds, tuple) else seconds  # noqa: S311
        time.sleep(min(wanted, longest))

    if hasattr(module, "_delay"):
        module._delay = pause  # noqa: SLF001 - see the head of the module
