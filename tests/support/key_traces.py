"""Searches what a person or a process can read for keys of a job, and for what leads to them.

A key may be printed as bytes, as hexadecimal digits or in base64, at any place of a longer text, as
Python shows bytes, or cut: each quarter of a key is searched for in each form.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping

from ddpjob_protocol.keys.credentials import JobKey, derive

TOKEN = re.compile(rb"[\w+/=.:-]+")
LONGEST_TOKEN = 512


def keys_of(job: JobKey, workers: Iterable[str]) -> dict[str, bytes]:
    """Return the keys of a job by name: its own, and all that are derived from it."""
    peers = job.worker_keys("any").peers.key
    return {
        "job": bytes.fromhex(json.loads(job.to_text())["job"]),
        "operator": job.operator,
        "memberships": job.memberships,
        "peers": peers,
        **{name: job.worker(name) for name in workers},
    }


def traces(key: bytes) -> set[bytes]:
    """Return the forms in which a key, or a quarter of it, may be printed."""
    size = len(key) // 4
    found: set[bytes] = set()
    for part in (key[at : at + size] for at in range(0, 4 * size, size)):
        digits = part.hex().encode()
        numbers = ", ".join(map(str, part)).encode()
        shown = repr(part)[2:-1].encode().replace(rb"\'", b"'")
        escaped = {shown, shown.replace(b"'", rb"\'")}  # by the quotes that Python chooses
        found |= {part, digits, digits.upper(), numbers, *escaped}
        found |= {text for each in (part, digits) for text in _in_base64(each)}
    return found


def _in_base64(part: bytes) -> Iterator[bytes]:
    """Yield the letters in base64 that belong to `part` alone, at each place of a longer text."""
    for before in range(3):
        inner = base64.b64encode(bytes(before) + part + bytes(-(before + len(part)) % 3))
        first, last = -(-before * 8 // 6), (before + len(part)) * 8 // 6
        yield inner[first:last]
        yield inner[first:last].replace(b"+", b"-").replace(b"/", b"_")


def keys_in(content: bytes | str, keys: Mapping[str, bytes]) -> set[str]:
    """Return the names of the keys that the content has a trace of."""
    data = content.encode() if isinstance(content, str) else content
    return {name for name, key in keys.items() if any(each in data for each in traces(key))}


def keys_from(content: bytes | str, keys: Mapping[str, bytes], uids: Iterable[str]) -> set[str]:
    """Return the names of the keys that can be derived from a word of the content."""
    data = content.encode() if isinstance(content, str) else content
    names = {key: name for name, key in keys.items()}
    known = [*uids]
    words = {word for word in TOKEN.findall(data) if len(word) <= LONGEST_TOKEN} | {b""}
    secrets = {secret for word in words for secret in _readings(word)}
    found: set[bytes] = set()
    for secret in secrets:
        jobs = [secret, *(derive(secret, "job", uid) for uid in known)]
        for each in jobs:
            job = JobKey(each)
            found |= {each, job.operator, job.memberships, job.worker_keys("any").peers.key}
            found |= {job.worker(name) for name in keys}
    return {names[each] for each in found & names.keys()}


def _readings(word: bytes) -> Iterator[bytes]:
    yield word
    with contextlib.suppress(ValueError):
        yield bytes.fromhex(word.decode())
    with contextlib.suppress(binascii.Error):
        yield base64.b64decode(word, validate=True)
