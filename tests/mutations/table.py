"""Deliberate breakages of the product, each with the tests that see it: what is in the TOML files.

A mutation is one small edit, as a programmer may slip. It breaks a guarantee, so tests must fail.
"""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

GUARANTEES = {
    "goes on": "whatever dies, the job continues by itself; while it does not, it reports why",
    "planned": "a planned change costs no step; a loss costs no more than is reported",
    "samples": "each sample of an epoch once; steps that come again are counted",
    "equal": "loss and parameters are those of an undisturbed run; in deterministic mode, its bits",
    "snapshots": "a snapshot is whole or absent; a fenced writer adds nothing",
    "operator": "the operator may die after every single write",
    "scale": "keys, watches and reports cost little, and none is missed",
    "pods": "a pod matches its job; a finished job is deleted when its user wants it",
    "read": "what people read about a run is true, complete, and safe to open",
    "closed": "without a key no peer connects, and no message takes the job down",
    "seen": "metrics, alerts and dashboards show what happened, once, and end with the job",
}


@dataclasses.dataclass(frozen=True)
class Mutation:
    """One edit of one file; every one of its tests fails with it."""

    name: str
    guarantee: str  # one of GUARANTEES
    file: str
    old: str  # occurs once in the file
    new: str
    tests: tuple[str, ...]  # FILE::FUNCTION, or FILE::CLASS::FUNCTION
    rows: tuple[str, ...] = ()  # of the table in ARCHITECTURE.md: words that only that row has
    hangs: bool = False  # whether it may show by a test that does not end

    def mutated(self, text: str) -> str | None:
        """The file's text with the edit; None if it does not apply."""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 else None


def load() -> dict[str, Mutation]:
    """All mutations by name, in the order of their files."""
    found: dict[str, Mutation] = {}
    for path in sorted(HERE.glob("*.toml")):
        for name, entry in tomllib.loads(path.read_text()).items():
            lists = {field: tuple(entry.get(field, ())) for field in ("tests", "rows")}
            assert name not in found, f"{name} is there twice"
            found[name] = Mutation(name=name, **{**entry, **lists})
    return found
