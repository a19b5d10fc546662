"""The signals that each launcher forwards to the user's command."""

from __future__ import annotations

import signal

FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGWINCH)
