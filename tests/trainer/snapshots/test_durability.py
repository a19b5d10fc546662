"""A snapshot is whole and verified, or it does not exist: crashes, damage, full disks."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ddpjob_trainer import SnapshotError, Snapshots
from ddpjob_trainer.snapshots.model.manifest import TENSORS, name_of
from support.forked import Forks, environment
from trainer.runs import Run, assert_same, started
from trainer.snapshots.layout import (
    folder_of,
    left_behind,
    manifest_in,
    replace_manifest,
    storage_in,
)

if TYPE_CHECKING:
    import torch

    from trainer.conftest import Listener

HERE = Path(__file__).parent
KILLS = int(os.environ.get("DDPJOB_KILLS", "20"))
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


def steps_in(directory: Path) -> list[int]:
    return storage_in(directory, 1).steps()


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
        assert left_behind(directory) == [], f"killed at line {directory.name}"
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
    folder = folder_of(tmp_path, 1)
    manifest = manifest_in(folder).name
    assert [re.sub(r"^\.|\.\w{8}\.tmp$", "", event) for event in events] == [
        *("fence.json", "fence-000000000001", "rename fence-000000000001", tmp_path.name),
        *("step-000000000001", tmp_path.name, "tensors.safetensors", folder.name),
        *(manifest, f"rename {manifest}", folder.name),
    ]


def test_a_living_writer_is_left_alone_and_a_dead_one_cleared(tmp_path: Path) -> None:
    living = started(tmp_path)
    living.save(1, **after(1).parts(), wait=True)
    begun = tmp_path / name_of(2) / "000000000001-1f2e3d4c"
    deleted = tmp_path / name_of(1) / ".000000000001-1f2e3d4c.5a6b7c8d.tmp"
    fence = tmp_path / ".fence-000000000002.5a6b7c8d.tmp"
    for path in (begun, deleted, fence):
        path.mkdir(parents=True)
        (path / TENSORS).write_bytes(b"half")
    living.save(3, **after(3).parts(), wait=True)
    assert begun.is_dir()
    save(tmp_path, 4)
    assert left_behind(tmp_path) == []


# Damage


def cut_in_half(path: Path) -> None:
    tensors = path / TENSORS
    os.truncate(tensors, tensors.stat().st_size // 2)


def flip_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)


def edit(path: Path, **changes: Any) -> None:
    content = json.loads(manifest_in(path).read_text()) | changes
    replace_manifest(path, json.dumps(content).encode())


def renamed(path: Path) -> None:
    content = manifest_in(path).read_bytes()
    replace_manifest(path, content.replace(b'"step": ', b'"step": 4'))


def with_unknown_checksum(path: Path) -> None:
    files = json.loads(manifest_in(path).read_text())["files"]
    edit(path, files={name: {"size": each["size"], "md9": "0"} for name, each in files.items()})


def of_another_fence(path: Path) -> None:
    path.rename(path.with_name("000000000007-1f2e3d4c"))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "tensors cut in half": (cut_in_half, "has .* bytes instead of"),
    "bit flipped in a tensor": (lambda p: flip_bit(p / TENSORS), "checksum of tensors"),
    "bit flipped in the manifest": (
        lambda p: flip_bit(manifest_in(p)),
        "its manifest does not match its name",
    ),
    "tensors missing": (lambda p: (p / TENSORS).unlink(), "tensors.safetensors is missing"),
    "manifest cut": (lambda p: os.truncate(manifest_in(p), 40), "does not match its name"),
    "manifest empty": (lambda p: os.truncate(manifest_in(p), 0), "does not match its name"),
    "manifest of something else": (lambda p: replace_manifest(p, b"{"), "is not JSON"),
    "name of another step": (renamed, "it holds step 4"),
    "newer format": (lambda p: edit(p, version=2), "format version 2, .* reads 1"),
    "unknown checksum": (with_unknown_checksum, "its checksum is md9, which needs"),
    "foreign format": (lambda p: edit(p, format="other"), "not a ddpjob snapshot"),
    "name of another fence": (of_another_fence, "it is of fence 1"),
}
damage = pytest.mark.parametrize(("harm", "reason"), DAMAGE.values(), ids=DAMAGE)


@damage
def test_what_is_unusable_is_passed_over_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None], reason: str
) -> None:
    save(tmp_path, 1, 2, 3)
    harm(folder_of(tmp_path, 3))
    assert_loads(tmp_path, 2)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert re.search(f"{tmp_path / name_of(3)}.*: .*{reason}", record.getMessage())


@damage
def test_if_all_are_unusable_training_stops_with_the_reason(
    tmp_path: Path, harm: Callable[[Path], None], reason: str
) -> None:
    save(tmp_path, 1, 2)
    for step in (2, 1):
        harm(folder_of(tmp_path, step))
    with pytest.raises(SnapshotError, match="none is usable") as error:
        load(tmp_path)
    for step in (2, 1):
        assert re.search(f"{tmp_path / name_of(step)}.*: .*{reason}", str(error.value))
    assert f"mv {tmp_path} {tmp_path}.old" in str(error.value)


@damage
def test_what_is_unusable_gives_way_to_a_good_one_and_stays_beside_it(
    tmp_path: Path, harm: Callable[[Path], None], reason: str
) -> None:
    save(tmp_path, 1, 2)
    harm(folder_of(tmp_path, 2))
    save(tmp_path, 2)
    assert_loads(tmp_path, 2)
    looks_whole = "checksum" in reason  # and its run has resumed from step 1
    is_useless = reason == "tensors.safetensors is missing"
    count = 1 if looks_whole or is_useless else 2
    assert len([*(tmp_path / name_of(2)).iterdir()]) == count


def test_a_folder_of_another_tool_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1)
    (tmp_path / name_of(2)).mkdir()
    (tmp_path / name_of(2) / "model.bin").write_text("of another tool")
    assert_loads(tmp_path, 1)
    assert f"{tmp_path / name_of(2)}/model.bin is ignored" in caplog.text


def test_a_folder_with_another_kind_of_name_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "step-500").mkdir()
    (tmp_path / "step-500" / TENSORS).touch()
    assert Snapshots(tmp_path).load(**Run().parts()) is None
    assert f"step-500/{TENSORS} is ignored" in caplog.text


# Existing snapshots, and what pruning deletes


def test_the_newest_stay(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 10, 11, keep=3)
    assert steps_in(tmp_path) == [11, 10, 3]
    assert left_behind(tmp_path) == []


def test_incomplete_ones_do_not_count_among_those_that_stay(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    os.truncate(folder_of(tmp_path, 3) / TENSORS, 10)
    save(tmp_path, 4, keep=2)
    assert storage_in(tmp_path, 1).all_steps() == [4, 3, 2]
    assert steps_in(tmp_path) == [4, 2]


def test_a_damaged_later_one_never_displaces_what_was_just_saved(tmp_path: Path) -> None:
    save(tmp_path, 1, 9)
    flip_bit(folder_of(tmp_path, 9) / TENSORS)
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
    assert seen["names"] == ["fence-000000000001", "step-000000000001"]
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
