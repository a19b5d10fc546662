from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ddpjob_operator.api.crd import COLUMNS, Schema, build_crd, build_schema
from ddpjob_operator.api.rule import VALIDATIONS

ROOT = Path(__file__).resolve().parents[3]
ETCD_LIMIT = 262_144  # of the annotation in which `kubectl apply` keeps what was applied, as JSON

SCHEMA = build_schema()


def parts(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema within this one, itself included."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from parts(field, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from parts(schema[key], f"{path}.*")


PARTS = list(parts(SCHEMA))


def at(path: str) -> Schema:
    return dict(PARTS)[path]


def test_what_is_generated_is_up_to_date() -> None:
    command = [sys.executable, "-m", "tools.pages", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_file_says_what_the_code_says() -> None:
    assert yaml.safe_load((ROOT / "crds" / "ddpjobs.yaml").read_text()) == build_crd()


def test_kubectl_apply_can_keep_it_in_an_annotation() -> None:
    assert len(json.dumps(build_crd(), separators=(",", ":"))) < ETCD_LIMIT / 2


def test_every_field_is_described() -> None:
    ours = [(path, schema) for path, schema in PARTS if path.startswith((".spec", ".status"))]
    named = {path: schema for path, schema in ours if not path.endswith(".*")}
    assert len(named) > 80
    assert [path for path in named if not named[path].get("description", "").endswith(".")] == []


def test_every_part_has_one_type() -> None:
    untyped = [path for path, schema in PARTS if not isinstance(schema.get("type"), str)]
    assert [path for path in untyped if not at(path).get("x-kubernetes-int-or-string")] == []
    foreign = {"anyOf", "allOf", "oneOf", "$ref", "$defs", "const", "title", "nullable"}
    assert [path for path, schema in PARTS if foreign & schema.keys()] == []


def test_lists_that_users_write_are_bounded() -> None:
    lists = [each for each in PARTS if each[1].get("type") == "array"]
    assert [p for p, schema in lists if p.startswith(".spec") and "maxItems" not in schema] == []


def test_no_default_is_stored_but_the_one_that_selectors_need() -> None:
    assert [path for path, schema in PARTS if "default" in schema] == [".spec.suspend"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (".spec.elastic.joinPolicy", " Default: Auto."),
        (".spec.elastic.orphanSeconds", " Default: 60."),
        (".spec.failurePolicy.maxRestarts.application", " Default: 3."),
        (".spec.extraWorkerGroups.*.minReplicas", " Default: 0."),
        (".spec.env.*.value", " Default: empty."),
        (".spec.suspend", " Default: false."),
    ],
)
def test_defaults_are_told(path: str, text: str) -> None:
    assert at(path)["description"].endswith(text)


@pytest.mark.parametrize("path", [".spec.minReplicas", ".status.rendezvousTerm"])
def test_only_defaults_that_users_can_change_are_told(path: str) -> None:
    assert " Default: " not in at(path)["description"]


@pytest.mark.parametrize(
    ("path", "key"),
    [
        (".spec.extraWorkerGroups", "name"),
        (".spec.env", "name"),
        (".spec.extraWorkerGroups.*.env", "name"),
        (".status.conditions", "type"),
        (".status.groups", "name"),
    ],
)
def test_entries_are_told_apart_by_their_key(path: str, key: str) -> None:
    assert at(path)["x-kubernetes-list-type"] == "map"
    assert at(path)["x-kubernetes-list-map-keys"] == [key]


@pytest.mark.parametrize("path", [".spec.template", ".spec.extraWorkerGroups.*.template"])
def test_templates_are_opaque(path: str) -> None:
    assert at(path)["x-kubernetes-preserve-unknown-fields"] is True
    assert "properties" not in at(path)


@pytest.mark.parametrize("field", ["topologyKey", "gang"])
def test_what_nothing_acts_on_is_refused_and_marked(field: str) -> None:
    rules = at(".spec.scheduling")[VALIDATIONS]
    refusing = [r for r in rules if "is not supported by this version" in str(r)]
    assert any(rule["fieldPath"] == f".{field}" for rule in refusing)
    assert at(f".spec.scheduling.{field}")["description"].endswith("Not supported yet: omit it.")


def test_every_column_shows_a_field_of_its_type() -> None:
    types = {path: schema.get("type") for path, schema in PARTS}
    types[".metadata.creationTimestamp"] = "date"  # of every object
    assert COLUMNS
    assert not [column for column in COLUMNS if types.get(column[2]) != column[1]]
