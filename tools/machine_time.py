"""What all processes of the machine have used."""

from __future__ import annotations

from collections.abc import Callable

import psutil


def watch_machine() -> Callable[[], str]:
    """Return a function that reports what all processes of the machine have used since this call.

    Containers are a part of it, and other work of the machine.
    """
    start = psutil.cpu_times()

    def report() -> str:
        end = psutil.cpu_times()
        spent = {name: getattr(end, name) - getattr(start, name) for name in end._fields}
        total = sum(spent.values()) - spent.get("guest", 0.0) - spent.get("guest_nice", 0.0)
        unused = spent["idle"] + spent.get("iowait", 0.0)
        return (
            f"the machine used {total - unused:.0f} CPU-seconds, containers included,"
            f" and was idle for {unused / (total or 1.0):.0%} of its time"
        )

    return report
