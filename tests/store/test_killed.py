"""A writer that is killed at any moment of an upload leaves the older or the newer, whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from store.objects_of import bucket, names
from support.forked import Forks

SCRIPT = Path(__file__).with_name("crash_uploader.py")


@pytest.mark.parametrize(("doing", "before", "after"), [("fence", 8, 0), ("commit", 10, 8)])
def test_killed_at_any_request_and_between_pieces(
    forks: Forks, tmp_path: Path, uri: str, python_env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch, doing: str, before: int, after: int,
) -> None:  # fmt: skip
    told = tmp_path / "told"
    with told.open("w") as output:
        assert forks.start(SCRIPT, uri, doing, env=python_env, output=output).wait() == 0
    attempts = [json.loads(line) for line in told.read_text().splitlines()]
    assert attempts[0] == [1, False, [1], 1, True]
    newest, older, newer = 1, 0, 0
    for step, killed, announced, found, whole in attempts[1:]:
        assert whole
        assert found in (newest, step), "nothing that was there is lost"
        if announced:
            assert found == step
        older, newer = older + (found == newest), newer + (found == step)
        newest = found
        assert killed or step == len(attempts)
    assert older >= before, "moments before it is there"
    assert newer > after, "and after"
    last = len(attempts)
    assert bucket(uri).complete()[0] == last
    assert len(bucket(uri).all_steps()) == 2, "those that are kept"
    monkeypatch.setattr("ddpjob_trainer.snapshots.storage.cleanup.STALE_SECONDS", -1.0)
    bucket(uri, keep=2).prune()
    left = [name for name in names(uri) if name.startswith("step-")]
    assert len(left) == 4, "a day later there are no tensors without a manifest"
