"""Snapshots in a real S3 server: whole and verified, or they do not exist."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import obstore
import pytest
import safetensors.torch

from ddpjob_trainer import SnapshotError, Snapshots
from ddpjob_trainer.__main__ import main
from ddpjob_trainer.snapshots.model.manifest import name_of
from ddpjob_trainer.snapshots.storage import bucket as bucket_files
from store.objects_of import after, bucket, content, delete, names, parts_of, replace, store
from store.server import Server
from trainer.conftest import Listener
from trainer.runs import Run, assert_same, started

LARGE = 1 << 20  # units of a model whose snapshot is sent in parts


def save(uri: str, *steps: int, keep: int = 9) -> None:
    snapshots = started(uri, keep)
    for step in steps:
        snapshots.save(step, **after(step).parts(), wait=True)


def assert_loads(uri: str, step: int) -> None:
    run = Run(seed=1)
    loaded = Snapshots(uri).load(**run.parts())
    assert loaded is not None
    assert loaded.step == step
    assert_same(run.weights(), after(step).weights())


def test_what_is_saved_is_loaded(uri: str, listener: Listener) -> None:
    run = after(3)
    snapshots = Snapshots(uri)
    assert snapshots.load(**run.parts()) is None
    assert snapshots.save(3, **run.parts(), extra={"epoch": 2})
    snapshots.wait()
    again = Run(seed=1)
    loaded = Snapshots(uri).load(**again.parts())
    assert loaded is not None
    assert (loaded.step, loaded.extra) == (3, {"epoch": 2})
    assert_same(again.weights(), run.weights())
    assert_same(again.optimizer.state_dict(), run.optimizer.state_dict())
    reports = [(each["event"], each["step"]) for each in listener.pending()]
    assert reports == [("resumed", 0), ("saved", 3), ("resumed", 3)]


def test_the_job_names_the_bucket(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPJOB_SNAPSHOT_DIR", str(tmp_path / "unused"))
    monkeypatch.setenv("DDPJOB_SNAPSHOT_URI", uri)
    Snapshots().save(1, **after(1).parts(), wait=True)
    assert_loads(uri, 1)
    assert not (tmp_path / "unused").exists()


def test_objects_match_the_documented_format(uri: str) -> None:
    """Read with nothing of ours."""
    save(uri, 3)
    manifest, tensors = parts_of(uri, 3)
    assert names(uri) == ["fence-000000000001/fence.json", manifest, tensors]
    assert re.fullmatch(r"step-000000000003/000000000001-\w{8}/tensors.safetensors", tensors)
    raw, data = content(uri, manifest), content(uri, tensors)
    digest = hashlib.sha256(raw).hexdigest()
    assert manifest == tensors.replace("tensors.safetensors", f"manifest-{digest}.json")
    found = json.loads(raw)
    assert (found["step"], found["fence"]) == (3, 1)
    assert found["files"]["tensors.safetensors"]["size"] == len(data)
    weights = after(3).weights()
    loaded = safetensors.torch.load(data)
    assert_same({name: loaded[f"model.{name}"] for name in weights}, weights)


def test_a_large_one_is_sent_and_fetched_in_parts(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_files, "PART_BYTES", 5 << 20)  # S3 takes none that is smaller
    run = after(1, width=LARGE)
    Snapshots(uri).save(1, **run.parts(), wait=True)
    _, tensors = parts_of(uri, 1)
    found = obstore.head(store(uri), tensors)
    assert found["size"] > 60 << 20
    assert str(found["e_tag"]).strip('"').endswith("-15"), "so many parts"
    again = Run(seed=1, width=LARGE)
    assert Snapshots(uri).load(**again.parts()) is not None
    assert_same(again.weights(), run.weights())
    assert_same(again.optimizer.state_dict(), run.optimizer.state_dict())


# Damage


def flip(uri: str, name: str) -> None:
    data = bytearray(content(uri, name))
    data[-20] ^= 1
    replace(uri, name, bytes(data))


def cut(uri: str, name: str) -> None:
    replace(uri, name, content(uri, name)[:-9])


DAMAGE: dict[str, tuple[Callable[[str, str], object], int, str]] = {
    "bit flipped in a tensor": (flip, 1, "the checksum of tensors.safetensors does not match"),
    "tensors cut": (cut, 1, "has .* bytes instead of"),
    "tensors missing": (delete, 1, "tensors.safetensors is missing"),
    "bit flipped in the manifest": (flip, 0, "does not match its name"),
    "manifest cut": (cut, 0, "does not match its name"),
}
damage = pytest.mark.parametrize(("harm", "part", "reason"), DAMAGE.values(), ids=DAMAGE)


@damage
def test_what_is_unusable_is_passed_over_with_its_reason(
    uri: str, caplog: pytest.LogCaptureFixture,
    harm: Callable[[str, str], None], part: int, reason: str,
) -> None:  # fmt: skip
    save(uri, 1, 2)
    harm(uri, parts_of(uri, 2)[part])
    assert_loads(uri, 1)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert re.search(f"{uri}/{name_of(2)}.*: .*{reason}", record.getMessage())


@damage
def test_what_is_unusable_gives_way_to_a_good_one_and_stays(
    uri: str, harm: Callable[[str, str], None], part: int, reason: str
) -> None:
    save(uri, 1, 2)
    harmed = parts_of(uri, 2)
    harm(uri, harmed[part])
    save(uri, 2)
    assert_loads(uri, 2)
    left = {*harmed} & {*parts_of(uri, 2)}
    is_fenced = (harm, part) == (flip, 1)  # it looks whole, and its run has resumed from step 1
    stays = harm is not delete and not is_fenced  # a manifest alone is of no use
    assert left == ({*harmed} if stays else set())


def test_if_all_are_unusable_training_stops_with_the_reason(uri: str) -> None:
    save(uri, 1, 2)
    for step in (1, 2):
        flip(uri, parts_of(uri, step)[1])
    with pytest.raises(SnapshotError, match="none is usable") as error:
        assert_loads(uri, 2)
    for step in (1, 2):
        assert f"{uri}/{name_of(step)}: it is damaged" in str(error.value)
    assert "give another prefix (spec.snapshot.uri)" in str(error.value)


def test_a_prefix_of_its_own_is_all_it_touches(uri: str) -> None:
    """The objects of others in the bucket, or beside the snapshots, stay."""
    outside = uri.rpartition("/")[0]
    replace(outside, "digits2/step-000000000001/x", b"of another job")
    replace(uri, "model.bin", b"of the script")
    save(uri, 1, 2, keep=1)
    assert content(outside, "digits2/step-000000000001/x") == b"of another job"
    assert content(uri, "model.bin") == b"of the script"
    assert_loads(uri, 2)


# Existing snapshots, and what pruning deletes


def test_the_newest_stay(uri: str) -> None:
    save(uri, 1, 2, 3, 10, 11, keep=3)
    assert bucket(uri).steps() == [11, 10, 3]
    assert len([name for name in names(uri) if name.startswith("step-")]) == 6


def test_a_damaged_later_one_never_displaces_what_was_just_saved(uri: str) -> None:
    save(uri, 1, 9)
    flip(uri, parts_of(uri, 9)[1])
    save(uri, 2, keep=1)
    assert_loads(uri, 2)


# Looking at them


def test_the_command_takes_a_uri(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(uri, 1, 2, 3)
    flip(uri, parts_of(uri, 2)[1])
    assert main(["list", uri]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["3", "2", "1"]
    assert main(["verify", uri]) == 1
    newest, damaged, oldest = capsys.readouterr().out.splitlines()
    assert (newest.split(), oldest.split()) == (["3", "whole"], ["1", "whole"])
    assert "2  it is damaged: the checksum of tensors.safetensors" in damaged
    assert main(["prune", uri, "--keep", "2"]) == 0
    assert capsys.readouterr().out.split() == ["1", "deleted"]
    assert main(["export", uri, str(tmp_path / "model.pt")]) == 0
    assert main(["export", uri, str(tmp_path / "2.pt"), "--step", "2"]) == 1
    assert f"{uri}/{name_of(2)}: it is damaged" in capsys.readouterr().err
    assert main(["list", f"{uri}/none"]) == 0
    assert f"no snapshots in {uri}/none" in capsys.readouterr().err


def test_the_command_names_the_damage(
    uri: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "s3://there-is-none/x"]) == 1
    assert "s3://there-is-none/x: there is no such bucket" in capsys.readouterr().err
    assert main(["list", "hdfs://x/y"]) == 1
    assert "hdfs://x/y cannot store snapshots" in capsys.readouterr().err
