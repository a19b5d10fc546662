"""Serves the list of jobs and the page of each, for reading only.

Pages are made from copies in memory, by one thread, and few may wait: no visitor costs a request to
the API server or delays a pass. There is no log-in. A request that names a host of another site is
refused, so that no page of that site reads these through its visitor's browser.
May not: change a job, or answer anything but GET.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from urllib.parse import urlsplit

from aiohttp import web

from ddpjob_operator.controller.web.copies import JobCopies, JobCopy
from ddpjob_operator.report.document import document, response_headers
from ddpjob_operator.report.from_job import run_of_status
from ddpjob_operator.report.job_list import list_main, list_state, select_page
from ddpjob_operator.report.page import live_data, live_page

AT_ONCE = 16  # pages that are made or wait
HOME = '<nav><a id="home" href="../../../">All jobs</a></nav>'

Answer = str | Mapping[str, str] | None  # a page, what a live page fetches, or nothing there
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def web_app(
    copies: JobCopies, hosts: Collection[str], now: Callable[[], datetime]
) -> web.Application:
    """Return an app; `hosts` may name it in requests, beside localhost and addresses."""
    pages = _Pages(copies, now)
    app = web.Application(middlewares=[_guard({*hosts, "localhost"})])
    for path, handler in (
        ("/", pages.answer_list),
        ("/{data:run.json}", pages.answer_list),
        (r"/pages/{page:\d{1,6}}/", pages.answer_list),
        (r"/pages/{page:\d{1,6}}/{data:run.json}", pages.answer_list),
        ("/jobs/{namespace}/{name}/", pages.answer_job),
        ("/jobs/{namespace}/{name}/{data:run.json}", pages.answer_job),
    ):
        app.router.add_get(path, handler, allow_head=False)
    app.cleanup_ctx.append(pages.following)
    return app


class _Pages:
    """The pages, and the thread that makes them."""

    def __init__(self, copies: JobCopies, now: Callable[[], datetime]) -> None:
        self._copies = copies
        self._now = now
        self._thread = ThreadPoolExecutor(1, "web")
        self._waiting = 0

    async def following(self, _: web.Application) -> AsyncIterator[None]:
        """Follow the jobs while the app runs."""
        async with self._copies.following():
            yield
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def answer_list(self, request: web.Request) -> web.Response:
        """Answer with a part of the list."""
        page = int(request.match_info.get("page", "1"))
        root = "../../" if "page" in request.match_info else ""
        problem = self._copies.problem
        make = functools.partial(
            _list, self._copies.all(), page, problem, root, self._now(), _only_data(request)
        )
        return await self._answer(make)

    async def answer_job(self, request: web.Request) -> web.Response:
        """Answer with the page of a job."""
        found = self._copies.get(request.match_info["namespace"], request.match_info["name"])
        if found is None:
            return await self._answer(lambda: None)
        return await self._answer(functools.partial(_job, found, self._now(), _only_data(request)))

    async def _answer(self, make: Callable[[], Answer]) -> web.Response:
        if not self._copies.listed:
            text = f"the jobs are not listed yet: {self._copies.problem}\n"
            return web.Response(status=503, text=text, headers={"Retry-After": "5"})
        if self._waiting >= AT_ONCE:
            text = "too many pages are asked for at the same time; try again\n"
            return web.Response(status=503, text=text, headers={"Retry-After": "5"})
        self._waiting += 1
        try:
            made = await asyncio.get_running_loop().run_in_executor(self._thread, make)
        finally:
            self._waiting -= 1
        if made is None:
            return web.Response(
                status=404, text="there is no such job or page; all jobs are at /\n"
            )
        if isinstance(made, Mapping):
            return web.json_response(made)
        return web.Response(text=made, content_type="text/html")


def _only_data(request: web.Request) -> bool:
    return "data" in request.match_info


def _list(
    copies: list[JobCopy], page: int, problem: str, root: str, now: datetime, data: bool
) -> Answer:
    jobs = select_page([copy.line for copy in copies], page, problem)
    if jobs is None:
        return None
    main, state = list_main(jobs, root, now), list_state(jobs)
    title = f"DDPJobs: {state}"
    if data:
        return {"title": title, "main": main, "state": state}
    return document(title, main, live=True)


def _job(copy: JobCopy, now: datetime, data: bool) -> Answer:
    run = run_of_status(copy.metadata, copy.read_status(), now.timestamp())
    if data:
        return live_data(run)
    return live_page(run, HOME)


def _guard(hosts: Collection[str]) -> web.middleware:  # type: ignore[valid-type]
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not _is_own(request.headers.get("Host", ""), hosts):
            text = "this name is not one of the page's: --web-host adds it\n"
            answer: web.StreamResponse = web.Response(status=421, text=text)
        else:
            try:
                answer = await handler(request)
            except web.HTTPException as error:
                answer = web.Response(status=error.status, text=f"{error.reason}\n")
        answer.headers.update(response_headers())
        return answer

    return guard


def _is_own(host: str, hosts: Collection[str]) -> bool:
    """Return whether a request names this page; a page of another site has a name, not an address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name.lower() in hosts:
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
