"""Targets: files of keys, replicas and scripts, and the reports of processes."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

from agent.fuzz.test_datagrams import ALIVE, RESUMED, SAVED, STEP, check_report
from agent.fuzz.test_failure_text import ERROR_FILE, LINES, failure_of
from agent.fuzz.test_failure_text import check as check_failure
from agent.fuzz.test_file_integrity import WHOLE, judge
from agent.fuzz.test_key_files import JOB, WORKER
from agent.fuzz.test_replica_lists import DIGEST, ENTRIES, MANIFEST, check
from ddpjob_agent.file_sync.decisions.admission import (
    MalformedError,
    RefusedError,
    admit,
    parse_parts,
)
from ddpjob_agent.file_sync.decisions.replica import digest_of
from ddpjob_agent.file_sync.disk.manifest import NAME, read_manifest
from ddpjob_agent.file_sync.disk.places import Place
from ddpjob_agent.worker.processes.progress_socket import ProgressSocket
from ddpjob_protocol.keys.credentials import KEY_BYTES, JobKey, WorkerKeys
from ddpjob_protocol.parsers.report_check import check_message
from fuzz.target import Form, Target, of_json, to_json
from support import fake_time

NAMES = ("s.pt", "s.pkl", "s.safetensors", "run/trainer_state.json", "_SUCCESS", "s.npz")


def read_keys(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        job = JobKey.parse(text)
        assert JobKey.parse(job.to_text()).fingerprint == job.fingerprint
    with contextlib.suppress(ValueError):
        worker = WorkerKeys.parse(text)
        assert WorkerKeys.parse(worker.to_text()) == worker
        assert len(worker.own.key) == len(worker.peers.key) == KEY_BYTES


def read_replicas(value: Any) -> None:
    found = parse_parts(value)
    digest_of(found)
    admit(found, ENTRIES)
    check(found)


def read_manifest_file(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, NAME).write_bytes(data)
        found, _ = read_manifest(Place(folder, ""), ENTRIES)
    check(found)


def read_script_file(data: bytes) -> None:
    name = NAMES[data[0] % len(NAMES)] if data else NAMES[0]
    said = judge(name, data[1:])
    assert len(said) <= 500
    assert said.isprintable()


def named(name: str, content: bytes) -> bytes:
    return bytes([NAMES.index(name)]) + content


def read_datagrams(data: bytes) -> None:
    fake_time.run(_hear(data.split(b"\n")))


async def _hear(datagrams: list[bytes]) -> None:
    sent: list[Any] = []
    refused: list[str] = []
    progress = ProgressSocket(sent.append, refused.append)
    progress._socket.close()
    for each in datagrams:
        progress._on_datagram(each)
    progress._flush_waiting()
    assert len(refused) <= 1
    for report in [*sent, *progress.last_messages()]:
        message = json.loads(
            json.dumps({"type": "report", "membership": "1.1.1", "report": report})
        )
        check_report(check_message(message)["report"])
    check_message(json.loads(json.dumps({"type": "beat", "processes": progress.alive()})))


def read_failure_text(data: bytes) -> None:
    said, _, recorded = data.partition(b"\0")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "0").mkdir()
        Path(folder, "0", "error.json").write_bytes(recorded)
        check_failure(failure_of(said, folder, 1))


TARGETS = (
    Target("keys", Form.JSON, read_keys, to_json(WORKER, JOB)),
    Target(
        "replicas",
        Form.JSON,
        of_json(read_replicas),
        to_json(
            [["snapshot.pt", 5, DIGEST, 0o644], ["state/a", 0, DIGEST, 0o755]],
            [["logs/x/y.txt", 1, DIGEST, 0o644], ["/data/own/z", 1, DIGEST, 0o600]],
        ),
        (MalformedError, RefusedError),
    ),
    Target(
        "manifests",
        Form.JSON,
        read_manifest_file,
        to_json(MANIFEST),
        (MalformedError, RefusedError),
    ),
    Target(
        "integrity",
        Form.BYTES,
        read_script_file,
        tuple(named(name, content) for name, content in WHOLE),
    ),
    Target(
        "datagrams",
        Form.BYTES,
        read_datagrams,
        (*to_json(STEP, SAVED, RESUMED, ALIVE), b"\n".join(to_json(STEP, ALIVE, STEP, SAVED))),
    ),
    Target(
        "failures",
        Form.BYTES,
        read_failure_text,
        (
            "\n".join(each for each in LINES if len(each) < 100).encode(),
            b"\n".join(each.encode() for each in LINES[:4]) + b"\0" + to_json(ERROR_FILE)[0],
        ),
    ),
)
