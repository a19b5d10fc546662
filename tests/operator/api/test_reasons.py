"""The catalogue of reasons: complete, and without a word that no job shows."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from ddpjob_operator.api.reasons import CATALOGUE, KINDS, PARTS

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = (
    "operator/ddpjob_operator",
    "trainer-image/ddpjob_agent",
    "trainer-image/ddpjob_protocol",
)


def test_each_reason_is_explained_once() -> None:
    counted = Counter(word for part in PARTS.values() for word in part)
    assert set(counted) == {each.value for words in KINDS.values() for each in words}
    assert set(counted.values()) == {1}


def test_each_explanation_is_complete() -> None:
    for word, entry in CATALOGUE.items():
        assert all(text.endswith(".") for text in entry), word


def test_each_reason_is_in_use() -> None:
    texts = [
        path.read_text()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.parent.name != "reasons"
    ]
    used = {found for text in texts for found in re.findall(r"\b(\w*Reason\.[A-Z_]+)\b", text)}
    words = {
        f"{words.__name__}.{each.name}": each.value for words in KINDS.values() for each in words
    }
    assert set(words.values()) - {words.get(name) for name in used} == set()
