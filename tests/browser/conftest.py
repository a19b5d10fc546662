"""One Chromium for all tests of this folder, and the folder of their pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.driver import Browser, browser

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "build" / "screenshots"


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as window:
        yield window


@pytest.fixture(scope="session")
def pictures() -> Path:
    return PICTURES
