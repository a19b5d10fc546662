from __future__ import annotations

import operator
import sysconfig

import pytest

from ddpjob_operator.api import constants


def test_the_folder_operator_does_not_shadow_the_standard_library() -> None:
    assert operator.__file__ is not None
    assert operator.__file__.startswith(sysconfig.get_path("stdlib"))


def test_worker_names_sort_by_index() -> None:
    assert constants.worker_name("digits", "worker", 0, 1) == "digits-worker-000-1"
    listed = [constants.worker_name("digits", "worker", index, 1) for index in (2, 10, 100)]
    assert sorted(listed) == listed


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        pytest.param("digits-worker-002-13", ("worker", 2, 13), id="own"),
        pytest.param("digits-spot-t4-1000-1", ("spot-t4", 1000, 1), id="dash_in_group"),
        pytest.param("other-worker-002-13", None, id="another_job"),
        pytest.param("digits-rendezvous-1", None, id="rendezvous"),
    ],
)
def test_worker_names_are_read_back(name: str, parts: tuple[str, int, int] | None) -> None:
    assert constants.parse_worker_name("digits", name) == parts
