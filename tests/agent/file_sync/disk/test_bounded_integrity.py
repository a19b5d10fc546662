"""Files that are made to take memory: a check takes no more of it than the file has bytes, or few.

A child process checks them with little address space left, so that a wrong number of bytes fails.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ddpjob_agent.file_sync.decisions.pickle_scan import find_damage
from ddpjob_agent.file_sync.disk import integrity

START = b"\x80\x04"
CUT, WHOLE = "cut short", ""
HOSTILE: dict[str, tuple[str, bytes, str]] = {
    "memo of 150 million": ("s.pkl", b"\x80\x02Nr" + struct.pack("<I", 150_000_000) + b".", WHOLE),
    "memo of 4 billion": ("s.pkl", b"\x80\x02Nr\xff\xff\xff\xff.", WHOLE),
    "bytes of 4 GB": ("s.pkl", START + b"B\xff\xff\xff\xff.", CUT),
    "bytes of 4 EB": ("s.pkl", START + b"\x8e" + struct.pack("<Q", 1 << 62) + b".", CUT),
    "bytes of 16 EB": ("s.pkl", START + b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", CUT),
    "bytearray of 1 TB": ("s.pkl", START + b"\x96" + struct.pack("<Q", 1 << 40) + b".", CUT),
    "text of 4 GB": ("s.pkl", START + b"X\xff\xff\xff\xff.", CUT),
    "text of 1 TB": ("s.pkl", START + b"\x8d" + struct.pack("<Q", 1 << 40) + b".", CUT),
    "number of 2 GB": ("s.pkl", START + b"\x8b\xff\xff\xff\x7f.", CUT),
    "number of negative length": ("s.pkl", START + b"\x8b\xff\xff\xff\xff.", "a negative length"),
    "string of negative length": ("s.pkl", START + b"T\xff\xff\xff\xff.", "a negative length"),
    "frame of 1 EB": ("s.pkl", START + b"\x95" + struct.pack("<Q", 1 << 60) + b"N.", WHOLE),
    "number of 1 MB of digits": ("s.pkl", START + b"L" + b"9" * (1 << 20) + b"L\n.", WHOLE),
    "line without end": ("s.pkl", START + b"V" + b"x" * (1 << 20) + b".", CUT),
    "many marks": ("s.pkl", START + b"(" * (1 << 20) + b".", WHOLE),
    "deep tuples": ("s.pkl", START + b")" + b"\x85" * (1 << 20) + b".", WHOLE),
    "header of 100 MB": ("s.safetensors", struct.pack("<Q", 100_000_000) + b"{}", CUT),
    "header of 16 EB": ("s.safetensors", b"\xff" * 8 + b"{}", CUT),
    "deep header": ("s.safetensors", struct.pack("<Q", 1 << 20) + b"[" * (1 << 20), "be read"),
    "deep state": ("checkpoint-1/trainer_state.json", b"[" * (1 << 20), "be read"),
    "long state": ("checkpoint-1/trainer_state.json", b"[" + b"[]," * (20 << 20) + b"[]]", WHOLE),
    "long and cut state": ("checkpoint-1/trainer_state.json", b"[" + b"[]," * (20 << 20), CUT),
}  # fmt: skip
CHECK = """
import json, os, resource, sys
from ddpjob_agent.file_sync.disk.integrity import find_corruption
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20),) * 2)
found = {}
for case, (name, path) in json.load(sys.stdin).items():
    with open(path, "rb") as file:
        found[case] = find_corruption(file, os.path.getsize(path), name)
print(json.dumps(found))
"""


def test_checks_take_no_memory_that_a_file_asks_for(tmp_path: Path) -> None:
    files = {}
    for number, (case, (name, content, _)) in enumerate(HOSTILE.items()):
        path = tmp_path / str(number)
        path.write_bytes(content)
        files[case] = (name, str(path))
    command = [sys.executable, "-c", CHECK]
    done = subprocess.run(
        command, input=json.dumps(files), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for case, (_, _, damage) in HOSTILE.items():
        assert damage in found[case] if damage else found[case] == "", (case, found[case])


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_that_a_writer_finished_is_whole(protocol: int) -> None:
    """A cut at each length is damage, except where the first pickle ends."""
    values = [1, -(2**70), 2**3000, 1.5, "a\nb", "ä", b"b", bytearray(300), {1: [None, True]}, {2}]
    content = 2 * pickle.dumps([*values, pickle.Pickler, "x" * 300], protocol)
    assert find_damage(content) == ""
    missed = [
        n for n in range(1, len(content)) if not find_damage(content[:n]) and not ends(content, n)
    ]
    assert missed == []


def ends(content: bytes, length: int) -> bool:
    """Return whether the first of the two pickles ends here."""
    return length == len(content) // 2


def test_instructions_are_those_of_pickletools() -> None:
    for opcode in pickletools.opcodes:
        assert "unknown" not in find_damage(opcode.code.encode("latin-1"))
    known = {opcode.code for opcode in pickletools.opcodes}
    (unknown, *_) = (chr(code) for code in range(256) if chr(code) not in known)
    assert "unknown instruction" in find_damage(unknown.encode("latin-1"))


@pytest.mark.parametrize("names", [0, 1, 40_000])
def test_long_header_is_judged_without_its_objects(
    monkeypatch: pytest.MonkeyPatch, names: int
) -> None:
    monkeypatch.setattr(integrity, "JSON_BYTES", 1)
    ends = [range(4 * n, 4 * n + 5, 4) for n in range(names)]
    header = {
        "__metadata__": {"text": '"data_offsets":[0,99999999]'},
        **{
            f"t{n}": {"dtype": "F32", "shape": [1], "data_offsets": [*e]}
            for n, e in enumerate(ends)
        },
    }
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + bytes(4 * names)
    assert judge(content) == ""
    assert judge(content[:-1]) != ""
    assert judge(content + b"x") != ""


def judge(content: bytes) -> str:
    return integrity.find_corruption(io.BytesIO(content), len(content), "s.safetensors")
