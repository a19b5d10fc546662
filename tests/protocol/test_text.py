"""Words for messages that people read."""

from __future__ import annotations

import pytest

from ddpjob_protocol.text import some


@pytest.mark.parametrize(
    ("names", "text"),
    [
        pytest.param([], "", id="none"),
        pytest.param(["a"], "a", id="one"),
        pytest.param(["a", "b"], "a, b", id="as_many_as_fit"),
        pytest.param([0, 1, 2], "0, 1 and 1 more", id="numbers"),
        pytest.param(["a", "b", "c", "d"], "a, b and 2 more", id="the_others_are_counted"),
    ],
)
def test_some(names: list[object], text: str) -> None:
    assert some(names, 2) == text
