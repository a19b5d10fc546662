"""What the operator relies on in an API server, said of the one in memory.

tests/cluster/test_api_server.py says the same of a real one.
"""

from __future__ import annotations

from support.any_api_server.answers import *  # noqa: F403
