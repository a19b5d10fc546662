"""Jobs from their creation to their end, on the API server in memory.

tests/cluster/test_reconciler.py has the same stories on a real one.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "support.reconciling.life",
    "support.reconciling.ends",
    "support.reconciling.measured",
    "support.reconciling.policies",
    "support.reconciling.remembered",
    "support.reconciling.trouble",
)

from support.reconciling.ends import *  # noqa: E402, F403
from support.reconciling.in_memory import play_in_memory  # noqa: E402
from support.reconciling.life import *  # noqa: E402, F403
from support.reconciling.measured import *  # noqa: E402, F403
from support.reconciling.policies import *  # noqa: E402, F403
from support.reconciling.remembered import *  # noqa: E402, F403
from support.reconciling.stage import Play  # noqa: E402
from support.reconciling.trouble import *  # noqa: E402, F403


@pytest.fixture
def play() -> Play:
    """Lets a story happen."""
    return play_in_memory
