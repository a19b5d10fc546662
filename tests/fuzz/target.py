"""A target of the fuzzers: a reader of foreign bytes, and what is known about its input."""

from __future__ import annotations

import enum
import functools
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MAX_REASON = 2000  # characters of a refusal


class Form(enum.Enum):
    """The way in which inputs are changed."""

    BYTES = "bytes"
    JSON = "JSON"  # values are exchanged
    YAML = "YAML"  # either


class Target(NamedTuple):
    """A reader that takes any bytes, or raises a refusal with a short reason."""

    name: str
    form: Form
    read: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    refusals: tuple[type[Exception], ...] = ()
    max_bytes: int = 4096

    def run(self, data: bytes) -> None:
        """Read these bytes; raise any exception but a refusal."""
        try:
            self.read(data)
        except self.refusals as error:
            assert len(str(error)) <= MAX_REASON, "a refusal without bound"


MODULES = {
    "agent": "link",
    "answers": "stored",
    "c10d": "sockets",
    "convert": "jobs",
    "datagrams": "files",
    "failures": "files",
    "forks": "sockets",
    "frames": "link",
    "http": "sockets",
    "integrity": "files",
    "keys": "files",
    "manifests": "files",
    "registry": "service",
    "replicas": "files",
    "requests": "sockets",
    "service": "service",
    "snapshots": "snapshots",
    "stored": "stored",
    "strangers": "service",
    "tensors": "snapshots",
    "validate": "jobs",
}
CORPORA = Path(__file__).parent / "corpora"


def find(name: str) -> Target:
    """Return the target of this name."""
    module = importlib.import_module(f"fuzz.{MODULES[name]}")
    found: Target = next(each for each in module.TARGETS if each.name == name)
    return found


def of_json(read: Callable[[Any], None]) -> Callable[[bytes], None]:
    """Return a reader of bytes that passes JSON to a reader of values, and nothing else."""

    @functools.wraps(read)
    def reader(data: bytes) -> None:
        try:
            value = json.loads(data)
        except (RecursionError, ValueError):
            return
        read(value)

    return reader


def to_json(*values: Any) -> tuple[bytes, ...]:
    """Return each value as bytes."""
    return tuple(json.dumps(each).encode() for each in values)
