"""The failure at the end of a run, without a traceback that the screen shows already.

May not: print, open anything.
"""

from __future__ import annotations

from ddpjob_operator.local.output.view import OutputView
from ddpjob_protocol.messages.agent import Failure


def describe_failure(message: str, failure: Failure | None, view: OutputView) -> str:
    """Return the message of a failed job, with rank, worker and exit code of its last failure."""
    if failure is None:
        return message
    head, mark, traceback = message.partition("\nTraceback")
    facts = _facts(head, failure, view)
    if mark and view.has_shown(failure.traceback):
        return f"{head}\n{'; '.join([*facts, 'its traceback is above'])}"
    return "\n".join([head, *facts]) + mark + traceback


def worker_of(failure: Failure | None, view: OutputView) -> str | None:
    """Return the worker with the rank that failed, if it printed anything."""
    return None if failure is None or failure.rank is None else view.worker_of(failure.rank)


def _facts(head: str, failure: Failure, view: OutputView) -> list[str]:
    code, worker = failure.exit_code, worker_of(failure, view)
    if code is None or failure.permanent:
        return []
    rank = "the command" if failure.rank is None else f"rank {failure.rank}"
    if code < 0 or f"exit code {code}" in head:
        return [f"{rank} ran on {worker}"] if worker else []
    on = f" on {worker}" if worker else ""
    return [f"{rank}{on} ended with exit code {code}"]
