"""Small objects for tests of the operator, and waiting for what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ddpjob_operator.kube.interface import ApiServer

PATIENCE_SECONDS = 120.0  # generous: a real API server may be slow
JOB_LABEL = "ddpjob.io/job"

# Runs the body of a test with an API server.
Api = Callable[[Callable[[ApiServer], Awaitable[None]]], None]


def pod(name: str, job: str = "digits", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {JOB_LABEL: job}, **metadata},
        "spec": {"containers": [{"name": "trainer", "image": "trainer:1"}]},
    }


def job(name: str, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "ddpjob.io/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": name, **metadata},
        "spec": {"image": "trainer:1", "command": ["torchrun", "train.py"], "replicas": 2},
    }


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait until it holds."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"never: {what}"
        await asyncio.sleep(0.01)
