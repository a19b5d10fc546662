"""The merge of pod templates; tests/cluster asks an API server about the same cases."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob_operator.api.spec.pod.strategic_merge import merge, unknown_directives, without_nulls
from support.merge_cases import CASES, ORIGINAL, Case

JSON = dict[str, Any]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_a_patch_changes_only_its_fields(case: Case) -> None:
    before = copy.deepcopy((ORIGINAL, case.patch))
    spec = without_nulls({**ORIGINAL["spec"], **case.changed})
    assert without_nulls(merge(ORIGINAL, case.patch)) == {**ORIGINAL, "spec": spec}
    assert (ORIGINAL, case.patch) == before


def test_a_null_stays_until_it_is_removed() -> None:
    """A default can respect a null: it stands for "none", not for "no opinion"."""
    merged = merge({"spec": {}}, {"spec": {"securityContext": {"fsGroup": None}}})
    assert merged == {"spec": {"securityContext": {"fsGroup": None}}}
    assert without_nulls(merged) == {"spec": {"securityContext": {}}}


def test_a_mapping_replaces_nothing_and_stays() -> None:
    patch = {"resources": {"$patch": "replace", "limits": {"cpu": "1"}}}
    assert merge({}, patch) == {"resources": {"limits": {"cpu": "1"}}}


def test_one_port_of_two_protocols_stays_two_ports() -> None:
    ports = [{"containerPort": 53, "protocol": each} for each in ("TCP", "UDP")]
    assert merge({}, {"ports": ports}) == {"ports": ports}


def test_unknown_directives_are_found() -> None:
    patch = {
        "$retainKeys": ["a"],
        "spec": {"containers": [{"$patch": "delete", "name": "a"}, {"$patch": "merge"}]},
    }
    assert list(unknown_directives(patch)) == ["$retainKeys", "$patch: merge"]


FIELDS = st.sampled_from(["containers", "env", "name", "value", "$patch", "spec", "tolerations"])
SCALARS = st.none() | st.integers(0, 2) | st.sampled_from(["a", "b", "delete", "replace"])
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=3),
    max_leaves=10,
)
MAPPINGS = st.dictionaries(FIELDS, ANYTHING, max_size=4)


@given(MAPPINGS, MAPPINGS)
def test_any_values_merge_and_stay_unchanged(original: JSON, patch: JSON) -> None:
    before = copy.deepcopy((original, patch))
    merged = merge(original, patch)
    assert (original, patch) == before
    assert "'$patch'" not in str(merge({}, patch))
    assert isinstance(merged, dict)


@given(MAPPINGS)
def test_nothing_changes_nothing(original: JSON) -> None:
    assert merge(original, {}) == original
