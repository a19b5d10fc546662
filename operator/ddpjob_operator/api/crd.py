"""The CustomResourceDefinition of DDPJob, generated from the models and the rules.

`python -m ddpjob_operator.api.crd` prints it; `make pages` writes all generated files.
Defaults appear in the descriptions, not in the schema: the API server stores the user's own spec.
May not: add a rule or a field of its own.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import yaml

from ddpjob_operator.api import constants
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.spec.fields import MAX_INTEGER, MAX_NAME

Schema = dict[str, Any]

AS_IS = frozenset(
    [
        "description",
        "type",
        "format",
        "enum",
        "required",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "maxProperties",
        "pattern",
    ]
)
LEFT_OUT = frozenset({"title", "default", "additionalProperties", "anyOf", "$ref", "$defs"})
KEYS = ("name", "type")

# name, type, path, only with `-o wide`
COLUMNS = (
    ("State", "string", ".status.state", False),
    ("Ready", "string", ".status.ready", False),
    ("World", "integer", ".status.membership.worldSize", False),
    ("Progress", "string", ".status.progress.display", False),
    ("Restarts", "integer", ".status.restarts.total", False),
    ("Cause", "string", ".status.membership.cause", True),
    ("Snapshot", "integer", ".status.snapshot.step", True),
    ("Message", "string", ".status.message", True),
    ("Age", "date", ".metadata.creationTimestamp", False),
)


def build_crd() -> Schema:
    """Return the whole definition in the form of the API server."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{constants.PLURAL}.{constants.GROUP}"},
        "spec": {
            "group": constants.GROUP,
            "names": {
                "kind": constants.KIND,
                "listKind": f"{constants.KIND}List",
                "plural": constants.PLURAL,
                "singular": constants.KIND.lower(),
                "shortNames": [constants.SHORT_NAME],
                "categories": ["all"],
            },
            "scope": "Namespaced",
            "versions": [_version()],
        },
    }


def _version() -> Schema:
    return {
        "name": constants.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": build_schema()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "selectableFields": [{"jsonPath": ".spec.suspend"}, {"jsonPath": ".status.state"}],
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, **({"priority": 1} if wide else {})}
            for name, kind, path, wide in COLUMNS
        ],
    }


def build_schema() -> Schema:
    """Return the structural schema of a job, with its rules."""
    raw = DDPJob.model_json_schema(by_alias=True)
    schema = _structural(raw, raw["$defs"])
    spec, status = (schema["properties"][name] for name in ("spec", "status"))
    # The API server owns all other fields above spec.
    name = {"type": "string", "maxLength": MAX_NAME}
    metadata = {"type": "object", "properties": {"name": name}}
    schema |= {
        "properties": {"metadata": metadata, "spec": spec, "status": status},
        "required": ["spec"],
    }
    # A field selector compares stored values: spec.suspend=false must match an absent field, too.
    spec["properties"]["suspend"]["default"] = False
    return schema


def _structural(raw: Schema, definitions: Schema) -> Schema:
    """Return a schema that apiextensions accepts: one type a value, no reference, no null."""
    if "anyOf" in raw:
        raw = {**_united(raw["anyOf"]), **raw}
    if "$ref" in raw:
        raw = {**definitions[raw["$ref"].rpartition("/")[2]], **raw}
    schema: Schema = {}
    for key, value in raw.items():
        if key in AS_IS or key.startswith("x-kubernetes-"):
            schema[key] = value
        elif key == "const":
            schema["enum"] = [value]
        elif key == "items":
            schema["items"] = entry = _structural(value, definitions)
            schema.update(_keyed(entry))
        elif key == "properties":
            fields = {name: _structural(field, definitions) for name, field in value.items()}
            schema["properties"] = fields
        elif key == "additionalProperties" and value is True:
            schema["x-kubernetes-preserve-unknown-fields"] = True
        elif key == "additionalProperties" and value:
            schema[key] = _structural(value, definitions)
        elif key not in LEFT_OUT:
            raise TypeError(f"{key!r} of {raw} has no counterpart in a structural schema")
    return _set_description(schema, raw)


def _united(options: list[Schema]) -> Schema:
    """Unite the options of `anyOf`; drop null, because the API server drops null values."""
    options = [option for option in options if option.get("type") != "null"]
    if len(options) == 1:
        return options[0]
    if {option.get("type") for option in options} <= {"integer", "number", "string"}:
        return {"x-kubernetes-int-or-string": True}
    raise TypeError(f"{options} has no counterpart in a structural schema")


def _keyed(entry: Schema) -> Schema:
    """Return the list-map keys of entries with a name or type; each entry has its own owner."""
    key = next((key for key in KEYS if key in entry.get("required", ())), None)
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]} if key else {}


def _set_description(schema: Schema, raw: Schema) -> Schema:
    """Add the integer width; append the defaults of the users' fields to the descriptions."""
    if schema.get("type") == "integer":
        schema["format"] = "int32" if schema.get("maximum", math.inf) <= MAX_INTEGER else "int64"
    if raw.get("additionalProperties") is False:  # a model of fields that users set
        for name, field in schema["properties"].items():
            default = raw["properties"][name].get("default")
            if isinstance(default, str | bool | int | float):
                text = json.dumps(default) if isinstance(default, bool) else format(default)
                field["description"] += f" Default: {text.removesuffix('.0') or 'empty'}."
    return schema


def to_yaml(content: object) -> str:
    """Return YAML in the given order, without anchors and aliases."""
    text = yaml.safe_dump(json.loads(json.dumps(content)), sort_keys=False, width=100)
    return str(text)


if __name__ == "__main__":
    sys.stdout.write(to_yaml(build_crd()))
