"""The first moments of `ddpjob`."""

from __future__ import annotations

import signal
import subprocess
import sys

from ddpjob_operator.cli.common import ExitCode

# The import of a module of the command presses Ctrl-C.
PROGRAM = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["ddpjob", "version"]
from ddpjob_operator.cli.entry import main
main()
"""


def test_ctrl_c_during_the_imports_prints_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        check=False,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", "")
