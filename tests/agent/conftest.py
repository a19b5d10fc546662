"""Agents and services of these tests are forked from one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.agents import zygote_ends


@pytest.fixture(autouse=True, scope="session")
def _zygote() -> Iterator[None]:
    """End it with the last test, if one has started it."""
    with zygote_ends():
        yield
