"""Check the English of docstrings, comments, messages and documents.

`python tools/prose.py [PATH...]` prints each place that breaks a rule and exits with 1. Without a
path it checks the paths of `[tool.prose]` in pyproject.toml. The rules are in CONTRIBUTING.md; this
tool holds those that a tool can hold: first words of docstrings, length of sentences, banned words.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 30  # words of a sentence

OPENINGS = re.compile(r"(Of|Its|Who|What|Whether|Those|As|Whose|Where|How|So|That|This|It)\b")
BANNED = {
    r"who|whom|whoever": "name the process, the writer, the rank",
    r"tells?|told|telling": "send, report, log",
    r"hears?|heard": "receive",
    r"says?|said": "report, log, state",
    r"go(?:es)? on|went on|gone on|going on": "continue, resume",
    r"overtak\w+": "fenced, superseded",
    r"likewise|the other one|so many|so much|so long": "repeat the noun",
    r"anew|afresh": "again",
    r"lets? in|be let": "admit",
    r"for good": "permanently",
    r"nobody(?:'s)?|somebody|everybody|anybody": "name the worker, the process, the user",
    r"(?:is|are|was|were) ended": "killed, stopped, deleted",
    r"stood still|stands? still": "stalled, paused",
    r"(?:was|were) seen": "observed",
    r"in doubt|so far apart|nothing but|than nothing|does not act|nothing is wrong": "state the fact",
    r"(?<!there )is no (?!longer\b|more\b)\w+": "is not a",
    r"(?:what|all that) is (?:there|whole|torn)": "name the files, the rest",
    r"leaves? (?:\S+ ){1,6}alone": "does not change",
    r"(?<!\bis )(?<!\bor )absent:": "Default:",
    r"knows? of no": "does not know",
    r"leads? out|gone with": "is outside of, is deleted with",
    r"never (?:comes?|due)|is the first one|there yet": "exists, supported, reached",
}
_BANNED = re.compile(
    rf"(?<![\w`])(?:{'|'.join(f'(?P<r{i}>{p})' for i, p in enumerate(BANNED))})(?!\w)",
    re.IGNORECASE,
)
_REMEDIES = list(BANNED.values())
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n|\n\s*[-*|]\s|\n\s*\d+\.\s")
_CODE = re.compile(r"```.*?```|`[^`\n]+`|\{[^{}]*\}|https?://\S+|<[^>\n]+>", re.DOTALL)


class Text(NamedTuple):
    """A passage with the line where it begins."""

    line: int
    text: str
    is_docstring: bool = False


def check(text: Text) -> Iterator[tuple[int, str]]:
    """Yield the line and the fault of each broken rule."""
    plain = _CODE.sub(lambda found: "code" + "\n" * found.group().count("\n"), text.text)
    if text.is_docstring and (found := OPENINGS.match(plain)):
        yield text.line, f"docstring begins with '{found.group()}'"
    for found in _BANNED.finditer(plain):
        remedy = _REMEDIES[int((found.lastgroup or "r0")[1:])]
        yield text.line + plain.count("\n", 0, found.start()), f"'{found.group()}': {remedy}"
    at = 0
    for sentence in _SENTENCE.split(plain):
        at = plain.find(sentence, at)
        words = len(re.findall(r"[A-Za-z][\w'-]*", sentence))
        if words > LONGEST:
            line = text.line + plain.count("\n", 0, at)
            yield line, f"sentence of {words} words: {' '.join(sentence.split())[:60]}…"


def read_python(source: str) -> Iterator[Text]:
    """Yield docstrings, comments and the messages of a Python file."""
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = set()
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text is not None and isinstance(node.body[0], ast.Expr):
                docstrings.add(node.body[0].value)
                yield Text(node.body[0].lineno, text, is_docstring=True)
    for node in nodes:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        is_message = len(node.value.split()) > 3 and "\n" not in node.value
        if is_message and node not in docstrings:
            yield Text(node.lineno, node.value)
    comment: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if comment and token.start[0] != comment[-1].start[0] + 1:
                yield _joined(comment)
                comment = []
            comment.append(token)
    if comment:
        yield _joined(comment)


def _joined(comment: list[tokenize.TokenInfo]) -> Text:
    lines = (re.sub(r"#:?|noqa.*|type: ignore.*", "", token.string) for token in comment)
    return Text(comment[0].start[0], "\n".join(lines))


def read(path: Path) -> Iterator[Text]:
    """Yield the passages of a file."""
    if path.suffix == ".py":
        yield from read_python(path.read_text())
    else:
        yield Text(1, path.read_text())


def find_files(paths: list[str]) -> Iterator[Path]:
    """Yield the Python and Markdown files at or below these paths."""
    for name in paths:
        path = ROOT / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (each for each in found if each.suffix in {".py", ".md"})


def main(arguments: list[str]) -> int:
    """Print all faults; return 1 if there is one."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["prose"]
    faults = 0
    for path in find_files(arguments or settings["paths"]):
        for text in read(path):
            for line, fault in check(text):
                faults += 1
                print(f"{path.relative_to(ROOT)}:{line}: {fault}")
    print(f"prose: {faults} faults" if faults else "prose: all passed")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
