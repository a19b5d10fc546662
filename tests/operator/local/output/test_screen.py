"""The progress bar, colours, and a screen that breaks."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ddpjob_operator.local.output.screen import Screen
from ddpjob_operator.local.output.view import OutputLine
from support.builders import make_report, make_worker

LINE = OutputLine("[worker-000 0]", "job-worker-000-1", "\x1b[31mred\x1b[0m")


def show(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, **environment: str) -> str:
    """What a screen prints of a step, and of a line."""
    for name in ("NO_COLOR", "TERM", "COLORTERM", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    printed = io.StringIO()
    screen = Screen(Console(file=printed, force_terminal=terminal, width=120))
    screen.follow(make_report(make_worker(0), step=3, total_steps=12, metrics={"loss": 0.5}))
    screen.show([LINE])
    screen.close()
    return printed.getvalue()


def test_a_terminal_has_a_bar_and_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    text = show(monkeypatch, terminal=True, TERM="xterm")
    assert "3 of 12  world size 1  loss 0.5000" in text
    assert "\x1b[31mred\x1b[0m" in text
    assert text.endswith("\x1b[2K"), "the bar is removed"


def test_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    text = show(monkeypatch, terminal=True, TERM="xterm", NO_COLOR="1")
    assert "3 of 12" in text
    assert "[31m" not in text
    assert "[worker-000 0] red" in text


@pytest.mark.parametrize(("terminal", "term"), [(False, "xterm"), (True, "dumb")])
def test_lines_only(monkeypatch: pytest.MonkeyPatch, terminal: bool, term: str) -> None:
    text = show(monkeypatch, terminal=terminal, TERM=term)
    assert text == "[worker-000 0] red\n"


class Full(io.StringIO):
    """A full disk."""

    def write(self, _: str, /) -> int:
        raise OSError(28, "No space left on device")


def test_a_screen_that_cannot_be_written_is_reported_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen = Screen(Console(file=Full()))
    for _ in range(2):
        screen.print("x")
        screen.show([LINE])
    assert capsys.readouterr().err == (
        "stdout cannot be written: [Errno 28] No space left on device; the training continues\n"
    )


def test_quiet_prints_the_result_only() -> None:
    printed = io.StringIO()
    screen = Screen(Console(file=printed), quiet=True)
    screen.print("x")
    screen.show([LINE])
    screen.print_result("Complete")
    assert printed.getvalue() == "Complete\n"
