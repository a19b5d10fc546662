"""Dataclasses to JSON and back, by their annotations.

A field that a newer peer adds is ignored; a field that an older peer omits gets its default. All
other values that do not fit the annotations are rejected.

An annotation is a dataclass, an Enum, a class with `parse` (its inverse is str), a tuple or a
Mapping. It can also be bytes (base64), str, int, float, bool, Any, or one of all these `| None`.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import reprlib
import sys
import typing
from collections.abc import Mapping
from typing import Any, Callable, TypeVar

T = TypeVar("T")
_PLAIN = (str, int, float, bool, type(None))
MAX_MESSAGE = 800  # characters of an error: a path or a reason may repeat a value of any length
_NONE = " | None"  # annotations are text: Python 3.9 cannot evaluate this


class DecodeError(ValueError):
    """A value in JSON does not fit; the message names its path and the reason, both cut."""

    def __init__(self, message: str) -> None:
        super().__init__(message[:MAX_MESSAGE])


def show(value: Any) -> str:
    """Return a short form of any value for a message."""
    try:
        return reprlib.repr(value)
    except (RecursionError, ValueError):  # of an integer with more digits than Python prints
        return f"a value of type {type(value).__name__}"


def encode(value: Any) -> Any:  # noqa: PLR0911 - one case, one return
    """Return the value as an object that `json` can write."""
    if type(value) in _PLAIN:  # most values of a large report
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {each.name: encode(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if hasattr(value, "parse"):
        return str(value)
    if isinstance(value, (tuple, list)):
        return [encode(each) for each in value]
    if isinstance(value, Mapping):
        return {key: encode(each) for key, each in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def decode(kind: type[T], data: Any) -> T:
    """Return the object of this kind from its `encode` form; raise DecodeError."""
    decoder: _Decoder = _decoder(typing.cast("Any", kind))
    decoded: T = decoder(data, kind.__name__)
    return decoded


_Decoder = Callable[[Any, str], Any]  # arguments: the data and its path


@functools.cache
def _decoder(kind: Any) -> _Decoder:  # noqa: PLR0911 - one case, one return
    if dataclasses.is_dataclass(kind):
        return functools.partial(_decode_fields, kind)
    if kind is Any:
        return lambda data, _: data
    origin = typing.get_origin(kind)
    if origin is tuple:
        return functools.partial(_decode_tuple, typing.get_args(kind))
    if origin is not None:
        return functools.partial(_decode_mapping, _decoder(typing.get_args(kind)[1]))
    if issubclass(kind, enum.Enum):
        return functools.partial(_convert, kind)
    if hasattr(kind, "parse"):
        return functools.partial(_convert, kind.parse)
    if kind is bytes:
        return functools.partial(_convert, functools.partial(base64.b64decode, validate=True))
    return functools.partial(_check, {kind, int} if kind is float else {kind})


def _decode_fields(kind: Any, data: Any, where: str) -> Any:
    _check({dict}, data, where)
    values = {}
    for name, (needed, decoder) in _fields(kind).items():
        if name in data:
            values[name] = decoder(data[name], f"{where}.{name}")
        elif needed:
            raise DecodeError(f"{where}.{name} is missing")
    return kind(**values)


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[bool, _Decoder]]:
    """Return for each field whether it is required, and its decoder."""
    namespace = vars(sys.modules[kind.__module__])
    fields = {}
    for each in dataclasses.fields(kind):
        text = str(each.type)
        of_value = text.removesuffix(_NONE)
        decoder = _decoder(eval(of_value, namespace))  # noqa: S307 - our own annotations
        if of_value != text:
            decoder = functools.partial(_decode_optional, decoder)
        has_default = (each.default, each.default_factory) != (dataclasses.MISSING,) * 2
        fields[each.name] = (not has_default, decoder)
    return fields


def _decode_optional(decoder: _Decoder, data: Any, where: str) -> Any:
    return None if data is None else decoder(data, where)


def _decode_tuple(kinds: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    _check({list}, data, where)
    if kinds[1:] == (...,):
        kinds = (kinds[0],) * len(data)
    if len(kinds) != len(data):
        raise DecodeError(f"{where} has {len(data)} items instead of {len(kinds)}")
    pairs = enumerate(zip(kinds, data))
    return tuple(_decoder(kind)(each, f"{where}[{at}]") for at, (kind, each) in pairs)


def _decode_mapping(decoder: _Decoder, data: Any, where: str) -> dict[str, Any]:
    _check({dict}, data, where)
    return {key: decoder(each, f"{where}.{key}") for key, each in data.items()}


def _convert(convert: Callable[[Any], Any], data: Any, where: str) -> Any:
    try:
        return convert(data)
    except (AttributeError, TypeError, ValueError) as error:
        raise DecodeError(f"{where} is {show(data)}: {error}") from error


def _check(kinds: set[type], data: Any, where: str) -> Any:
    if type(data) not in kinds:
        names = " or ".join(sorted(kind.__name__ for kind in kinds))
        raise DecodeError(f"{where} is {show(data)} instead of a value of type {names}")
    return data
