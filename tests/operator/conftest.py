"""What the tests of the operator stand on: an API server in memory, in fake time.

tests/cluster runs the tests that use `api` against a real one, with fixtures of the same names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ddpjob_operator.kube.interface import ApiServer
from support import fake_time
from support.fake_kube import FakeKube
from support.objects import Api


@pytest.fixture
def namespace() -> str:
    return "default"


@pytest.fixture
def api() -> Api:
    """Runs the body of a test with an API server."""

    def run(body: Callable[[ApiServer], Awaitable[None]]) -> None:
        async def main() -> None:
            await body(FakeKube())

        fake_time.run(main())

    return run


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of this machine's own clusters, proxies and passwords."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
