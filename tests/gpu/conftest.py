"""The GPU that all tests of this folder share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def gpu() -> torch.device:
    """Return the first GPU; fail without one, as nothing here says anything then."""
    if not torch.cuda.is_available():
        pytest.fail(
            "tests/gpu needs a GPU of NVIDIA, and torch sees none: torch.cuda.is_available()"
        )
    return torch.device("cuda", 0)
