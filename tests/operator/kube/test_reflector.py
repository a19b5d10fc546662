"""The reflector at the API server in memory, which works.

What happens otherwise is in test_reflector_faults.py; tests/cluster/test_api_server.py has a real
API server.
"""

from __future__ import annotations

from support.any_api_server.reflector import *  # noqa: F403
