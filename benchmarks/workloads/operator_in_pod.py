"""The operator as in a pod, for the benchmark of the control plane: the same process, and a meter.

    operator_in_pod.py FOLDER STALLS run --agent-image=...

FOLDER has `token` and `ca.crt` of a service account. At SIGUSR1 the longest callback of the event
loop since the last signal is written to the file STALLS, in seconds of CPU time: other processes of
a busy machine do not count.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

from kubernetes.aio.config import incluster_config

from ddpjob_operator.cli.main import main

_run = asyncio.Handle._run  # noqa: SLF001 - the only place where all callbacks pass
longest = 0.0


def _measured(handle: asyncio.Handle) -> None:
    global longest  # noqa: PLW0603 - one meter for one process
    began = time.thread_time()
    _run(handle)
    longest = max(longest, time.thread_time() - began)


def _report(path: Path) -> None:
    global longest  # noqa: PLW0603 - the same
    fresh = path.with_suffix(".new")
    fresh.write_text(f"{longest:.6f}")
    fresh.rename(path)
    longest = 0.0


if __name__ == "__main__":
    folder, stalls, *arguments = sys.argv[1:]
    incluster_config.SERVICE_TOKEN_FILENAME = f"{folder}/token"
    incluster_config.SERVICE_CERT_FILENAME = f"{folder}/ca.crt"
    asyncio.Handle._run = _measured  # type: ignore[assignment,method-assign]  # noqa: SLF001
    signal.signal(signal.SIGUSR1, lambda *_: _report(Path(stalls)))
    sys.argv = ["ddpjob", "operator", *arguments]
    sys.exit(main())
