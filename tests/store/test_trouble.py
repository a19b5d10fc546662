"""Errors of a store are reported with a remedy; training continues if it can."""

from __future__ import annotations

import logging
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ddpjob_trainer import SnapshotError, Snapshots, StorageUnavailableError
from ddpjob_trainer.snapshots.storage import bucket as bucket_files
from store.objects_of import after, delete, names, parts_of
from store.server import OTHER, OTHERS_SECRET, Server
from trainer.conftest import Listener
from trainer.runs import Run, assert_same

LISTED = "Allow these credentials to list, read, write and delete objects there."


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_files, "REQUEST_TIMEOUT", timedelta(seconds=2))


@pytest.fixture(scope="module")
def stranger(server: Server) -> None:
    server.admit_stranger()


def at_the_server(uri: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same bucket and prefix, at another server."""
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    server.bucket(uri.split("/")[2])
    return uri


WRONG = {
    "no bucket": ({}, "s3://there-is-none/x", "there is no such bucket. .*Make it, or correct"),
    "wrong secret": ({"AWS_SECRET_ACCESS_KEY": "x"}, "", "the credentials are wrong. .*Correct"),
    "wrong key": ({"AWS_ACCESS_KEY_ID": "nobody"}, "", "the credentials are wrong. .*Correct"),
    "may not": (
        {"AWS_ACCESS_KEY_ID": OTHER, "AWS_SECRET_ACCESS_KEY": OTHERS_SECRET},
        "",
        f"access is denied. .*{LISTED}",
    ),
}
wrong = pytest.mark.parametrize(("variables", "where", "text"), WRONG.values(), ids=WRONG)


@wrong
def test_what_somebody_has_to_mend_stops_training(
    uri: str, stranger: None, monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str], where: str, text: str,
) -> None:  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    where = where or uri
    with pytest.raises(SnapshotError, match=f"Cannot save step 1 in {where}: {text}") as error:
        Snapshots(where).save(1, **after(1).parts(), wait=True)
    assert not isinstance(error.value, StorageUnavailableError)
    with pytest.raises(SnapshotError, match=f"Cannot read {where}: {text}"):
        Snapshots(where).load(**Run().parts())


def test_no_credentials(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without credentials: the client asks an address that does not exist here."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9/169.254.169.254")
    with pytest.raises(SnapshotError, match=r"there are no credentials .*AWS_ACCESS_KEY_ID"):
        Snapshots(uri).save(1, **after(1).parts(), wait=True)


def test_an_endpoint_that_is_none(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9000")
    with pytest.raises(SnapshotError, match="has to begin with https:// or http://"):
        Snapshots(uri)


def test_without_the_library(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_files, "obstore", None)
    with pytest.raises(SnapshotError, match="another package in this image: pip install obstore"):
        Snapshots(uri)


def test_the_library_is_asked_for_by_nobody_else() -> None:
    """An image without it saves to directories."""
    script = "import sys; sys.modules['obstore'] = None; import ddpjob_trainer.__main__"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("where", ["s3://", "hdfs://bucket/x", "s3://key:secret@bucket/x"])
def test_what_is_no_place(where: str) -> None:
    with pytest.raises(SnapshotError, match=r"cannot store snapshots.*s3://bucket/jobs"):
        Snapshots(where)


def test_a_file_uri_is_a_directory(tmp_path: Path) -> None:
    Snapshots(f"file://{tmp_path}/here").save(1, **after(1).parts(), wait=True)
    assert (tmp_path / "here" / "step-000000000001").is_dir()


def test_training_continues_while_the_store_is_unavailable(
    uri: str, own_server: Server, listener: Listener,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    uri = at_the_server(uri, own_server, monkeypatch)
    run = Run()
    snapshots = Snapshots(uri)
    snapshots.load(**run.parts())
    for step in range(1, 6):
        run.train(1, first=step - 1)
        if step == 2:
            own_server.stop()
        if step == 4:
            own_server.start()
        snapshots.save(step, **run.parts())
        if step in (2, 3):
            with pytest.raises(
                StorageUnavailableError, match=f"Step {step} is not saved in {uri}: it cannot be"
            ):
                snapshots.wait()
        else:
            snapshots.wait()
    assert snapshots.skipped == 2
    told = [record for record in caplog.records if "is not saved" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING] * 2
    saved = [each["step"] for each in listener.pending() if each["event"] == "saved"]
    assert saved == [1, 4, 5]
    again = Run(seed=1)
    loaded = Snapshots(uri).load(**again.parts())
    assert loaded is not None
    assert loaded.step == 5
    assert_same(again.weights(), run.weights())


def test_no_joiner_waits_for_a_step_without_it(
    uri: str, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next save does not raise what became of the one before."""
    uri = at_the_server(uri, own_server, monkeypatch)
    snapshots = Snapshots(uri)
    assert snapshots.save(1, **after(1).parts(), wait=True)
    own_server.stop()
    assert snapshots.save(2, **after(2).parts())
    snapshots._writer.finish()
    own_server.start()
    assert snapshots.save(3, **after(3).parts())
    snapshots.wait()
    assert snapshots.skipped == 1


def test_a_store_that_is_away_from_the_start_is_not_an_empty_one(
    uri: str, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = at_the_server(uri, own_server, monkeypatch)
    Snapshots(uri).save(1, **after(1).parts(), wait=True)
    own_server.stop()
    with pytest.raises(SnapshotError, match=f"Cannot read {uri}: it cannot be reached"):
        Snapshots(uri).load(**Run().parts())


def test_what_cannot_be_read_just_now_is_not_passed_over(
    uri: str, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training would resume from an older snapshot, and never again from the newest."""
    uri = at_the_server(uri, own_server, monkeypatch)
    snapshots = Snapshots(uri)
    for step in (1, 2):
        snapshots.save(step, **after(step).parts(), wait=True)
    read = bucket_files.BucketFiles.read

    def late(*arguments: Any) -> bool:
        own_server.stop()
        return read(*arguments)

    monkeypatch.setattr(bucket_files.BucketFiles, "read", late)
    with pytest.raises(SnapshotError, match=r"Cannot read .*step-000000000002: it cannot be"):
        Snapshots(uri).load(**Run().parts())


def test_tensors_without_a_manifest_go_when_nobody_can_still_want_them(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once if their writer is fenced, after a day if it may still live."""
    monkeypatch.setenv("DDPJOB_MEMBERSHIP", "1.1.1")
    lost = Snapshots(uri)
    for step in (1, 2, 3):
        lost.save(step, **after(step).parts(), wait=True)
    for name in names(uri):
        if "manifest" in name and name.startswith(("step-000000000001", "step-000000000003")):
            delete(uri, name)
    monkeypatch.setenv("DDPJOB_MEMBERSHIP", "1.1.2")
    monkeypatch.setenv("DDPJOB_SNAPSHOT_URI", uri)
    snapshots = Snapshots(keep=9)
    loaded = snapshots.load(**Run().parts())
    assert loaded is not None
    assert loaded.step == 2
    snapshots.save(4, **after(4).parts(), wait=True)
    left = {int(name[5:17]) for name in names(uri) if name.startswith("step-")}
    assert left == {2, 4}
    for name in parts_of(uri, 4):
        if "manifest" in name:
            delete(uri, name)
    snapshots.save(5, **after(5).parts(), wait=True)
    left = {int(name[5:17]) for name in names(uri) if name.startswith("step-")}
    assert left == {2, 4, 5}, "step 4 may still get a manifest"
    monkeypatch.setattr("ddpjob_trainer.snapshots.storage.cleanup.STALE_SECONDS", -1.0)
    snapshots.save(6, **after(6).parts(), wait=True)
    left = {int(name[5:17]) for name in names(uri) if name.startswith("step-")}
    assert left == {2, 5, 6}
