"""Ranks that hold parts of a model put them into a bucket, and read ranges of the objects."""

from __future__ import annotations

import json
from pathlib import Path

from ddpjob_trainer import Snapshots
from support.forked import Forks
from trainer.snapshots.sharded.ranks import Training

SCRIPT = Path(__file__).with_name("two_sharded.py")


def test_each_rank_puts_and_reads_what_it_holds(
    forks: Forks, uri: str, tmp_path: Path, python_env: dict[str, str]
) -> None:
    ranks = [forks.start(SCRIPT, rank, tmp_path, uri, env=python_env) for rank in range(2)]
    assert [rank.wait() for rank in ranks] == [0, 0]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for seen in (first, second):
        assert seen["nothing"]
        assert seen["loaded"] == [2, first["loss 2"]]
        assert seen["damaged"] == [1, first["loss 1"]], "the one before, on both ranks"
        assert "FencedError: membership 1.2.2 has resumed from step 1" in seen["fenced"]
    assert not any("manifest" in name for name in first["later"])
    alone = Training(7, "plain")
    loaded = Snapshots(uri).load(**alone.parts)
    assert loaded is not None
    assert loaded.step == 1
    assert abs(alone.loss() - first["loss 1"]) < 1e-5
