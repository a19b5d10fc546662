"""The one rule about fences: which snapshots do not count."""

from __future__ import annotations

import pytest

from ddpjob_trainer.snapshots.model.fencing import Fence, Origin, Owner, is_fenced

FIRST, SECOND = Owner("job", "1.1.1"), Owner("job", "1.1.2")
OTHER_JOB, PROCESS = Owner("another", "1.1.9"), Owner("", "1a2b")


@pytest.mark.parametrize(
    ("writer", "number", "fence", "expected"),
    [
        pytest.param(FIRST, 1, Fence(2, SECOND, 20), True, id="a later membership"),
        pytest.param(FIRST, 1, Fence(2, SECOND, 30), False, id="from this step"),
        pytest.param(SECOND, 1, Fence(2, FIRST, 20), False, id="an earlier one, in a race"),
        pytest.param(FIRST, 2, Fence(1, SECOND, 20), True, id="a later one, in that race"),
        pytest.param(FIRST, None, Fence(1, SECOND, 20), True, id="a later one, elsewhere"),
        pytest.param(SECOND, None, Fence(1, FIRST, 20), False, id="an earlier one, elsewhere"),
        pytest.param(FIRST, 1, Fence(2, FIRST, 20), True, id="its second resume"),
        pytest.param(FIRST, None, Fence(2, FIRST, 20), False, id="its resume, elsewhere"),
        pytest.param(FIRST, 1, Fence(2, OTHER_JOB, 20), True, id="another job"),
        pytest.param(FIRST, 2, Fence(1, OTHER_JOB, 20), False, id="another job, before"),
        pytest.param(FIRST, None, Fence(2, OTHER_JOB, 20), False, id="another job, elsewhere"),
        pytest.param(FIRST, 1, Fence(2, PROCESS, 20), True, id="a process"),
        pytest.param(PROCESS, 1, Fence(2, Owner("", "3c4d"), 20), True, id="of two processes"),
        pytest.param(PROCESS, None, Fence(2, FIRST, 20), False, id="a process, elsewhere"),
        pytest.param(None, 1, Fence(2, FIRST, 20), True, id="unknown"),
        pytest.param(None, None, Fence(2, FIRST, 20), False, id="unknown, elsewhere"),
    ],
)
def test_which_fence_is_later(
    writer: Owner | None, number: int | None, fence: Fence, expected: bool
) -> None:
    assert is_fenced(Origin(30, writer, number), [fence]) is expected
    assert not is_fenced(Origin(30, writer, number), [fence], chooser=fence.owner)


def test_only_the_last_fence_of_an_owner_binds() -> None:
    fences = [Fence(2, SECOND, 20), Fence(3, SECOND, 30)]
    assert is_fenced(Origin(30, FIRST, 1), fences[:1])
    assert not is_fenced(Origin(30, FIRST, 1), fences)
