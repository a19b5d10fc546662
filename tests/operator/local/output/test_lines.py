"""Bytes of a rank become lines for a screen."""

from __future__ import annotations

import pytest

from ddpjob_operator.local.output.lines import MAX_LINE_BYTES, Line, LineSplitter

LONG = b"x" * (MAX_LINE_BYTES - 1) + "é".encode() + b"y"


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        pytest.param([b"one\ntwo\n"], [Line("one"), Line("two")], id="whole lines"),
        pytest.param([b"on", b"e\nt", b"wo\n"], [Line("one"), Line("two")], id="parts of lines"),
        pytest.param([b"a\n\nb\n"], [Line("a"), Line(""), Line("b")], id="an empty line"),
        pytest.param([b"a\r\nb\r\n"], [Line("a"), Line("b")], id="ends of Windows"),
        pytest.param([b"no end"], [Line("no end")], id="without an end"),
        pytest.param([b"10%\r20%\r30%\n"], [Line("30%")], id="a finished progress bar"),
        pytest.param(
            [b"\r10%", b"\r20%", b"\r30%\n"],
            [Line("10%", is_update=True), Line("20%", is_update=True), Line("30%")],
            id="a progress bar on its way",
        ),
        pytest.param(["ü".encode()[:1], "ü".encode()[1:] + b"\n"], [Line("ü")], id="half of ü"),
        pytest.param([b"\xff\xfe\n"], [Line("\ufffd\ufffd")], id="no text"),
        pytest.param([b"\x1b[31mred\x1b[0m\n"], [Line("\x1b[31mred\x1b[0m")], id="colours stay"),
        pytest.param(
            [b"\x1b[2J\x1b[1;1Hx\x1b]0;title\x07y\x08\tz\x00\n"],
            [Line("xy\tz")],
            id="the rest goes",
        ),
        pytest.param(
            [LONG + b"\n"],
            [Line("x" * (MAX_LINE_BYTES - 1)), Line("éy")],
            id="a long line is cut between characters",
        ),
        pytest.param([LONG], [Line("x" * (MAX_LINE_BYTES - 1)), Line("éy")], id="before its end"),
    ],
)
def test_lines(pieces: list[bytes], lines: list[Line]) -> None:
    splitter = LineSplitter()
    found = [line for piece in pieces for line in splitter.feed(piece)]
    assert found + splitter.end() == lines
    assert splitter.end() == []
