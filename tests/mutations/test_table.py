"""The table of mutations fits the product and its tests, so that `make mutations` can be believed."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from mutations.table import GUARANTEES, ROOT, Mutation, load

MUTATIONS = load().values()
TITLE = "## Guarantees and their tests"


def test_every_edit_applies_once_and_leaves_a_program() -> None:
    assert not [each.name for each in MUTATIONS if not applies(each)]


def applies(mutation: Mutation) -> bool:
    path = ROOT / mutation.file
    text = mutation.mutated(path.read_text())
    if text is None or mutation.old == mutation.new:
        return False
    if path.suffix == ".py":
        ast.parse(text)
    return True


def test_every_test_that_is_named_exists() -> None:
    named = {test for mutation in MUTATIONS for test in mutation.tests}
    assert not sorted(test for test in named if not exists(test))
    assert not [mutation.name for mutation in MUTATIONS if not mutation.tests]


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and name.partition("::")[0] in names_in(ROOT / file)


def names_in(path: Path) -> set[str]:
    """Return the names that can be tests: functions, classes, aliases and imports."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
            if "*" in found:
                found |= names_in(ROOT / "tests" / f"{str(node.module).replace('.', '/')}.py")
                found.remove("*")
    return found


def test_every_guarantee_has_two() -> None:
    count = Counter(mutation.guarantee for mutation in MUTATIONS)
    assert not [each for each in GUARANTEES if count[each] < 2]
    assert not [each.name for each in MUTATIONS if each.guarantee not in GUARANTEES]


def rows() -> list[str]:
    """The guarantees of ARCHITECTURE.md."""
    table = (ROOT / "ARCHITECTURE.md").read_text().partition(TITLE)[2].partition("\n\n")[0]
    return [line.split("|")[1].strip() for line in table.splitlines() if "`" in line]


def test_every_row_of_the_architectures_table_has_one() -> None:
    words = [word for mutation in MUTATIONS for word in mutation.rows]
    assert not [row for row in rows() if not any(word in row for word in words)]


def test_the_rows_that_are_named_are_there() -> None:
    words = {word for mutation in MUTATIONS for word in mutation.rows}
    assert not sorted(word for word in words if sum(word in row for row in rows()) != 1)
