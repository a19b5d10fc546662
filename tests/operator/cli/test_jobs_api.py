"""The watch of jobs, over a server whose lists and watches are given."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.jobs import jobs_api
from ddpjob_operator.cli.jobs.access import BrokenStreamError, Cluster, Object, RejectedError
from ddpjob_operator.cli.jobs.jobs_api import Change

Step = Object | CommandError


def make_job(name: str, version: int) -> Object:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


def make_page(version: int, *jobs: Object) -> Object:
    return {"metadata": {"resourceVersion": str(version)}, "items": list(jobs)}


class Feed(Cluster):
    """Answers lists and watches in turn; a watch without a next answer stops the test."""

    def __init__(self, pages: list[Step], watches: list[list[Step]]) -> None:
        self.pages, self.watches = pages, watches
        self.versions: list[str] = []  # at which the watches began

    def request(self, method: str, path: str, **given: Any) -> Any:
        found = self.pages.pop(0)
        if isinstance(found, CommandError):
            raise found
        return found

    def stream(
        self, path: str, query: Mapping[str, str], silence: float | None = None
    ) -> Iterator[bytes]:
        self.versions.append(query["resourceVersion"])
        for found in self.watches.pop(0):
            if isinstance(found, CommandError):
                raise found
            yield json.dumps(found).encode()


def event(kind: str, job: Object) -> Object:
    return {"type": kind, "object": job}


def seen(feed: Feed) -> list[tuple[Change, str, str]]:
    """The changes until the feed has no further answer."""
    found = []
    with contextlib.suppress(IndexError, RejectedError):
        for change, job in jobs_api.watch_jobs(feed, "team"):
            metadata = job["metadata"]
            found.append((change, metadata["name"], metadata["resourceVersion"]))
    return found


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_api, "PAUSE_SECONDS", 0)


def test_after_a_break_only_what_has_changed_is_seen() -> None:
    feed = Feed(
        [
            make_page(3, make_job("a", 1), make_job("b", 2), make_job("c", 3)),
            CommandError(ExitCode.UNREACHABLE, "away"),
            make_page(9, make_job("a", 4), make_job("b", 8)),
        ],
        [
            [event("MODIFIED", make_job("a", 4)), BrokenStreamError("host", OSError())],
            [event("DELETED", make_job("b", 9))],
        ],
    )
    assert seen(feed) == [
        (Change.SEEN, "a", "1"),
        (Change.SEEN, "b", "2"),
        (Change.SEEN, "c", "3"),
        (Change.SEEN, "a", "4"),
        (Change.DELETED, "c", "3"),
        (Change.SEEN, "b", "8"),
        (Change.DELETED, "b", "9"),
    ]
    assert feed.versions == ["3", "9"]


def test_an_expired_version_lists_again() -> None:
    expired = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
    feed = Feed([make_page(1), make_page(5, make_job("a", 5))], [[expired], []])
    assert seen(feed) == [(Change.SEEN, "a", "5")]


def test_a_lost_right_ends_the_watch() -> None:
    feed = Feed([make_page(1), RejectedError(403, "no")], [[]])
    assert seen(feed) == []
    assert feed.versions == ["1"]


def test_a_first_failure_ends_the_watch() -> None:
    feed = Feed([CommandError(ExitCode.UNREACHABLE, "away")], [])
    with pytest.raises(CommandError, match="away"):
        next(jobs_api.watch_jobs(feed, "team"))


def test_the_deadline_ends_the_watch() -> None:
    feed = Feed([make_page(1, make_job("a", 1))], [[event("MODIFIED", make_job("a", 2))] * 2])
    assert len(list(jobs_api.watch_jobs(feed, "team", deadline=-math.inf))) == 2
