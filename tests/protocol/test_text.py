"""Words for messages that people read."""

from __future__ import annotations

import pytest

from ddpjob_protocol.text import ends, last_lines, plural, shorten, some


@pytest.mark.parametrize(
    ("names", "text"),
    [
        pytest.param([], "", id="none"),
        pytest.param(["a"], "a", id="one"),
        pytest.param(["a", "b"], "a, b", id="as_many_as_fit"),
        pytest.param([0, 1, 2], "0, 1 and 1 more", id="numbers"),
        pytest.param(["a", "b", "c", "d"], "a, b and 2 more", id="the_others_are_counted"),
    ],
)
def test_some(names: list[object], text: str) -> None:
    assert some(names, 2) == text


@pytest.mark.parametrize(
    ("count", "word", "expected"),
    [
        (1, "worker", "1 worker"),
        (0, "worker", "0 workers"),
        (2, "process", "2 processes"),
        (1, "loss", "1 loss"),
    ],
)
def test_plurals(count: int, word: str, expected: str) -> None:
    assert plural(count, word) == expected


def test_texts_are_cut_between_words_and_lines() -> None:
    assert shorten("one two three", 13) == "one two three"
    assert shorten("one two three", 12) == "one two..."
    assert shorten("x" * 20, 10) == "xxxxxxx..."
    trace = "File a\nFile b\nValueError: bad"
    assert last_lines(trace, 100) == trace
    assert last_lines(trace, 28) == "...\nFile b\nValueError: bad"
    assert last_lines("y" * 20, 10) == "...yyyyyyy"


def test_first_and_last_lines_of_a_failure_fit_an_event() -> None:
    frames = "\n".join(f'  File "/job/train.py", line {n}' for n in range(100))
    text = f"gave up\nTraceback:\n{frames}\nPermissionError: '/snapshots/a'"
    found = ends(text, 300)
    assert len(found) <= 300
    first, cut, *rest = found.splitlines()
    assert (first, cut, rest[-1]) == ("gave up", "...", "PermissionError: '/snapshots/a'")
    assert all(line in text.splitlines() for line in rest)
    assert ends(text, 9999) == text
    assert len(ends("word " * 100, 50)) <= 50
