"""Jobs from their creation to their end, on the API server in memory.

tests/cluster/test_reconciler.py has the same stories on a real one.
"""

from __future__ import annotations

import pytest

from support.reconciling.ends import *  # noqa: F403
from support.reconciling.in_memory import play_in_memory
from support.reconciling.life import *  # noqa: F403
from support.reconciling.measured import *  # noqa: F403
from support.reconciling.policies import *  # noqa: F403
from support.reconciling.remembered import *  # noqa: F403
from support.reconciling.stage import Play
from support.reconciling.trouble import *  # noqa: F403


@pytest.fixture
def play() -> Play:
    """Lets a story happen."""
    return play_in_memory
