"""Reads the fields of a foreign object, and records each one that the result does not contain.

Every field is taken, dropped with a reason, or left. `close` records what is left: no field is
lost silently.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

Object = dict[str, Any]


class ConvertError(ValueError):
    """The error for an object that cannot be converted."""


class Note(NamedTuple):
    """A field that was not carried over as it was, and the reason."""

    path: str
    reason: str


class Fields:
    """The fields of one mapping, with its path in the file."""

    def __init__(self, data: object, path: str, notes: list[Note]) -> None:
        if data is None:
            data = {}
        if not isinstance(data, dict):
            raise ConvertError(f"{path}: must be a mapping, not {type(data).__name__}; correct it")
        for key in data:
            if not isinstance(key, str):
                where = f"{path}: " if path else ""
                raise ConvertError(f"{where}the key {key!r} must be text; put it in quotes")
        self._data = copy.deepcopy(data)
        self._path = path
        self.notes = notes

    def take(self, key: str, default: Any = None) -> Any:
        """Return a value and remove it."""
        value = self._data.pop(key, None)
        return default if value is None else value

    def take_number(self, key: str) -> int | None:
        """Return a whole number and remove it; raise ConvertError for another value."""
        value = self.take(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise ConvertError(f"{self.at(key)}: must be a whole number, not {value!r}; correct it")

    def take_list(self, key: str) -> list[Any]:
        """Return a list and remove it; raise ConvertError for another value."""
        value = self.take(key, [])
        if not isinstance(value, list):
            raise ConvertError(f"{self.at(key)}: must be a list, not {value!r}; correct it")
        return value

    def child(self, key: str) -> Fields:
        """Return the fields of a mapping and remove it."""
        return Fields(self._data.pop(key, None), self.at(key), self.notes)

    @property
    def is_empty(self) -> bool:
        """True if no field is left."""
        return not self._data

    def at(self, key: str) -> str:
        """Return the path of a field."""
        return f"{self._path}.{key}" if self._path else key

    def note(self, key: str, reason: str) -> None:
        """Record a reason about a field."""
        self.notes.append(Note(self.at(key) if key else self._path, reason))

    def drop(self, reason: str, *keys: str) -> None:
        """Remove fields; record the reason for those that are given."""
        for key in keys:
            if self._data.pop(key, None) not in (None, {}, []):
                self.note(key, reason)

    def rest(self) -> Object:
        """Return all fields that are left and remove them."""
        data, self._data = self._data, {}
        return data

    def rest_with_maps(self, *keys: str) -> Object:
        """Return all fields that are left and remove them; these are mappings, omitted if empty."""
        maps = {key: self.child(key).rest() for key in keys}
        return {**{key: values for key, values in maps.items() if values}, **self.rest()}

    def close(self) -> None:
        """Record all fields that are left."""
        for key in sorted(self._data):
            self.note(key, "a DDPJob has no such field")
        self._data = {}
