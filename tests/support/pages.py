"""Finds the Python examples of a page, so that tests can execute them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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
