"""The regular expressions of the agent: what a user prints or a peer sends cannot stop the agent.

No time is measured. The patterns are read: a repeat has an end, none is in another one, and at most
one in a sequence can give characters back to what follows. Such a search is linear in its input.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2] / "trainer-image"
PACKAGES = ("ddpjob_agent", "ddpjob_protocol")
MAX_REPEATS = 4096
ALPHABET = frozenset(map(chr, [*range(0x180), 0x663, 0x2003, 0x2028]))
CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d", sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s", sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w", sre.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip

REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT)
Nodes = list[tuple[Any, Any]]


def modules() -> list[tuple[str, ast.Module]]:
    """All modules that use `re`."""
    found = []
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text())
        if any("re" in imports(node) for node in ast.walk(tree)):
            found.append((".".join(path.relative_to(ROOT).with_suffix("").parts), tree))
    return found


def imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [str(node.module)] if isinstance(node, ast.ImportFrom) else []


def patterns() -> Iterator[tuple[str, re.Pattern[Any]]]:
    for name, _ in modules():
        for attribute, value in vars(importlib.import_module(name)).items():
            if isinstance(value, re.Pattern):
                yield f"{name}.{attribute}", value


PATTERNS = dict(patterns())


def test_all_patterns_are_found() -> None:
    """Each is compiled once, at the top of its module, so that `patterns` finds it."""
    found = {name.rpartition(".")[0] for name in PATTERNS}
    for name, tree in modules():
        uses = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and is_re(n.value)]
        called = [node for node in uses if node.attr.islower()]
        on_top = [
            node.value.func
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        ]
        assert all(node in on_top and node.attr == "compile" for node in called), name
        assert name in found or not called
    assert len(PATTERNS) >= 15


def is_re(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "re"


@pytest.mark.parametrize("name", PATTERNS)
def test_search_is_linear(name: str) -> None:
    pattern = PATTERNS[name]
    assert faults(pattern.pattern, pattern.flags) == []


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("a*b", "without end"),
        ("a{2,}b", "without end"),
        ("(a{1,3}){1,5}b", "in another"),
        ("((a{1,3})|b){1,5}c", "in another"),
        (".{0,9}a.{0,9}b", "give back"),
        (r"\d{1,5}\d{1,5}", None),  # the last one gives back to nothing
        (r"\d{1,5}\w{1,5}x", "give back"),
        (r"\d{1,5}(-x)?[a5]{1,3}5", "give back"),
        (r"\d{1,5}: \S{1,255}\s{1,9}x", None),
        ("(a{1,3})?b", None),
        (r"x.{0,99}y[^']{1,99}'", None),
        ("(?i:A{1,9})[a]{1,9}a", "give back"),
    ],
)
def test_check_sees_what_is_not_linear(pattern: str, fault: str | None) -> None:
    found = faults(pattern)
    assert bool(found) == bool(fault)
    assert fault is None or fault in " ".join(found)


def faults(pattern: str | bytes, flags: int = 0) -> list[str]:
    """Return what makes a search slow."""
    nodes = list(_parser.parse(pattern, flags))
    found = list(faults_of_repeats(nodes))
    giving = giving_back(nodes, set())
    return [*found, f"{giving} repeats give back to what follows"] if giving > 1 else found


def faults_of_repeats(nodes: Nodes, *, inside: bool = False) -> Iterator[str]:
    for kind, value in nodes:
        repeats = False
        if kind in REPEATS:
            low, high, items = value
            repeats = high > max(low, 1)
            if high > MAX_REPEATS:
                yield f"a repeat without end: {items}"
            if inside and repeats:
                yield f"a repeat in another one: {items}"
        for each in children(kind, value):
            yield from faults_of_repeats(each, inside=inside or repeats)


def giving_back(nodes: Nodes, after: set[str]) -> int:
    """Return how many repeats of a match can give a character back to what follows.

    `after` has the characters that may follow these nodes.
    """
    found = 0
    for number, (kind, value) in enumerate(nodes):
        following = first(nodes[number + 1 :], after)
        found += max((giving_back(each, following) for each in children(kind, value)), default=0)
        if kind in REPEATS and value[1] > max(value[0], 1):
            found += bool(first(list(value[2]), set()) & following)
    return found


def children(kind: Any, value: Any) -> list[Nodes]:
    if kind in REPEATS or kind == sre.SUBPATTERN:
        return [list(value[-1])]
    if kind == sre.BRANCH:
        return [list(each) for each in value[1]]
    if kind in (sre.ASSERT, sre.ASSERT_NOT):
        return [list(value[1])]
    return []


def first(nodes: Nodes, after: set[str]) -> set[str]:
    """Return the characters that can come first, of an alphabet that has each category."""
    if not nodes:
        return after
    (kind, value), rest = nodes[0], nodes[1:]
    if kind in (sre.AT, sre.ASSERT, sre.ASSERT_NOT):
        return first(rest, after)
    if kind in REPEATS:
        low, _, items = value
        following = first(rest, after)
        return first(list(items), following) | (following if low == 0 else set())
    if inner := children(kind, value):
        following = first(rest, after)
        return set().union(*(first(each, following) for each in inner))
    return set(ALPHABET) if kind == sre.ANY else of_one(kind, value)


def of_one(kind: Any, value: Any) -> set[str]:
    """Return the characters of one place, in both cases."""
    if kind == sre.LITERAL:
        return {chr(value), chr(value).lower(), chr(value).upper()}
    if kind == sre.NOT_LITERAL:
        return set(ALPHABET) - {chr(value)}
    if kind == sre.RANGE:
        return {
            each for code in range(value[0], value[1] + 1) for each in of_one(sre.LITERAL, code)
        }
    if kind == sre.CATEGORY:
        return {each for each in ALPHABET if re.fullmatch(CATEGORIES[value], each)}
    assert kind == sre.IN, kind
    negated = value[0][0] == sre.NEGATE
    named = set().union(*(of_one(*each) for each in value[negated:]))
    return set(ALPHABET) - named if negated else named
