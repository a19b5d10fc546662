"""Jobs from their creation to their end, on the API server in memory.

tests/cluster/test_reconciler.py has the same stories on a real one.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("reconciling.life", "reconciling.ends", "reconciling.trouble")

from reconciling.ends import *  # noqa: E402, F403
from reconciling.in_memory import play_in_memory  # noqa: E402
from reconciling.life import *  # noqa: E402, F403
from reconciling.stage import Play  # noqa: E402
from reconciling.trouble import *  # noqa: E402, F403


@pytest.fixture
def play() -> Play:
    """Lets a story happen."""
    return play_in_memory
