"""`kubectl_complete-ddp` and `-ddpjob`: complete the plugin, by kubectl's protocol for plugins.

kubectl passes the words so far, the last one incomplete. The answer is a candidate a line, with a
tab before its explanation, and a last line with the directive.
May not: print anything else, or fail.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Sequence

from ddpjob_operator.cli.main import ENV_COMPLETE, PROGRAM, run_app
from ddpjob_operator.terminal import flush_output, prepare

NO_FILES = ":4"
FILES = ":0"  # the shell completes names of files


def main() -> None:
    """Print the candidates for the words of the command line."""
    prepare()
    with contextlib.suppress(OSError):
        print("\n".join(answer(sys.argv[1:])))
        flush_output()


def answer(words: Sequence[str]) -> list[str]:
    """Return the candidates for the last word, and the directive."""
    *before, last = words or [""]
    # The completion for fish has the form that kubectl expects.
    os.environ |= {
        ENV_COMPLETE: "complete_fish",
        "_TYPER_COMPLETE_ARGS": f"{shlex.join([PROGRAM, *before])} {last and shlex.quote(last)}",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        run_app(PROGRAM)
    found = [line for line in printed.getvalue().splitlines() if line not in ("", last)]
    return [*found, NO_FILES if found else FILES]
