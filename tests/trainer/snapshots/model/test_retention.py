"""The snapshots that one storage keeps."""

from __future__ import annotations

import pytest

from ddpjob_trainer.snapshots.model.retention import steps_to_delete


@pytest.mark.parametrize(
    ("complete", "newest", "keep", "gone"),
    [
        pytest.param([9, 6, 3], 9, 2, [3], id="the oldest"),
        pytest.param([9, 6, 3], 9, 3, [], id="not more than that"),
        pytest.param([9, 6, 3], 9, 1, [6, 3], id="all but the newest"),
        pytest.param([9, 6, 3], 3, 1, [9, 6], id="never what was just saved"),
        pytest.param([9, 6, 3], 3, 2, [6], id="later ones before older ones"),
        pytest.param([], 1, 1, [], id="none"),
    ],
)
def test_what_is_more_than_is_to_stay(
    complete: list[int], newest: int, keep: int, gone: list[int]
) -> None:
    assert steps_to_delete(complete, newest, keep) == gone
