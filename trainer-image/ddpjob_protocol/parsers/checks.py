"""Checks of values in JSON that a codec cannot express: ranges, lengths and finite numbers.

A check takes a value and its path. It returns the value, or raises DecodeError. JSON may hold any
value that `json` reads: integers of any size, NaN, infinity, surrogates, deep lists.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, Callable

from ddpjob_protocol.codec import DecodeError, show
from ddpjob_protocol.messages.membership import MembershipId
from ddpjob_protocol.text import shorten

MAX_COUNT = 2**63 - 1
MAX_SECONDS = 1e11  # since the epoch; a datetime ends at 2.5e11
MAX_PORT = 2**16 - 1
MAX_NAME = 253  # characters: the longest name of an object in Kubernetes

Check = Callable[[Any, str], Any]


def count(data: Any, where: str, limit: int = MAX_COUNT) -> int:
    """Return an integer between 0 and the limit; a bool is none."""
    if type(data) is not int or not 0 <= data <= limit:
        raise DecodeError(f"{where} is {show(data)} instead of an integer from 0 to {limit}")
    return data


def count_to(limit: int) -> Check:
    """Return the check of an integer between 0 and this limit."""
    return functools.partial(count, limit=limit)


def number(data: Any, where: str) -> float:
    """Return a finite number as a float; a bool is none."""
    try:
        if type(data) in (int, float) and math.isfinite(data):
            return float(data)
    except OverflowError:
        pass
    raise DecodeError(f"{where} is {show(data)} instead of a finite number")


def seconds(data: Any, where: str) -> float:
    """Return a duration, or a time in seconds since the epoch."""
    if not 0 <= number(data, where) <= MAX_SECONDS:
        raise DecodeError(f"{where} is {show(data)} instead of seconds from 0 to {MAX_SECONDS:g}")
    return float(data)


def flag(data: Any, where: str) -> bool:
    """Return a bool."""
    if type(data) is not bool:
        raise DecodeError(f"{where} is {show(data)} instead of true or false")
    return data


def text(data: Any, where: str) -> str:
    """Return a text that UTF-8 can encode."""
    if type(data) is not str or not _is_unicode(data):
        raise DecodeError(f"{where} is {show(data)} instead of a text")
    return data


def _is_unicode(data: str) -> bool:
    try:
        data.encode()
    except UnicodeEncodeError:  # a surrogate: nothing can print it
        return False
    return True


def name(data: Any, where: str) -> str:
    """Return a text that has at most `MAX_NAME` characters, all printable."""
    if len(text(data, where)) > MAX_NAME:
        raise DecodeError(f"{where} has {len(data)} characters instead of at most {MAX_NAME}")
    if not data.isprintable():
        raise DecodeError(f"{where} is {show(data)}, but a name has printable characters only")
    return str(data)


def text_to(limit: int) -> Check:
    """Return the check of a text; it cuts the text after `limit` characters."""
    return lambda data, where: shorten(text(data, where), limit)


def identity(data: Any, where: str) -> str:
    """Return the identity of a membership as a text."""
    try:
        return str(MembershipId.parse(name(data, where)))
    except ValueError as error:
        raise DecodeError(f"{where} is {show(data)} instead of a membership: 1.1.1") from error


def each(check: Check, limit: int) -> Check:
    """Return the check of a list with at most `limit` items."""

    def check_items(data: Any, where: str) -> list[Any]:
        if type(data) is not list:
            raise DecodeError(f"{where} is {show(data)} instead of a list")
        count(len(data), f"the length of {where}", limit)
        return [check(item, f"{where}[{at}]") for at, item in enumerate(data)]

    return check_items


def fields(checks: Mapping[str, Check], *needed: str) -> Check:
    """Return the check of an object with these fields; other fields pass unchecked.

    A field that is None or missing is left as it is, unless it is `needed`.
    """

    def check_fields(data: Any, where: str) -> dict[str, Any]:
        if type(data) is not dict:
            raise DecodeError(f"{where} is {show(data)} instead of an object")
        for field in needed:
            if data.get(field) is None:
                raise DecodeError(f"{where}.{field} is missing")
        known = {n: c for n, c in checks.items() if data.get(n) is not None}
        return {**data, **{n: c(data[n], f"{where}.{n}") for n, c in known.items()}}

    return check_fields
