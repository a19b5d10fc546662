"""Saving with less memory than it needs, and the search for the free memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpjob_trainer import host_memory
from ddpjob_trainer.host_memory import MemoryHeadroom
from ddpjob_trainer.snapshots.writing.memory_budget import MemoryPlan, plan_memory

LIMIT = 1600  # of which 100 are left to training


@pytest.mark.parametrize(
    ("free", "copied", "expected"),
    [(200, 0, True), (199, 0, False), (100, 100, True), (0, 0, False)],
    ids=["just_enough", "too_little_for_a_copy", "the_copy_is_there", "nothing"],
)
def test_less_memory_means_less_comfort(free: int, copied: int, expected: bool) -> None:
    found = plan_memory(100, MemoryHeadroom(LIMIT, free), copied)
    assert found.copies is expected
    assert bool(found.problem) is not expected


def test_shortage_names_the_smallest_limit_and_the_missing_amount() -> None:
    mb = 1_000_000
    found = plan_memory(100 * mb, MemoryHeadroom(LIMIT * mb, 150 * mb), copied=0)
    assert found.problem == (
        "The memory limit of 1,600 MB leaves 50 MB for snapshots of 100 MB each: training pauses "
        "while one is written; a limit that is 54 MB higher is enough"
    )
    more = int(re.findall(r"(\d+) MB higher", found.problem)[0])
    room = MemoryHeadroom((LIMIT + more) * mb, (150 + more) * mb)
    assert plan_memory(100 * mb, room, copied=0) == MemoryPlan(copies=True)


def test_without_a_limit_nothing_is_less() -> None:
    assert plan_memory(10**15, None, copied=0) == MemoryPlan(copies=True)


# --- what there is --------------------------------------------------------------------------------


def put(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def v2(folder: Path, limit: object, used: int, cached: int = 0, shared: int = 0) -> None:
    stat = f"anon 1\nfile {cached}\nshmem {shared}"
    put(folder, memory__max=limit, memory__current=used, memory__stat=stat)


def test_the_tightest_limit_above_the_process_counts(tmp_path: Path) -> None:
    groups, proc = tmp_path / "cgroup", tmp_path / "proc"
    put(proc, cgroup="0::/pods/mine/trainer")
    v2(groups / "pods" / "mine" / "trainer", "max", 100)
    v2(groups / "pods" / "mine", 1000, 700)
    v2(groups / "pods", 2000, 900)
    assert host_memory.memory_headroom(groups, proc) == MemoryHeadroom(1000, 300)


def test_what_the_kernel_gives_up_is_free_and_what_lies_in_memory_is_not(tmp_path: Path) -> None:
    groups, proc = tmp_path / "cgroup", tmp_path / "proc"
    put(proc, cgroup="0::/")
    v2(groups, 1000, 700, cached=300, shared=100)
    assert host_memory.memory_headroom(groups, proc) == MemoryHeadroom(1000, 500)


def test_the_first_version_of_cgroups(tmp_path: Path) -> None:
    groups, proc = tmp_path / "cgroup", tmp_path / "proc"
    put(proc, cgroup="4:memory:/pod\n3:cpu,cpuacct:/pod")
    stat = "cache 1\ntotal_cache 300\ntotal_shmem 100"
    files = {"memory__limit_in_bytes": 1000, "memory__usage_in_bytes": 700, "memory__stat": stat}
    put(groups / "memory" / "pod", **files)
    put(groups / "memory", **{**files, "memory__limit_in_bytes": 2**63 - 4096})
    assert host_memory.memory_headroom(groups, proc) == MemoryHeadroom(1000, 500)


def test_the_machine_has_a_limit_too(tmp_path: Path) -> None:
    """A container without a limit of its own is killed when the machine has no memory left."""
    groups, proc = tmp_path / "cgroup", tmp_path / "proc" / "self"
    put(proc, cgroup="0::/")
    put(proc.parent, meminfo="MemTotal: 4 kB\nMemFree: 1 kB\nMemAvailable:   2 kB\nHugePages: 0")
    found = host_memory.memory_headroom(groups, proc)
    assert found is not None
    assert (found.limit, found.free) == (4096, 2048)
    assert "The machine's memory of 0 MB leaves" in plan_memory(10**9, found, copied=0).problem
    v2(groups, 2000, 1000)
    assert host_memory.memory_headroom(groups, proc) == MemoryHeadroom(2000, 1000)


@pytest.mark.parametrize("cgroup", ["0::/nowhere", "", "1:name=systemd:/"])
def test_without_a_reported_limit_there_is_none(tmp_path: Path, cgroup: str) -> None:
    put(tmp_path, cgroup=cgroup)
    assert host_memory.memory_headroom(tmp_path / "none", tmp_path) is None
    assert host_memory.memory_headroom(tmp_path / "none", tmp_path / "none") is None
