"""The fields of a job, as people read them: paths, types in words, descriptions.

May not: know any field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ddpjob_operator.api.crd import Schema, build_schema

WORDS = {"date-time": "date and time", "int32": "integer", "int64": "integer", "object": "mapping"}


class Field(NamedTuple):
    """A field of the spec or the status."""

    path: str  # without [] for entries of lists
    schema: Schema
    is_required: bool

    @property
    def name(self) -> str:
        """Name without the path."""
        return self.path.rpartition(".")[2]

    @property
    def children(self) -> list[str]:
        """Names of the fields below it."""
        return list(content(self.schema).get("properties", ()))


def fields() -> Iterator[Field]:
    """Yield the spec, the status and all fields of both, parents first."""
    schema = build_schema()
    for section in ("spec", "status"):
        yield from _walk(section, schema["properties"][section], is_required=section == "spec")


def _walk(path: str, schema: Schema, *, is_required: bool) -> Iterator[Field]:
    yield Field(path, schema, is_required)
    inner = content(schema)
    for name, field in inner.get("properties", {}).items():
        required = name in inner.get("required", ())
        yield from _walk(f"{path}.{name}", field, is_required=required)


def content(schema: Schema) -> Schema:
    """Return the schema of the entries of a list, else the schema itself."""
    found: Schema = schema.get("items", schema)
    return found


def type_words(schema: Schema, of_object: Callable[[str], str] = str, path: str = "") -> str:
    """Return a type in words; `of_object` gets the path of an object with fields."""
    if "items" in schema:
        most = f" (up to {schema['maxItems']})" if "maxItems" in schema else ""
        return f"list of {type_words(schema['items'], of_object, f'{path}[]')}{most}"
    if "properties" in schema:
        return of_object(path)
    if "additionalProperties" in schema:
        return f"mapping to {type_words(schema['additionalProperties'], of_object, path)}"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    word: str = schema["format"] if "format" in schema else schema.get("type", "integer or string")
    return WORDS.get(word, word) + _bounds(schema)


def _bounds(schema: Schema) -> str:
    least, most = (schema.get(key) for key in ("minimum", "maximum"))
    if least is None:
        return ""
    return f", at least {least:g}" if most is None or most > 10**9 else f", {least:g} to {most:g}"
