"""The screen of a local run: lines, and below them a progress bar on a terminal.

A screen that cannot be written any more, such as a closed pipe, never ends a training.
May not: choose the lines.
"""

from __future__ import annotations

import io
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ddpjob_operator.local.output.rate import StepRate, describe_seconds
from ddpjob_operator.local.output.view import OutputLine
from ddpjob_operator.terminal import discard_output, print_error
from ddpjob_protocol.messages.control import Report

COLOURS = ("cyan", "magenta", "blue", "green", "yellow", "bright_blue", "bright_magenta")
BAR_WIDTH = 16


def open_screen(*, quiet: bool) -> Screen:
    """Return the screen on standard output."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what a rank prints may not fit the locale
    console = _Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    return Screen(console, quiet=quiet)


class _Console(Console):
    """A console whose closed pipe does not end the program."""

    def on_broken_pipe(self) -> None:
        """Raise the error again, for `Screen`."""
        raise BrokenPipeError


class Screen:
    """The output of `ddpjob run --local`."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self.quiet = quiet
        self._is_broken = False
        self._rate = StepRate()
        self._membership = ""
        self._live: Live | None = None
        self.printed_at = time.monotonic()  # the last line

    @property
    def has_bar(self) -> bool:
        """True if a progress bar is shown once a step is reported."""
        console = self._console
        if self.quiet or self._is_broken:
            return False
        return console.is_terminal and not console.is_dumb_terminal

    def print(self, *objects: Any, soft_wrap: bool | None = True) -> None:
        """Print a line, unless the screen is quiet."""
        if self.quiet or self._is_broken:
            return
        self.printed_at = time.monotonic()
        with self._guard():
            self._console.print(*objects, soft_wrap=soft_wrap)

    def print_result(self, text: str) -> None:
        """Print a line even if the screen is quiet."""
        if not self._is_broken:
            with self._guard():
                self._console.print(text, soft_wrap=True)

    def show(self, lines: Sequence[OutputLine]) -> None:
        """Print lines of the ranks."""
        if self.quiet or self._is_broken or not lines:
            return
        self.printed_at = time.monotonic()
        is_plain = self._console.color_system is None and self._live is None
        with self._guard():
            if is_plain:
                text = "".join(f"{line.label} {_plain(line.text)}\n" for line in lines)
                self._console.file.write(text)
                self._console.file.flush()
                return
            for line in lines:
                label = (f"{line.label} ", _colour_of(line.worker))
                labelled = Text.assemble(label, Text.from_ansi(line.text))
                self._console.print(labelled, soft_wrap=True)

    def follow(self, report: Report) -> None:
        """Move the progress bar to the step of a report."""
        if not self.has_bar or report.step is None or report.membership is None:
            return
        if str(report.membership.id) != self._membership:
            self._membership = str(report.membership.id)
            self._rate.restart()
        self._rate.add(report.step, time.monotonic())
        with self._guard():
            if self._live is None:
                self._live = Live(
                    console=self._console, auto_refresh=False, transient=True,
                    redirect_stdout=False, redirect_stderr=False,
                )  # fmt: skip
                self._live.start()
            self._live.update(self._bar(report, report.step), refresh=True)

    def _bar(self, report: Report, step: int) -> Table:
        total, rate = report.total_steps, self._rate.per_second
        left = self._rate.seconds_left(total)
        facts = [f"{step} of {total}" if total else f"step {step}"]
        if report.membership is not None:
            facts.append(f"world size {report.membership.world_size}")
        facts += [] if rate is None else [f"{rate:.1f} steps/s"]
        facts += [] if left is None else [f"{describe_seconds(left)} left"]
        facts += [f"{name} {value:.4f}" for name, value in report.metrics.items()]
        row = Table.grid(padding=(0, 2))
        text = Text("  ".join(facts), overflow="ellipsis", no_wrap=True)
        bar = [ProgressBar(total=total, completed=step, width=BAR_WIDTH)] if total else []
        row.add_row(*bar, text)
        return row

    def close(self) -> None:
        """Remove the progress bar."""
        live, self._live = self._live, None
        if live is not None:
            with self._guard():
                live.stop()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        """Write nothing more: later writes, and that of the interpreter's end, go nowhere."""
        if self._is_broken:
            return
        self._is_broken = True
        self._live = None
        discard_output()
        if not isinstance(error.__cause__ or error, BrokenPipeError):
            print_error(f"stdout cannot be written: {error}; the training continues")


def _plain(text: str) -> str:
    return Text.from_ansi(text).plain if "\x1b" in text else text


def _colour_of(worker: str) -> str:
    return COLOURS[zlib.crc32(worker.encode()) % len(COLOURS)]
