"""Finds the examples of the pages, so that tests can check and execute them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"^(?:\S*/)?(ddpjob|kubectl ddp) (.*)$")
OPERATORS = re.compile(r"\s(?:&&|\|\||\||>|;)\s|\s#\s")
INLINE = re.compile(r"`((?:ddpjob|kubectl ddp) [^`]+)`")
PLACEHOLDERS = re.compile(r"…|\\\|| \[|\|")  # several commands in one text
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```[ \t]*$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code of a page."""

    page: str
    line: int  # of its first line
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    """All blocks of the README, of the documentation and of the examples' pages."""
    found = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/README.md")]
    for path in sorted(found):
        text = path.read_text()
        for block in FENCE.finditer(text):
            line = text.count("\n", 0, block.start(3)) + 1
            page = path.relative_to(ROOT).as_posix()
            yield Block(page, line, block[2], textwrap.dedent(block[3]))


def examples(page: str, heading: str, language: str = "python") -> list[str]:
    """The examples below a heading of a page, up to the next heading."""
    text = (ROOT / page).read_text()
    _, found, rest = text.partition(f"\n## {heading}\n")
    assert found, f"{page} has no heading {heading}"
    section = rest.partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, flags=re.DOTALL)


def execute(*blocks: str) -> dict[str, object]:
    """Run examples one after another, and return their variables."""
    variables: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "page", "exec"), variables)
    return variables


def shell_lines() -> dict[str, str]:
    """The commands of all blocks without a language, by their place."""
    found: dict[str, str] = {}
    for block in blocks():
        if block.language in {"", "bash", "sh", "console"}:
            joined = block.text.replace("\\\n", " ")
            for number, line in enumerate(joined.splitlines()):
                for part in OPERATORS.split(line.strip()):
                    if command := COMMAND.match(part.strip()):
                        found[f"{block.page}:{block.line + number}: {command[0]}"] = command[2]
    return found


def command_lines() -> dict[str, str]:
    """The commands of all blocks without a language, and those within the text, by their place."""
    found = shell_lines()
    for page in sorted({block.page for block in blocks()}):
        for inline in INLINE.findall((ROOT / page).read_text()):
            command = COMMAND.match(OPERATORS.split(inline)[0])
            if command is not None and not PLACEHOLDERS.search(inline):
                found[f"{page}: {command[0]}"] = command[2]
    return found
