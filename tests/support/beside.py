"""Async tests of a module, two at a time: while one waits, the next one's job already runs.

Each test stays one of its own, with its name and its outcome. A test that fails early does not
end the one beside it. The folder needs the fixture `beside`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

AT_ONCE = 2
BODY = "body_beside"

Body = Callable[..., Coroutine[None, None, None]]


def two_at_once(body: Body) -> Callable[..., None]:
    """Make a test of an async one. Its fixtures: `tmp_path`, `subtests`, and those of a module."""

    def wrapper(request: pytest.FixtureRequest, beside: Beside, **given: Any) -> None:
        beside.finish(request.node, given)

    own = inspect.signature(wrapper).parameters
    asked = inspect.signature(body).parameters
    named = [own["request"], own["beside"], *asked.values()]
    wrapper.__dict__.update(__signature__=inspect.Signature(named), **{BODY: body})
    wrapper.__name__, wrapper.__doc__ = body.__name__, body.__doc__
    return wrapper


class Told:
    """Subtests of a test that runs beside another one: their names and errors."""

    def __init__(self) -> None:
        self._outcomes: list[tuple[str, Exception | None]] = []

    @contextlib.contextmanager
    def test(self, name: str) -> Iterator[None]:
        """A subtest."""
        failed: Exception | None = None
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it is raised again for the test it belongs to
            failed = error
        self._outcomes.append((name, failed))

    def again(self, subtests: pytest.Subtests) -> None:
        """Report them to pytest."""
        for name, failed in self._outcomes:
            with subtests.test(name):
                if failed is not None:
                    raise failed


class Beside:
    """Runs the tests of a module that were chosen, in one thread: it also forks their processes."""

    def __init__(self, request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> None:
        self._request = request
        self._factory = factory
        self._items = [
            item
            for item in request.session.items
            if isinstance(item, pytest.Function)
            and item.path == request.path
            and hasattr(item.obj, BODY)
        ]
        self._running: dict[str, tuple[Future[None], Told]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def finish(self, item: pytest.Function, given: dict[str, Any]) -> None:
        """Start this test and the next one, unless they run already; return when this one is done."""
        here = self._items.index(item)
        for each in self._items[here : here + AT_ONCE]:
            if each.nodeid not in self._running:
                self._start(each, given if each is item else self._fixtures(each))
        future, told = self._running[item.nodeid]
        try:
            future.result()
        finally:
            if "subtests" in given:
                told.again(given["subtests"])

    def _start(self, item: pytest.Function, given: dict[str, Any]) -> None:
        told = Told()
        named = {**given, "subtests": told} if "subtests" in given else given
        running = asyncio.run_coroutine_threadsafe(getattr(item.obj, BODY)(**named), self._loop)
        self._running[item.nodeid] = running, told

    def _fixtures(self, item: pytest.Function) -> dict[str, Any]:
        chosen = item.callspec.params if hasattr(item, "callspec") else {}
        return {
            name: chosen[name] if name in chosen else self._fixture(name, item)
            for name in inspect.signature(getattr(item.obj, BODY)).parameters
        }

    def _fixture(self, name: str, item: pytest.Function) -> object:
        if name == "tmp_path":
            return self._factory.mktemp(item.originalname[:30])
        return None if name == "subtests" else self._request.getfixturevalue(name)

    def close(self) -> None:
        """End what still runs: the session was interrupted, or ends with the first failure."""
        asyncio.run_coroutine_threadsafe(_end_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_all() -> None:
    tasks: Sequence[asyncio.Task[Any]] = [*(asyncio.all_tasks() - {asyncio.current_task()})]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()


@pytest.fixture(scope="module")
def beside(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Beside]:
    """Run the tests of this module."""
    running = Beside(request, tmp_path_factory)
    try:
        yield running
    finally:
        running.close()
