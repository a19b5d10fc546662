"""Async tests that run two at a time: each has its own outcome, and none is left running."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
FIXTURE = "from support.beside import beside\n"
MODULE = """
import asyncio
from pathlib import Path

import pytest

from support.beside import two_at_once

HERE = Path(__file__).parent


async def meet(own, other):
    (HERE / own).touch()
    while not (HERE / other).exists():
        await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def shared():
    return "one for all"


@two_at_once
async def test_first(tmp_path, shared):
    await meet("first", "second")
    assert shared == "one for all"


@pytest.mark.parametrize("word", ["said"])
@two_at_once
async def test_second(tmp_path, subtests, word, shared):
    await meet("second", "first")
    assert (word, shared, list(tmp_path.iterdir())) == ("said", "one for all", [])
    with subtests.test("a scene that passes"):
        pass
    with subtests.test("a scene that fails"):
        raise ValueError("in a scene")


@two_at_once
async def test_third(tmp_path):
    if (HERE / "third waits").exists():
        await meet("third", "fourth")
    raise ValueError("in the third")


@two_at_once
async def test_fourth(tmp_path):
    try:
        (HERE / "fourth").touch()
        await asyncio.Event().wait()
    finally:
        (HERE / "ended").touch()
"""


def run(folder: Path, *options: str) -> str:
    (folder / "conftest.py").write_text(FIXTURE)
    (folder / "test_module.py").write_text(MODULE)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--timeout=300"]
    done = subprocess.run(
        [*command, *options, "--rootdir", folder, folder],
        env={**os.environ, "PYTHONPATH": str(TESTS)}, cwd=folder, text=True,
        stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    return done.stdout


def test_each_has_its_own_outcome(tmp_path: Path) -> None:
    """The first two pass only beside each other."""
    told = run(tmp_path, "-k", "not fourth")
    assert "PASSED test_module.py::test_first" in told
    assert "SUBFAILED[a scene that fails] test_module.py::test_second[said]" in told
    assert "FAILED test_module.py::test_third - ValueError: in the third" in told


def test_none_outlives_the_session(tmp_path: Path) -> None:
    """The last one is begun ahead, and ended with the session."""
    (tmp_path / "third waits").touch()
    told = run(tmp_path, "-x", "-k", "third or fourth")
    assert "FAILED test_module.py::test_third - ValueError: in the third" in told
    assert "stopping after 1 failures" in told
    assert (tmp_path / "ended").exists()


def test_what_is_not_chosen_is_not_begun(tmp_path: Path) -> None:
    assert "ValueError: in the third" in run(tmp_path, "-k", "third")
    assert not (tmp_path / "fourth").exists()
