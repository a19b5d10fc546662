"""Each sample of each epoch once, by a ledger, over random histories of memberships.

DDPJOB_HISTORIES sets how many are tried; `make soak` tries 200.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.histories import BATCH, EPOCHS, SAMPLES, SNAPSHOT_EVERY, Count, History, draw, play
from trainer.data.playing import Live, Saving

SEEDS = range(int(os.environ.get("DDPJOB_HISTORIES", "12")))
FETCHING_AHEAD = (28,)  # few ranks: each loader forks this process
ONCE = Count(lost=0, twice=0, again=0, steps_again=0)
SHORT_BY = BATCH - SAMPLES % BATCH  # the last batch of an epoch


@pytest.fixture(autouse=True)
def ranks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the environment, which is as before afterwards."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")


def steps_to_repeat(history: History) -> int:
    """Return the steps since the last snapshot, summed over the unplanned changes."""
    done = saved = total = 0
    for change in history.changes:
        newest = (done + change.steps) // SNAPSHOT_EVERY * SNAPSHOT_EVERY
        done, saved = done + change.steps, max(saved, newest)
        if change.planned:
            saved = done
        total += done - saved
        done = saved
    return total


@pytest.mark.parametrize("seed", SEEDS)
def test_once_where_processes_stay(seed: int) -> None:
    assert play(draw(seed), Live(workers=0)) == ONCE


@pytest.mark.parametrize("seed", SEEDS)
def test_once_where_changes_are_planned(seed: int, tmp_path: Path) -> None:
    assert play(draw(seed).when_planned(), Saving(0, tmp_path)) == ONCE


@pytest.mark.parametrize("seed", SEEDS)
def test_an_unplanned_loss_repeats_the_steps_since_the_snapshot(seed: int, tmp_path: Path) -> None:
    """With the samples that they had, of which the last batch of an epoch has fewer."""
    history = draw(seed)
    count = play(history, Saving(0, tmp_path))
    assert (count.lost, count.twice) == (0, 0)
    assert count.steps_again == steps_to_repeat(history)
    assert BATCH * count.steps_again - count.again in {n * SHORT_BY for n in range(EPOCHS + 1)}


@pytest.mark.parametrize("seed", FETCHING_AHEAD)
def test_the_same_where_loaders_fetch_ahead(seed: int, tmp_path: Path) -> None:
    history = draw(seed)
    assert play(history, Live(workers=2)) == ONCE
    count = play(history, Saving(2, tmp_path))
    assert (count.lost, count.twice, count.steps_again) == (0, 0, steps_to_repeat(history))
