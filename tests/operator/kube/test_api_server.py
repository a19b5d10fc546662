"""What the operator relies on in an API server, said of the one in memory.

tests/cluster/test_api_server.py says the same of a real one.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("support.any_api_server.answers")

from support.any_api_server.answers import *  # noqa: E402, F403
