"""What the model says of the jobs in refused.py; tests/cluster asks an API server about the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from ddpjob_operator.api.crd import Schema, build_schema
from ddpjob_operator.api.errors import explain_errors
from ddpjob_operator.api.rule import VALIDATIONS
from support.refused import (
    BOTH,
    ONLY_THE_API_SERVER,
    ONLY_THE_MODEL,
    Object,
    Row,
    accepted_by_model,
    has,
    ids,
)


def complaints(job: Object) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        accepted_by_model(job)
    return [str(problem) for problem in explain_errors(caught.value)]


@ids(BOTH)
def test_the_model_refuses_what_the_api_server_refuses(row: Row) -> None:
    said = complaints(row.job)
    assert [text for text in said if has(text, row.model or row.says.replace(": %", ": "))], said


@ids(ONLY_THE_MODEL)
def test_only_the_model_refuses(row: Row) -> None:
    said = complaints(row.job)
    assert [text for text in said if has(text, row.says)], said


@ids(ONLY_THE_API_SERVER)
def test_the_model_accepts_what_only_the_api_server_refuses(row: Row) -> None:
    accepted_by_model(row.job)


def test_every_difference_has_a_reason() -> None:
    assert not [row.id for row in (*ONLY_THE_API_SERVER, *ONLY_THE_MODEL) if not row.why]


def test_every_rule_has_a_row() -> None:
    said = [row.says for row in (*BOTH, *ONLY_THE_API_SERVER)]
    patterns = list(patterns_in(build_schema(), ""))
    assert len(patterns) > 30
    assert not [each for each in patterns if not any(re.fullmatch(each, words) for words in said)]


def patterns_in(schema: Schema, path: str) -> Iterator[str]:
    """What rows say that break the rules of this schema."""
    for rule in schema.get(VALIDATIONS, ()):
        if "oldSelf" not in rule["rule"]:
            place = (path + rule.get("fieldPath", "")).removeprefix(".")
            text = (
                rule.get("message") or json.JSONDecoder().raw_decode(rule["messageExpression"])[0]
            )
            yield re.escape(f"{place}: %{text}").replace("%s", ".*")
    for name, field in schema.get("properties", {}).items():
        yield from patterns_in(field, f"{path}.{name}")
    if "items" in schema:
        yield from patterns_in(schema["items"], f"{path}[0]")
