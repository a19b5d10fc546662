"""What is done with less memory than saving wants, and how the memory that there is is found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpjob_trainer import SnapshotError, host_memory
from ddpjob_trainer.host_memory import MemoryHeadroom
from ddpjob_trainer.snapshots.memory_budget import MemoryPlan, plan_memory

LIMIT = 1600  # of which 100 are left to training


@pytest.mark.parametrize(
    ("free", "keep", "copied", "held", "expected"),
    [
        (200, 3, 0, None, (True, 3)),
        (199, 3, 0, None, (False, 3)),
        (100, 3, 100, None, (True, 3)),
        (0, 3, 0, None, (False, 3)),
        (600, 3, 0, 0, (True, 3)),
        (300, 3, 100, 200, (True, 3)),
        (500, 3, 0, 0, (True, 2)),
        (400, 3, 0, 0, (True, 1)),
        (399, 3, 0, 0, (False, 1)),
        (300, 3, 0, 0, (False, 1)),
        (300, 1, 0, 0, (False, 1)),
    ],
    ids=[
        "just_enough", "too_little_for_a_copy", "the_copy_is_there", "nothing_on_a_disk",
        "in_memory", "in_memory_already", "keeps_two", "keeps_one", "keeps_one_without_a_copy",
        "just_enough_for_one", "wants_one",
    ],
)  # fmt: skip
def test_less_memory_means_less_comfort(
    free: int, keep: int, copied: int, held: int | None, expected: tuple[bool, int]
) -> None:
    found = plan_memory(100, keep, MemoryHeadroom(LIMIT, free), whole=100, copied=copied, held=held)
    assert found[:2] == expected
    assert bool(found.problem) is (expected != (True, keep))


def test_it_is_said_what_is_less_and_how_much_more_is_enough() -> None:
    mb = 1_000_000
    found = plan_memory(
        100 * mb, 3, MemoryHeadroom(LIMIT * mb, 399 * mb), whole=100 * mb, copied=0, held=0
    )
    assert found.problem == (
        "The memory limit of 1,600 MB leaves 299 MB for snapshots of 100 MB each: training stands "
        "still while one is written, and 1 instead of 3 are kept; a limit that is 215 MB higher is "
        "enough"
    )
    more = int(re.findall(r"(\d+) MB higher", found.problem)[0])
    room = MemoryHeadroom((LIMIT + more) * mb, (399 + more) * mb)
    assert plan_memory(100 * mb, 3, room, whole=100 * mb, copied=0, held=0) == MemoryPlan(
        copies=True, keep=3
    )


def test_a_directory_in_memory_that_cannot_hold_two_is_refused_before_it_is_filled() -> None:
    with pytest.raises(SnapshotError, match="it must hold two"):
        plan_memory(100, 3, MemoryHeadroom(LIMIT, 299), whole=100, copied=0, held=0)


def test_who_writes_a_part_copies_a_part_beside_whole_snapshots() -> None:
    for free, expected in ((525, (True, 3)), (524, (True, 2)), (324, (False, 1))):
        found = plan_memory(25, 3, MemoryHeadroom(LIMIT, free), whole=100, copied=0, held=0)
        assert found[:2] == expected
    assert plan_memory(25, 3, MemoryHeadroom(LIMIT, 125), whole=100, copied=0, held=None).copies


def test_without_a_limit_nothing_is_less() -> None:
    assert plan_memory(10**15, 3, None, whole=10**15, copied=0, held=0) == MemoryPlan(
        copies=True, keep=3
    )


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


@pytest.mark.parametrize("cgroup", ["0::/nowhere", "", "1:name=systemd:/"])
def test_where_nobody_tells_there_is_no_limit(tmp_path: Path, cgroup: str) -> None:
    put(tmp_path, cgroup=cgroup)
    assert host_memory.memory_headroom(tmp_path / "none", tmp_path) is None
    assert host_memory.memory_headroom(tmp_path / "none", tmp_path / "none") is None


MOUNTS = r"""
21 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
22 21 0:5 / {0}/memory rw shared:2 - tmpfs tmpfs rw,size=1k
23 22 8:1 / {0}/memory/disk rw - ext4 /dev/sda1 rw
24 21 0:6 / {0}/a\040space rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [("memory", True), ("memory/not/yet", True), ("memory/disk/a", False), ("a space", True),
     ("elsewhere", False)],
)  # fmt: skip
def test_what_lies_in_memory(tmp_path: Path, name: str, expected: bool) -> None:
    tmp_path = tmp_path.resolve()
    (tmp_path / "proc").mkdir()
    mounts = MOUNTS.replace("{0}", str(tmp_path)).strip()
    (tmp_path / "proc" / "mountinfo").write_text(mounts)
    for folder in ("memory/disk", "a space"):
        (tmp_path / folder).mkdir(parents=True)
    assert host_memory.is_memory_filesystem(tmp_path / name, tmp_path / "proc") is expected
