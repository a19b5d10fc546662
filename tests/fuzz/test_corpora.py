"""Each committed input of the fuzzers is read, or refused with a short reason."""

from __future__ import annotations

import pytest

from fuzz import corpus
from fuzz.target import CORPORA, MODULES, find

MAX_BYTES = 200_000  # of all files


@pytest.mark.parametrize("name", sorted(MODULES))
def test_each_input_is_read_or_refused(name: str) -> None:
    target = find(name)
    for data in (*target.seeds, *corpus.read(name)):
        target.run(data)


def test_the_corpora_are_small_and_have_targets() -> None:
    files = sorted(CORPORA.iterdir())
    assert {path.stem for path in files} <= MODULES.keys()
    assert sum(path.stat().st_size for path in files) < MAX_BYTES
