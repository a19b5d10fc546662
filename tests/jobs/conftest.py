"""Runs of simulated nodes share one process that has imported torch; some tests run two at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.beside import beside

__all__ = ["beside"]


@pytest.fixture(autouse=True, scope="session")
def _shared_fork_server(fork_server: Path) -> None:
    """Start it before the first test."""
