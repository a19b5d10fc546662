"""Several processes, one directory: one writes, all load the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddpjob_trainer import Snapshots
from support.forked import Forks
from trainer.runs import Run

SCRIPT = Path(__file__).with_name("two_ranks.py")


def both_ranks(forks: Forks, out: Path, kind: str, env: dict[str, str]) -> list[dict[str, Any]]:
    ranks = [forks.start(SCRIPT, rank, out, kind, env=env) for rank in range(2)]
    assert [rank.wait() for rank in ranks] == [0, 0]
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


def test_rank_0_writes_and_all_load_what_it_wrote(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    first, second = both_ranks(forks, tmp_path, "shared", python_env)
    check_memory(first, second)
    assert first == second
    assert first["names"] == ["step-000000000005"]
    assert first["step"] == 5
    assert first["bias"] == [1.0] * 4, "rank 0's"
    assert first["later"] == LATER
    unwrapped = Run()
    assert Snapshots(tmp_path / "shared").load(**unwrapped.parts()) is not None
    assert unwrapped.first.bias.tolist() == [1.0] * 4


def check_memory(*ranks: dict[str, Any]) -> None:
    """A load, of a file or of another rank's state, takes no second copy of the state."""
    for rank in ranks:
        share, is_right = rank.pop("memory")
        assert is_right
        assert share <= 1.1


LATER = ["step-000000000005", "step-000000000006"]


def test_directories_that_are_not_shared_hold_a_copy_each(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    """A rank without a snapshot gets it from another rank; then each directory has its own."""
    first, second = both_ranks(forks, tmp_path, "apart", python_env)
    check_memory(first, second)
    assert (first["names"], second["names"]) == (["step-000000000005"], [])
    for rank in (first, second):
        assert (rank["problem"], rank["step"], rank["bias"]) == (None, 5, [1.0] * 4)
    assert (first["later"], second["later"]) == (LATER, ["step-000000000006"])


def test_what_is_damaged_on_one_node_comes_from_another(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    first, second = both_ranks(forks, tmp_path, "one damaged", python_env)
    for rank in (first, second):
        assert (rank["problem"], rank["step"], rank["bias"]) == (None, 5, [1.0] * 4)


@pytest.mark.parametrize("where", ["numbers", "name", "disk"])
def test_a_rank_without_a_snapshot_does_not_resume_from_a_damaged_one(
    forks: Forks, tmp_path: Path, python_env: dict[str, str], where: str
) -> None:
    """Rank 0 sends what it reads, and learns only then that it is damaged."""
    first, second = both_ranks(forks, tmp_path, where, python_env)
    for rank in (first, second):
        assert (rank["problem"], rank["step"], rank["bias"]) == (None, 4, [1.0] * 4)


def test_every_rank_raises_if_no_snapshot_is_usable(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    first, second = both_ranks(forks, tmp_path, "damaged", python_env)
    assert "none is usable" in first["problem"]
    assert first["problem"] == second["problem"]


def test_without_a_process_group_the_environment_names_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    Snapshots(tmp_path).save(1, **Run().parts(), wait=True)
    assert list(tmp_path.iterdir()) == []
