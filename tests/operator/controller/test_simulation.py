"""Anything happens in any order, and two operators write: the job trains again, and ends well.

Each seed ends with a check from wherever the job has got to. DDPJOB_SIMULATIONS sets how many seeds
are tried, DDPJOB_STEPS how long each is; `make soak` tries 200 of 50 steps.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from support.reconciling.faults import FAULTS_OF_EVENTS
from support.reconciling.happenings import HAPPENINGS
from support.reconciling.simulation import name_of, simulate

STEPS = int(os.environ.get("DDPJOB_STEPS", "15"))
SEEDS = int(os.environ.get("DDPJOB_SIMULATIONS", "10"))

TROUBLES = {
    *map(name_of, HAPPENINGS),
    *(f"{fault} event" for fault in FAULTS_OF_EVENTS),
    *(f"{fault} request" for fault in ("lost", "late", "unsent")),
    *("409", "410", "429", "500", "503", "Complete", "Failed", "lost answer: PUT ddpjobs/status"),
}
RARE = {  # in `make soak`
    *("403", "422"),
    *(
        f"lost answer: {write}"
        for write in (
            "POST pods", "POST secrets", "POST services", "POST networkpolicies", "POST events",
            "DELETE pods", "PUT expected",
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_a_job_trains_again_after_anything_under_two_operators(seed: int) -> None:
    simulate(seed, STEPS)


def test_every_trouble_was_part_of_a_life() -> None:
    happened = Counter[str]()
    for seed in range(1, SEEDS + 1):
        happened += simulate(seed, STEPS)  # which is remembered
    expected = TROUBLES | RARE if SEEDS >= 100 else TROUBLES
    assert not expected - happened.keys()
