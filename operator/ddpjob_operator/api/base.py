"""The base of all models of the custom resource: spelling, strictness, rules.

May not: know any field of the resource.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from ddpjob_operator.api.problem import Problem
from ddpjob_operator.api.rule import VALIDATIONS, Rule, prefixed


class Model(BaseModel):
    """An immutable model with camelCase field names in JSON; unknown fields are rejected."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
    )
    RULES: ClassVar[tuple[Rule, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form of the API server: camelCase names, no absent fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def find_problems(self) -> Iterator[Problem]:
        """Yield a problem for each broken rule of this model and of the models in it."""
        for rule in self.RULES:
            yield from rule.find_problems(self)
        for name, field in type(self).model_fields.items():
            at, value = field.alias or name, getattr(self, name)
            if isinstance(value, Model):
                yield from prefixed(value.find_problems(), at)
            for i, entry in enumerate(value if isinstance(value, tuple) else ()):
                if isinstance(entry, Model):
                    yield from prefixed(entry.find_problems(), at, i)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        found = handler(schema)
        if rules := [rule.to_json() for rule in cls.RULES if rule.cel]:
            handler.resolve_ref_schema(found)[VALIDATIONS] = rules
        return found


class ObservedModel(Model):
    """A part written by the API server or the operator; unknown fields of newer versions pass."""

    model_config = ConfigDict(extra="ignore")
