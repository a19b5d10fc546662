"""The operator's web page over HTTP: what it shows, to whom, and that it asks for nothing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest

from ddpjob_operator.api import constants
from ddpjob_operator.controller.process.health import serve
from ddpjob_operator.controller.web import pages
from ddpjob_operator.controller.web.copies import JobCopies
from ddpjob_operator.kube.interface import ApiError
from ddpjob_operator.local.simulated.rendezvous_process import free_port
from ddpjob_operator.report import job_list
from ddpjob_operator.report.job_list import ROWS, JobLine, list_main, select_page
from ddpjob_operator.request import Request
from support.fake_kube import FakeKube

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
HOSTILE = """</p><script>alert('1')</script><img src=//x.example onerror=alert(2)>"""
READ = {"GET", "WATCH"}


def ago(**since: float) -> str:
    return (NOW - timedelta(**since)).isoformat()


def job(name: str = "digits", namespace: str = "default", **status: Any) -> dict[str, Any]:
    """A job as the operator has written it."""
    return {
        "apiVersion": constants.API_VERSION,
        "kind": constants.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"image": "x", "command": ["torchrun", "train.py"], "replicas": 2},
        "status": status,
    }


def running(name: str = "digits", **more: Any) -> dict[str, Any]:
    membership = {"id": "1.1.2", "workers": ["a", "b"], "worldSize": 4, "since": ago(minutes=5),
                  "cause": "joined"}  # fmt: skip
    progress = {"step": 900, "totalSteps": 3000, "display": "900/3000", "stepsPerSecond": 2.0,
                "estimatedCompletion": (NOW + timedelta(minutes=12)).isoformat()}  # fmt: skip
    entry = {"membership": "1.1.2", "cause": "started", "since": ago(minutes=5), "workers": 2,
             "worldSize": 4, "message": "two workers", "firstStep": 1}  # fmt: skip
    given = {
        "state": "Running", "message": "2 workers train", "ready": "2/2", "startTime": ago(hours=1),
        "membership": membership, "progress": progress, "history": [entry],
        "restarts": {"total": 3, "infrastructure": 3}, **more,
    }  # fmt: skip
    return job(name, **given)


@dataclasses.dataclass
class Site:
    """The page, and who looks at it."""

    kube: FakeKube
    port: int
    session: aiohttp.ClientSession

    async def get(self, path: str = "/", host: str = "", method: str = "GET") -> tuple[int, str]:
        headers = {"Host": host} if host else {}
        url = f"http://127.0.0.1:{self.port}{path}"
        async with self.session.request(method, url, headers=headers) as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            return answer.status, await answer.text()

    async def until(self, text: str, path: str = "/") -> str:
        """The page once it has a text."""
        while text not in (found := (await self.get(path))[1]):
            pass  # the request let others work
        return found

    async def until_gone(self, path: str) -> None:
        while (await self.get(path))[0] != 404:
            pass


@contextlib.asynccontextmanager
async def site(
    *jobs: dict[str, Any], hosts: tuple[str, ...] = (), scopes: tuple[str, ...] = ("",)
) -> AsyncIterator[Site]:
    kube = FakeKube()
    for each in jobs:
        kube.add(each)
    app = pages.web_app(JobCopies(kube, scopes), hosts, lambda: NOW)
    async with asyncio.timeout(120):
        runner = await serve(app, port := free_port())
        try:
            async with aiohttp.ClientSession() as session:
                found = Site(kube, port, session)
                while (await found.get())[0] == 503:
                    pass
                yield found
        finally:
            await runner.cleanup()


def test_the_list_has_every_job_in_one_row() -> None:
    async def main() -> None:
        failed = job("old", state="Failed", message="out of memory", ready="-")
        async with site(running(), failed, job("new")) as here:
            status, text = await here.get()
            assert status == 200
            assert "3 jobs: 1 Failed, 1 Pending, 1 Running" in text
            row = text.partition('href="jobs/default/digits/"')[2].partition("</tr>")[0]
            for cell in ("Running", "2/2", ">4<", "900/3000", "12m", ">3<", "2 workers train"):
                assert cell in row
            assert text.index("jobs/default/new/") < text.index("jobs/default/old/")
            data = json.loads((await here.get("/run.json"))[1])
            assert data["state"] == "3 jobs: 1 Failed, 1 Pending, 1 Running"
            assert data["main"] in text
            assert f"<title>{data['title']}</title>" in text

    asyncio.run(main())


def test_a_jobs_page_is_its_report_and_leads_back() -> None:
    async def main() -> None:
        async with site(running()) as here:
            status, text = await here.get("/jobs/default/digits/")
            assert status == 200
            assert "DDPJob default/digits" in text
            assert "two workers" in text
            assert 'href="../../../"' in text
            data = json.loads((await here.get("/jobs/default/digits/run.json"))[1])
            assert data["state"] == "Running: membership 1, world size 4"
            assert data["main"] in text
            assert f"<title>{data['title']}</title>" in text

    asyncio.run(main())


def test_pages_follow_the_jobs_and_send_no_request() -> None:
    async def main() -> None:
        async with site(running()) as here:
            here.kube.add(running("second"))
            await here.until("jobs/default/second/")
            before = len(here.kube.calls)
            for _ in range(20):
                await here.get()
                await here.get("/jobs/default/second/")
            assert len(here.kube.calls) == before
            assert {method for method, _ in here.kube.calls} <= READ

    asyncio.run(main())


def test_a_deleted_job_has_no_page() -> None:
    async def main() -> None:
        async with site(running()) as here:
            path = f"/apis/{constants.API_VERSION}/namespaces/default/{constants.PLURAL}/digits"
            await here.kube.send(Request("DELETE", path))
            await here.until_gone("/jobs/default/digits/")
            assert "There are no jobs." in (await here.get())[1]

    asyncio.run(main())


def test_jobs_of_the_watched_namespaces_only() -> None:
    async def main() -> None:
        jobs = [job(namespace=each) for each in ("a", "b", "c")]
        async with site(*jobs, scopes=("/namespaces/a", "/namespaces/b")) as here:
            await here.until("2 jobs")
            assert (await here.get("/jobs/c/digits/"))[0] == 404

    asyncio.run(main())


def test_texts_of_a_job_are_not_markup() -> None:
    progress = {"step": 1, "display": HOSTILE, "metrics": {HOSTILE: 1.0}}
    warning = {"reason": HOSTILE, "message": HOSTILE, "worker": HOSTILE, "since": ago(minutes=1)}
    entry = {"membership": HOSTILE, "cause": HOSTILE, "message": HOSTILE, "ended": [HOSTILE],
             "since": ago(minutes=2), "workers": 1, "worldSize": 1}  # fmt: skip
    bad = running(
        state=HOSTILE, message=HOSTILE, ready=HOSTILE, progress=progress, warnings=[warning],
        history=[entry],
    )  # fmt: skip

    async def main() -> None:
        async with site(bad) as here:
            for path in ("/", "/jobs/default/digits/"):
                text = (await here.get(path))[1]
                assert "&lt;script&gt;" in text
                assert "alert" in text
                assert text.count("<script>") == 1, "its own"
                assert "<img" not in text
            status, text = await here.get("/jobs/default/%3Cscript%3E/")
            assert (status, "<" in text) == (404, False)

    asyncio.run(main())
    line = JobLine(HOSTILE, HOSTILE, None, HOSTILE, HOSTILE, None, HOSTILE, None, 0, HOSTILE)
    found = select_page([line], 1, HOSTILE)
    assert found is not None
    main_part = list_main(found, "", NOW)
    assert "<script" not in main_part
    assert "<img" not in main_part


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8081", 200), ("127.0.0.1", 200), ("[::1]:8081", 200), ("10.0.0.7:8081", 200),
        ("Jobs.example.com", 200), ("evil.example", 421), ("localhost.evil.example:8081", 421),
        ("[", 421), ("127.0.0.1.evil.example", 421),
    ],
)  # fmt: skip
def test_pages_of_other_sites_cannot_read_it(host: str, status: int) -> None:
    async def main() -> None:
        async with site(running(), hosts=("jobs.example.com",)) as here:
            for path in ("/", "/run.json", "/jobs/default/digits/"):
                found, text = await here.get(path, host)
                assert found == status
                assert ("digits" in text) == (status == 200)

    asyncio.run(main())


def test_only_get_is_answered() -> None:
    async def main() -> None:
        async with site(running()) as here:
            for method in ("HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
                for path in ("/", "/jobs/default/digits/"):
                    assert (await here.get(path, method=method))[0] == 405
            assert (await here.get("/metrics"))[0] == 404

    asyncio.run(main())


def test_a_long_list_has_pages() -> None:
    jobs = [job(f"job-{number:04d}") for number in range(ROWS + 1)]

    async def main() -> None:
        async with site(*jobs) as here:
            first = (await here.get())[1]
            assert first.count('href="jobs/') == ROWS
            second = (await here.get("/pages/2/"))[1]
            assert f'href="../../jobs/default/job-{ROWS:04d}/"' in second
            assert (await here.get("/pages/2/run.json"))[0] == 200
            for path in ("/pages/3/", "/pages/0/", "/pages/x/"):
                assert (await here.get(path))[0] == 404

    asyncio.run(main())


def test_a_status_of_another_version_is_shown_as_far_as_it_can_be_read() -> None:
    async def main() -> None:
        odd = running(history=[{"from": "another version"}], membership={"id": 7})
        async with site(odd) as here:
            assert "900/3000" in (await here.get())[1]
            assert (await here.get("/jobs/default/digits/"))[0] == 200

    asyncio.run(main())


def test_old_copies_say_so() -> None:
    async def main() -> None:
        async with site(running()) as here:
            error = ApiError(403, "Forbidden", "no more rights")
            here.kube.refuse("WATCH", constants.PLURAL, error)
            here.kube.refuse("GET", constants.PLURAL, error)
            here.kube.break_watches()
            assert "jobs/default/digits/" in await here.until("no more rights")

    asyncio.run(main())


def test_one_thread_makes_the_pages_and_few_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    go, threads = threading.Event(), set[threading.Thread]()
    real = job_list.select_page

    def slow(*arguments: Any) -> Any:
        threads.add(threading.current_thread())
        go.wait()
        return real(*arguments)

    asyncio.run(_few_wait(monkeypatch, slow, go))
    assert len(threads) == 1
    assert threading.main_thread() not in threads


async def _few_wait(monkeypatch: pytest.MonkeyPatch, slow: Any, go: threading.Event) -> None:
    async with site(running()) as here:
        monkeypatch.setattr(pages, "select_page", slow)
        asked = {asyncio.ensure_future(here.get()) for _ in range(pages.AT_ONCE + 4)}
        refused: set[int] = set()
        count = 0
        while count < 4:  # the others wait until `go`
            done, asked = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            refused |= {each.result()[0] for each in done}
            count += len(done)
        assert refused == {503}
        go.set()
        assert {(await each)[0] for each in asked} == {200}
