"""A tiny command of a worker: notes when it runs in a membership, and waits for its end."""

from __future__ import annotations

import os
import signal
import time

folder = os.environ["NOTES"]
number = os.environ["DDPJOB_MEMBERSHIP"].rpartition(".")[2]
path = f"{folder}/{number}.{os.environ['DDPJOB_WORKER']}"
with open(f"{path}.new", "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib takes longer
    file.write(str(time.monotonic()))
os.rename(f"{path}.new", path)  # noqa: PTH104
signal.pause()
