"""A snapshot is whole and verified, or it does not exist: crashes, damage, full disks."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ddpjob_trainer import SnapshotError, Snapshots
from ddpjob_trainer.snapshots.model.manifest import MANIFEST, TENSORS, name_of
from ddpjob_trainer.snapshots.storage import dir_lock, snapshot_dir
from ddpjob_trainer.snapshots.storage.directory import DirectoryStorage
from support.forked import Forks, environment
from trainer.runs import Run, assert_same, started

if TYPE_CHECKING:
    import torch

    from trainer.conftest import Listener

HERE = Path(__file__).parent
KILLS = int(os.environ.get("DDPJOB_KILLS", "40"))
LINES = os.environ.get("DDPJOB_LINES", "ends")  # or each


def after(steps: int) -> Run:
    run = Run()
    run.train(steps)
    return run


def save(directory: Path, *steps: int, keep: int = 9) -> None:
    snapshots = started(directory, keep)
    for step in steps:
        snapshots.save(step, **after(step).parts(), wait=True)


def load(directory: Path) -> tuple[int, dict[str, torch.Tensor]]:
    run = Run(seed=1)
    loaded = Snapshots(directory).load(**run.parts())
    assert loaded is not None
    return loaded.step, run.weights()


def assert_loads(directory: Path, step: int) -> None:
    found, weights = load(directory)
    assert found == step
    assert_same(weights, after(step).weights())


def path_of(directory: Path, step: int) -> Path:
    return directory / name_of(step)


def steps_in(directory: Path) -> list[int]:
    return DirectoryStorage(directory, 1).steps()


def hidden_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob(".step-*"))


# A crash


def test_a_writer_killed_at_any_line_leaves_the_older_or_the_newer(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    """Before the first and the last of the lines between two changes of the disk, or before each."""
    base, out = tmp_path / "base", tmp_path / "out"
    save(base, 1, 2)
    with (tmp_path / "spans").open("w+") as output:
        script = (HERE / "crash_writer.py", base, out, LINES)
        assert forks.start(*script, env=python_env, output=output).wait() == 0
        output.seek(0)
        spans = json.load(output)
    directories = sorted(out.iterdir(), key=lambda path: int(path.name))
    weights = dict([load(base), load(directories[-1])])
    assert [*weights] == [2, 3]
    found, following = {}, after(4)
    for directory in directories:
        step, loaded = load(directory)
        assert_same(loaded, weights[step])
        found[int(directory.name)] = step
        started(directory, keep=2).save(4, **following.parts(), wait=True)
        assert hidden_in(directory) == [], f"killed at line {directory.name}"
        assert steps_in(directory) == [4, step]
    assert [*found.values()] == sorted(found.values()), "once published it stays"
    lines = {2: 0, 3: 0}
    for first, last in spans:
        assert found[first] == found[last]
        lines[found[first]] += last - first + 1
    assert lines[2] > 50, "many lines before"
    assert lines[3] > 10, "and some after"


def test_a_writer_killed_at_random_moments_loses_nothing_announced(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    """While it trains on and saves, each from where the one before it was killed."""
    script = (HERE / "killed_writer.py", tmp_path / "snapshots", KILLS, 1)
    assert forks.start(*script, env=python_env).wait() == 0


def test_everything_is_on_the_disk_before_the_name_is(
    tmp_path: Path, run: Run, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def spy_fsync(descriptor: int) -> None:
        fsync(descriptor)
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    def spy_rename(source: Path, target: Path) -> None:
        rename(source, target)
        events.append(f"rename {target.name}")

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "rename", spy_rename)
    Snapshots(tmp_path).save(1, **run.parts(), wait=True)
    aside = events.pop(7)
    assert aside.startswith(".step-000000000001.")
    assert events.pop(1).startswith(".fence-000000000001.")
    assert events == [
        "fence.json",
        "rename fence-000000000001",
        tmp_path.name,
        "tensors.safetensors",
        "manifest.json",
        "COMMIT",
        "rename step-000000000001",
        tmp_path.name,
    ]


def test_a_living_writer_is_left_alone_and_a_dead_one_cleared(tmp_path: Path) -> None:
    with dir_lock.writing_in(tmp_path):
        aside = dir_lock.hidden(path_of(tmp_path, 1))
        aside.mkdir()
        save(tmp_path, 2)
        assert aside.is_dir()
    save(tmp_path, 3)
    assert not aside.exists()


# Damage


def cut_in_half(path: Path) -> None:
    tensors = path / TENSORS
    os.truncate(tensors, tensors.stat().st_size // 2)


def flip_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)


def edit(path: Path, **changes: Any) -> None:
    manifest = json.loads((path / MANIFEST).read_text()) | changes
    (path / MANIFEST).write_text(json.dumps(manifest))


def renamed(path: Path) -> None:
    manifest = (path / MANIFEST).read_bytes().replace(b'"step": ', b'"step": 4')
    (path / MANIFEST).write_bytes(manifest)
    (path / snapshot_dir.COMMIT).write_bytes(snapshot_dir._commit_record(manifest))


def with_unknown_checksum(path: Path) -> None:
    files = json.loads((path / MANIFEST).read_text())["files"]
    edit(path, files={name: {"size": each["size"], "md9": "0"} for name, each in files.items()})
    (path / snapshot_dir.COMMIT).write_bytes(
        snapshot_dir._commit_record((path / MANIFEST).read_bytes())
    )


def other_folder(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()
    (path / "model.bin").write_text("of another tool")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "tensors cut in half": (cut_in_half, "has .* bytes instead of"),
    "bit flipped in a tensor": (lambda p: flip_bit(p / TENSORS), "checksum of tensors"),
    "bit flipped in the manifest": (lambda p: flip_bit(p / MANIFEST), "damaged: manifest"),
    "commit missing": (
        lambda p: (p / snapshot_dir.COMMIT).unlink(),
        "incomplete: COMMIT is missing",
    ),
    "commit empty": (lambda p: (p / snapshot_dir.COMMIT).write_text(""), "damaged: manifest"),
    "tensors missing": (lambda p: (p / TENSORS).unlink(), "tensors.safetensors is missing"),
    "manifest cut": (lambda p: os.truncate(p / MANIFEST, 40), "is not JSON"),
    "name of another step": (renamed, "it holds step 4"),
    "newer format": (lambda p: edit(p, version=2), "format version 2, .* reads 1"),
    "unknown checksum": (with_unknown_checksum, "its checksum is md9, which needs"),
    "foreign format": (lambda p: edit(p, format="other"), "not a ddpjob snapshot"),
    "foreign folder": (other_folder, "manifest.json is missing"),
}
damage = pytest.mark.parametrize(("harm", "reason"), DAMAGE.values(), ids=DAMAGE)


@damage
def test_what_is_unusable_is_passed_over_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None], reason: str
) -> None:
    save(tmp_path, 1, 2, 3)
    harm(path_of(tmp_path, 3))
    assert_loads(tmp_path, 2)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert re.search(f"{path_of(tmp_path, 3)}: .*{reason}", record.getMessage())


@damage
def test_if_all_are_unusable_training_stops_with_the_reason(
    tmp_path: Path, harm: Callable[[Path], None], reason: str
) -> None:
    save(tmp_path, 1, 2)
    for step in (2, 1):
        harm(path_of(tmp_path, step))
    with pytest.raises(SnapshotError, match="none is usable") as error:
        load(tmp_path)
    for step in (2, 1):
        assert re.search(f"{path_of(tmp_path, step)}: .*{reason}", str(error.value))
    assert f"mv {tmp_path} {tmp_path}.old" in str(error.value)


@damage
def test_what_is_unusable_gives_way_to_a_good_one_and_is_kept_aside(
    tmp_path: Path, harm: Callable[[Path], None], reason: str
) -> None:
    save(tmp_path, 1, 2)
    harm(path_of(tmp_path, 2))
    save(tmp_path, 2)
    assert_loads(tmp_path, 2)
    assert len(list(tmp_path.glob("unusable-step-000000000002-*"))) == 1


def test_a_folder_with_another_kind_of_name_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "step-500").mkdir()
    assert Snapshots(tmp_path).load(**Run().parts()) is None
    assert "step-500 is ignored" in caplog.text


# What is there already, and what goes


def test_the_newest_stay(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 10, 11, keep=3)
    assert steps_in(tmp_path) == [11, 10, 3]
    assert hidden_in(tmp_path) == []


def test_incomplete_ones_do_not_count_among_those_that_stay(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    (path_of(tmp_path, 3) / snapshot_dir.COMMIT).unlink()
    save(tmp_path, 4, keep=2)
    assert steps_in(tmp_path) == [4, 3, 2]


def test_a_damaged_later_one_never_displaces_what_was_just_saved(tmp_path: Path) -> None:
    save(tmp_path, 1, 9)
    flip_bit(path_of(tmp_path, 9) / TENSORS)
    save(tmp_path, 2, keep=1)
    assert_loads(tmp_path, 2)


# A disk that takes no more


@pytest.fixture(scope="module")
def full_disks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the storage and the outcome for each write that was too large."""
    below, mounts = tmp_path_factory.mktemp("full"), ""
    for kind in ("tensor", "text", "older", "live"):
        (below / kind).mkdir()
        mounts += f'mount -t tmpfs -o size=1m tmpfs "{below / kind}" && '
    script = [sys.executable, str(HERE / "full_disk.py"), str(below)]
    mount = f'{mounts} exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", *script]
    if os.geteuid() == 0:
        command = [word for word in command if word not in ("--user", "--map-root-user")]
    done = subprocess.run(
        command, env=environment(), check=True, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    return below, json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["tensor", "text"])
def test_a_full_disk_is_explained_and_costs_nothing(
    full_disks: tuple[Path, dict[str, Any]], kind: str
) -> None:
    directory, seen = full_disks[0] / kind, full_disks[1][kind]
    assert f"Cannot save step 2 in {directory}: it is full" in seen["message"]
    needed = int(seen["message"].split("full, and ")[1].split(" bytes")[0].replace(",", ""))
    assert 2 << 20 <= needed < 2.1 * (1 << 20)
    assert "The snapshot of step 1 is intact" in seen["message"]
    assert seen["names"] == [".lock", "fence-000000000001", "step-000000000001"]
    assert seen["blocks_lost"] == 0
    assert seen["loaded"] == 1


def test_a_full_disk_costs_the_oldest_snapshots_down_to_one(
    full_disks: tuple[Path, dict[str, Any]],
) -> None:
    seen = full_disks[1]["older"]
    assert seen["problems"] == [""] * 7
    assert seen["names"] == [name_of(6), name_of(7)] or seen["names"] == [name_of(7)]


def test_a_full_disk_costs_live_mode_a_snapshot_and_is_raised_at_the_end(
    full_disks: tuple[Path, dict[str, Any]],
) -> None:
    directory, seen = full_disks[0] / "live", full_disks[1]["live"]
    assert seen["begun"]
    assert seen["skipped"] >= 1
    last = seen["saved"] + 1
    assert f"Step {last} is not saved in {directory}: it is full" in seen["at_the_end"]
    assert "Free space there, enlarge the volume" in seen["at_the_end"]
    assert seen["names"] == [name_of(seen["saved"])]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path, run: Run) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SnapshotError, match=f"in {tmp_path}/file/x: .* no earlier snapshot"):
        Snapshots(tmp_path / "file" / "x").save(1, **run.parts(), wait=True)
