"""The limit of the snapshots' volume, at which kubelet evicts the pod, is never reached."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddpjob_protocol.environment import ENV_SNAPSHOT_BYTES, ENV_SNAPSHOT_DIR, ENV_SNAPSHOT_URI
from ddpjob_trainer import SnapshotError, Snapshots
from ddpjob_trainer.snapshots.storage import volume
from trainer.runs import Run

KB = 1 << 10
LIMIT = 500 * KB


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "snapshots"
    monkeypatch.setenv(ENV_SNAPSHOT_DIR, str(folder))
    monkeypatch.setenv(ENV_SNAPSHOT_BYTES, str(LIMIT))
    return folder


def save(snapshots: Snapshots, step: int, size: int = 100 * KB) -> bool:
    extra = torch.zeros(size, dtype=torch.uint8)
    return snapshots.save(step, **Run().parts(), extra=extra, wait=True)


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in folder.glob("step-*"))


def test_the_oldest_go_before_the_limit_is_reached(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    rename = Path.rename

    def measured(source: Path, target: Path) -> Path:
        held.append(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", measured)
    snapshots = Snapshots(keep=9)
    assert all(save(snapshots, step) for step in range(1, 7))
    assert steps(folder) == [4, 5, 6]
    assert max(held) <= LIMIT, "with the one that is being written"
    (folder / "of-the-script").write_bytes(bytes(150 * KB))
    assert save(snapshots, 7)
    assert steps(folder) == [6, 7]
    (folder / "of-the-script").write_bytes(bytes(250 * KB))
    with pytest.raises(SnapshotError, match=r"does not fit in the volume of .* Delete other files"):
        save(snapshots, 8)
    assert steps(folder) == [7]


def test_a_limit_that_is_too_low_is_refused_with_the_number_that_is_needed(folder: Path) -> None:
    with pytest.raises(SnapshotError, match=r"Set a limit of at least [\d,]+ bytes") as error:
        save(Snapshots(), 1, size=LIMIT // 2)
    needed = int(str(error.value).split("at least ")[1].split(" bytes")[0].replace(",", ""))
    assert LIMIT < needed < 1.3 * LIMIT, "twice the state, with the random states"
    assert steps(folder) == []
    large = Run(width=40_000)
    with pytest.raises(SnapshotError, match="Set a limit of at least"):
        Snapshots().load(**large.parts())


def test_the_limit_is_that_of_the_jobs_own_directory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert save(Snapshots(tmp_path / "elsewhere"), 1, size=LIMIT)
    monkeypatch.setenv(ENV_SNAPSHOT_URI, f"file://{tmp_path}/in-another-volume")
    assert save(Snapshots(), 1, size=LIMIT)


def test_what_a_dead_writer_left_does_not_count(folder: Path) -> None:
    for name in (".000000000001-1f2e3d4c.5a6b7c8d.tmp", "000000000000-5a6b7c8d"):
        left = folder / "step-000000000001" / name
        left.mkdir(parents=True)
        (left / "tensors.safetensors").write_bytes(bytes(LIMIT))
    assert volume.used(folder) == LIMIT, "without what is being deleted"
    assert save(Snapshots(), 1)
    assert steps(folder) == [1]
    assert volume.used(folder) < LIMIT / 2, "the fence has cleared it"
