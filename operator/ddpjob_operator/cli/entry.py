"""The start of `ddpjob`: Ctrl-C ends it quietly from its first moment, also during imports.

May not: import anything that is slow.
"""

from __future__ import annotations

import sys
from typing import NoReturn

INTERRUPTED = 130  # ExitCode.INTERRUPTED, without its import


def main() -> NoReturn:
    """Run the command."""
    try:
        from ddpjob_operator.cli.main import main as run  # noqa: PLC0415 - it is slow to import

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
