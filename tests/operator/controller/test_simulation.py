"""Anything happens in any order, and two operators write: the job trains again, and ends well.

Each seed ends with a check from wherever the job has got to. DDPJOB_SIMULATIONS sets how many seeds
are tried, DDPJOB_STEPS how long each is; `make soak` tries 200 of 50 steps.
"""

from __future__ import annotations

import os

import pytest

from support.reconciling.simulation import simulate

STEPS = int(os.environ.get("DDPJOB_STEPS", "15"))
SEEDS = int(os.environ.get("DDPJOB_SIMULATIONS", "10"))


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_a_job_trains_again_after_anything_under_two_operators(seed: int) -> None:
    simulate(seed, STEPS)
