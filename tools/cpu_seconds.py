"""Run a command and write the CPU seconds of all its processes to a file.

    python tools/cpu_seconds.py FILE COMMAND...

The kernel adds up the time of processes that are waited for. This one therefore adopts the
orphans below it (it is a subreaper) and waits for each. What still runs when the command ends
is not counted and is left to init. Ends with the exit code of the command: a signal to the process
group ends the command, and this process waits for it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def run(command: list[str]) -> int:
    """Run the command; reap everything below it until it ends. Returns its exit code."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN, the command does not inherit this
    main = subprocess.Popen(command).pid
    while True:
        pid, status = os.wait()
        if pid == main:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def main(file: str, *command: str) -> int:
    """Run the command and write down what it used."""
    code = run([*command])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    Path(file).write_text(f"{used.ru_utime + used.ru_stime:.1f}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
