"""What the tests of the shell stand on: an API server in memory, in fake time.

tests/cluster runs the tests that use `api` against a real one, with fixtures of the same names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

import fake_time
from ddpjob_operator.kube import Kube
from fake_kube import FakeKube

Api = Callable[[Callable[[Kube], Awaitable[None]]], None]


@pytest.fixture
def namespace() -> str:
    return "default"


@pytest.fixture
def api() -> Api:
    """Runs the body of a test with an API server."""

    def run(body: Callable[[Kube], Awaitable[None]]) -> None:
        async def main() -> None:
            await body(FakeKube())

        fake_time.run(main())

    return run
