"""Files with keys: their readers return whole keys, or raise ValueError."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ddpjob_protocol.keys.credentials import KEY_BYTES, MAX_NAME, JobKey, WorkerKeys
from support.fuzzing import fuzz, measured, mutated, mutated_json
from support.keys import KEY

WORKER: dict[str, Any] = json.loads(KEY.worker_keys("digits-worker-000-1").to_text())
JOB: dict[str, Any] = json.loads(KEY.to_text())
texts = (mutated(mutated_json(st.sampled_from([WORKER, JOB])).map(json.dumps).map(str.encode))).map(
    lambda data: data.decode("utf-8", "replace")
)


@fuzz(200)
@given(texts)
@example(json.dumps({**WORKER, "worker": "\ud800"}))
@example(json.dumps({**WORKER, "worker": "w" * 300}))
@example(json.dumps({**WORKER, "key": "00" * 31}))
@example(json.dumps({**WORKER, "key": "\ud800" * 64}))
@example(json.dumps({"job": ["00" * 32]}))
@example("[" * 5000)
@example("9" * 5000)
def test_a_file_has_whole_keys_or_is_refused(text: str) -> None:
    def read() -> tuple[WorkerKeys | None, JobKey | None]:
        try:
            worker = WorkerKeys.parse(text)
        except ValueError as error:
            assert str(error)
            worker = None
        try:
            return worker, JobKey.parse(text)
        except ValueError:
            return worker, None

    worker, job = measured(read, len(text.encode()))
    if worker is not None:
        assert {len(worker.own.key), len(worker.peers.key)} == {KEY_BYTES}
        assert 0 < len(worker.own.name.encode("ascii")) <= MAX_NAME
        assert WorkerKeys.parse(worker.to_text()) == worker
    if job is not None:
        assert JobKey.parse(job.to_text()).fingerprint == job.fingerprint
