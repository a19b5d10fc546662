"""Stories: sequences of scenes that happen to one job.

Starting a job costs more than most of what can happen to it. With DDPJOB_SCENES=alone each scene
has a job of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pytest

ALONE = os.environ.get("DDPJOB_SCENES") == "alone"

Scene = Callable[..., Any]


class Subtests(Protocol):
    """Takes what becomes of each: pytest, or a test that runs beside another one."""

    def test(self, name: str, /) -> AbstractContextManager[None]:
        """A subtest."""


def stories(*told: Sequence[Scene]) -> pytest.MarkDecorator:
    """Make a test of each story, with the argument `story`; `-k SCENE` chooses the one it is in."""
    chosen = [(scene,) for story in told for scene in story] if ALONE else told
    names = ["-".join(scene.__name__ for scene in story) for story in chosen]
    return pytest.mark.parametrize("story", chosen, ids=names)


@contextlib.contextmanager
def happening(subtests: Subtests, scene: Scene) -> Iterator[None]:
    """Let a scene happen as a subtest; if it fails, the job is in no state for the next one."""
    done = False
    with subtests.test(scene.__name__):
        yield
        done = True
    assert done, f"{scene.__name__} failed, the story ends"
