"""Changes of inputs that are JSON, or YAML that could be JSON: values are exchanged, not bytes."""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import random
import re
from collections.abc import Callable
from typing import Any

import yaml

from fuzz.target import Form, Target
from support.fuzzing import DEEP, ODD, places

MAX_CHANGES = 4
MAX_SHARE = 0.2  # of the changes of bytes, in an input that is JSON
KINDS = (
    "odd",
    "odd",
    "odd",
    "text",
    "text",
    "remove",
    "repeat",
    "exchange",
    "exchange",
    "add",
    "move",
)

# An alias of YAML may stand for itself, or for values without end.
ALIAS = re.compile(rb"(^|[\s\[{,:-])[*]\w")
NOT_PARSED = (  # PyYAML's own errors for odd scalars are of many kinds
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
    yaml.YAMLError,
)  # fmt: skip

Mutate = Callable[[bytes, int], bytes]  # changes bytes, as the fuzzer has learned it


class Mutator:
    """The changes of the inputs of one target."""

    def __init__(self, target: Target, mutate: Mutate) -> None:
        self._form = target.form
        self._mutate = mutate
        self._values = [_parse(each, target.form) for each in target.seeds]

    def change(self, data: bytes, max_size: int, seed: int) -> bytes:
        """Return a changed input."""
        chance = random.Random(seed)
        share = 0.5 if self._form is Form.YAML else MAX_SHARE
        if self._form is Form.BYTES or ALIAS.search(data) or chance.random() < share:
            return self._mutate(data, max_size)
        try:
            root = [_parse(data, self._form)]
        except NOT_PARSED:
            root = [copy.deepcopy(chance.choice(self._values))]
        for _ in range(chance.randint(1, MAX_CHANGES)):
            with contextlib.suppress(RecursionError):
                self._change_value(root, chance)
        changed = _to_bytes(root[0])
        return changed if len(changed) <= max_size else self._mutate(data, max_size)

    def _change_value(self, root: list[Any], chance: random.Random) -> None:
        container, key = chance.choice(places(root))
        kind = chance.choice(KINDS)
        if kind == "remove" and container is not root:
            del container[key]
        elif kind == "repeat" and isinstance(container[key], list):
            container[key] = container[key] * chance.choice([2, 30])
        elif kind == "text" and isinstance(container[key], str):
            container[key] = self._change_text(container[key])
        elif kind == "exchange":
            other, at = self._any_place(root, chance)
            container[key] = copy.deepcopy(other[at])
        elif kind == "add" and isinstance(container, dict):
            other, at = self._any_place(root, chance)
            container[str(at)] = copy.deepcopy(other[at])
        elif kind == "move" and isinstance(container, list):
            container.insert(chance.randint(0, len(container)), container.pop(key))
        else:
            value = chance.choice(ODD)
            container[key] = value if value is DEEP else copy.deepcopy(value)

    def _any_place(self, root: list[Any], chance: random.Random) -> tuple[Any, Any]:
        of = root if chance.random() < 0.5 else [chance.choice(self._values)]
        return chance.choice(places(of))

    def _change_text(self, text: str) -> str:
        """Change a text, or the bytes that it has as base64."""
        try:
            inner = base64.b64decode(text, validate=True) if len(text) >= 4 else b""
        except ValueError:
            inner = b""
        if inner:
            return base64.b64encode(self._mutate(inner, len(inner) + 64)).decode()
        changed = self._mutate(text.encode("utf-8", "surrogatepass"), len(text) + 64)
        return changed.decode("utf-8", "replace")


def _parse(data: bytes, form: Form) -> Any:
    if form is Form.JSON:
        return json.loads(data)
    if form is Form.BYTES or ALIAS.search(data):
        return None
    return yaml.safe_load(data.partition(b"\n---")[0])


def _to_bytes(value: Any) -> bytes:
    return json.dumps(value, default=str, skipkeys=True).encode()
