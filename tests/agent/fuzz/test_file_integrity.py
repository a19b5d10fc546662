"""The check of a script's file: any content is whole or is not, and no exception ends the check."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile

from hypothesis import example, given
from hypothesis import strategies as st

from ddpjob_agent.file_sync.decisions.pickle_scan import find_damage
from ddpjob_agent.file_sync.disk.integrity import find_corruption
from support.fuzzing import Draw, fuzz, measured, mutated

MAX_SAID = 500  # characters
STATE = {"step": 7, "weights": [0.5] * 9, "name": "x" * 300, "big": 2**70}
NAMES = ("s.pt", "s.safetensors", "s.pkl", "run/trainer_state.json", "_SUCCESS", "s.npz")


def archive(method: int, entries: int = 2) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as target:
        for number in range(entries):
            target.writestr(f"archive/data/{number}", b"weights" * 20)
    return file.getvalue()


def bomb(entries: int) -> bytes:
    """Return an archive in which all entries are the same bytes, which hold a million zeros."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("x", bytes(10**6))
    data = whole.getvalue()
    start = data.index(b"PK\1\2")
    end = data.index(b"PK\5\6")
    directory = data[start:end] * entries
    tail = struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, entries, entries, len(directory), start, 0)
    return data[:start] + directory + tail


def tensors(header: object) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(8)


HEADER = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {"a": "b"}}
ARCHIVES = [archive(method) for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)]  # fmt: skip
WHOLE: tuple[tuple[str, bytes], ...] = (
    *(("s.pt", content) for content in ARCHIVES),
    *(("s.pkl", pickle.dumps(STATE, protocol)) for protocol in range(6)),
    ("s.safetensors", tensors(HEADER)),
    ("run/trainer_state.json", json.dumps(STATE).encode()),
)


def judge(name: str, content: bytes) -> str:
    return find_corruption(io.BytesIO(content), len(content), name)


@st.composite
def files(draw: Draw) -> tuple[str, bytes]:
    """Return the name and the content of a file."""
    name, content = draw(st.sampled_from(WHOLE))
    if draw(st.integers(0, 9)) == 0:
        name = draw(st.sampled_from(NAMES))
    return name, draw(mutated(st.just(content)))


@fuzz(300)
@given(files())
@example(("s.safetensors", tensors(b'{"w":{"data_offsets":[0,%s]}}' % (b"9" * 4300))))
@example(("s.safetensors", tensors(b'{"w":{"data_offsets":[0,"8"]}}')))
@example(("s.safetensors", tensors(b"[" * 100_000)))
@example(("run/trainer_state.json", b"[" * 100_000))
@example(
    ("s.pt", ARCHIVES[2].replace(b"PK\3\4", b"PK\3\4", 1)[:45] + b"\xff" * 9 + ARCHIVES[2][54:])
)
@example(("s.pt", archive(zipfile.ZIP_STORED).replace(b"archive/data/0", b"\x1b[31m\nowned ")))
def test_a_file_is_whole_or_has_a_short_reason(file: tuple[str, bytes]) -> None:
    name, content = file
    said = measured(lambda: judge(name, content), len(content), calls=1000)
    assert len(said) <= MAX_SAID
    assert said.isprintable()


def test_whole_files_are_whole() -> None:
    for name, content in WHOLE:
        assert judge(name, content) == ""


class CountingFile(io.BytesIO):
    """A file that counts the bytes that are read of it."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


def test_entries_that_share_their_bytes_are_not_unpacked_each() -> None:
    """A small archive would otherwise cost the agent hours."""
    content = bomb(2000)
    file = CountingFile(content)
    find_corruption(file, len(content), "s.pt")
    assert file.count < 3 * len(content)


@fuzz(300)
@given(mutated(st.integers(0, 5).map(lambda protocol: pickle.dumps(STATE, protocol))))
def test_a_pickle_is_stepped_over_within_its_bytes(data: bytes) -> None:
    assert len(measured(lambda: find_damage(data), len(data), times=4, calls=20)) < 200
