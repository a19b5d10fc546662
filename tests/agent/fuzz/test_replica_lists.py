"""Lists of files from workers and from volumes: only files of `snapshot.files`, or a refusal."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ddpjob_agent.file_sync.decisions.admission import (
    MAX_BYTES,
    MAX_FILES,
    MalformedError,
    RefusedError,
    admit,
    parse_parts,
)
from ddpjob_agent.file_sync.decisions.replica import FileEntry, Parts, digest_of
from ddpjob_agent.file_sync.disk.local_files import FileFingerprint
from ddpjob_agent.file_sync.disk.manifest import NAME, read_manifest, write_manifest
from ddpjob_agent.file_sync.disk.places import Place
from support.fuzzing import fuzz, measured, mutated, mutated_json, size_of

DIGEST = hashlib.blake2b(b"x", digest_size=16).hexdigest()
ENTRIES = ("snapshot.pt", "ckpt/*.pt", "state", "logs/**/*.txt", "/data/own")
OWN = ("snapshot.pt", "ckpt/1.pt", "state/a/b", "logs/x/y.txt", "/data/own/z")
pieces = st.sampled_from(
    ["..", ".", "", "/", "ckpt", "state", "snapshot.pt", "x.pt", ".git", "\0", "\ud800", "\n", "*", "logs",
     "x" * 300, "/data", "own", "a.txt"]
)  # fmt: skip
names = st.sampled_from(OWN) | st.lists(pieces, max_size=5).map("/".join)
parts = st.lists(
    st.builds(lambda name, size, mode: [name, size, DIGEST, mode], names, st.integers(0, 99), st.integers()),
    max_size=4,
)  # fmt: skip


def check(found: Parts) -> None:
    """Check that these files lie in the folders of `snapshot.files`, wherever those are."""
    assert len(found) <= MAX_FILES
    assert sum(part.size for part in found) <= MAX_BYTES
    for part in found:
        assert part.size >= 0
        assert 0 <= part.mode <= 0o777
        assert len(part.name.encode("utf-8", "surrogateescape")) <= 4095
        assert "\0" not in part.name
        path = part.name if part.name.startswith("/") else f"/job/{part.name}"
        assert path == os.path.normpath(path)
        assert path.startswith(
            ("/job/snapshot.pt", "/job/ckpt/", "/job/state", "/job/logs/", "/data/own")
        )
        assert not any(part.startswith(".") for part in path.split("/"))
    assert len({part.name for part in found}) == len(found)


@fuzz(200)
@given(mutated_json(parts))
@example([["snapshot.pt", 10**400, DIGEST, 0]])
@example([["../train.py", 1, DIGEST, 0]])
@example([["state/a", 1, DIGEST, 0o104755], ["state/a/b", 1, DIGEST, 0]])
def test_a_list_names_own_files_or_is_refused(data: Any) -> None:
    def read() -> Parts:
        found = parse_parts(data)
        digest_of(found)
        admit(found, ENTRIES)
        return found

    try:
        found = measured(read, size_of(data))
    except (MalformedError, RefusedError) as error:
        assert len(str(error)) < 1000
        assert str(error).isascii()
        return
    check(found)


@fuzz(100)
@given(st.lists(st.sampled_from(OWN), unique=True), st.integers(0, MAX_BYTES // 9))
def test_own_files_are_admitted(own: list[str], size: int) -> None:
    sent = [FileEntry(name, size, DIGEST, 0o644) for name in own]
    found = parse_parts(json.loads(json.dumps(sent)))
    admit(found, ENTRIES)
    assert found == tuple(sent)


PARTS = (FileEntry("snapshot.pt", 5, DIGEST, 0o644), FileEntry("state/a", 0, DIGEST, 0o755))
SEEN = tuple(FileFingerprint(part.name, part.size, 10**18, 7) for part in PARTS)
MANIFEST = json.loads(json.dumps({"parts": PARTS, "seen": SEEN}))
manifests = mutated(mutated_json(st.just(MANIFEST)).map(lambda value: json.dumps(value).encode()))


@fuzz(200)
@given(manifests)
@example(b"[" * 100_000)
@example(b'{"parts": [], "seen": null}')
def test_a_manifest_names_own_files_or_is_refused(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, NAME).write_bytes(data)
        try:
            found, seen = measured(lambda: read_manifest(Place(folder, ""), ENTRIES), len(data))
        except (MalformedError, RefusedError) as error:
            assert len(str(error)) < 1000
            return
    check(found)
    assert seen == () or [each[:2] for each in seen] == [each[:2] for each in found]


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_manifest(Place(str(tmp_path), ""), PARTS, SEEN)
    assert read_manifest(Place(str(tmp_path), ""), ENTRIES) == (PARTS, SEEN)
