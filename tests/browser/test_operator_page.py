"""The operator's web page in a real browser: the list of jobs, and the way to one and back."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from browser.driver import NARROW, Browser
from browser.looks import check, show
from browser.runs import LONG_NAME, TRACEBACK
from ddpjob_operator.api import constants
from ddpjob_operator.controller.process.health import serve
from ddpjob_operator.controller.web import pages
from ddpjob_operator.controller.web.copies import JobCopies
from ddpjob_operator.local.simulated.rendezvous_process import free_port
from support.fake_kube import FakeKube
from support.fake_objects import Objects

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
ENTER, TAB = "\ue007", "\ue004"


def ago(**since: float) -> str:
    return (NOW - timedelta(**since)).isoformat()


def job(name: str, namespace: str = "vision", **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": constants.API_VERSION,
        "kind": constants.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"image": "x", "command": ["torchrun", "train.py"], "replicas": 2},
        "status": status,
    }


def entry(number: int, cause: str, minutes: float, size: int, message: str) -> dict[str, Any]:
    return {"membership": f"1.1.{number}", "cause": cause, "since": ago(minutes=minutes),
            "workers": size, "worldSize": size, "message": message, "firstStep": 300 * number,
            "stallSeconds": 2.5, "resumedStep": 300 * number - 1}  # fmt: skip


def jobs() -> list[dict[str, Any]]:
    members = [f"resnet-worker-{n:03d}-1" for n in range(8)]
    history = [
        entry(1, "started", 55, 8, "8 workers"),
        entry(2, "lost", 30, 7, "lost resnet-worker-003-1: its node was preempted"),
        entry(3, "joined", 24, 8, "resnet-worker-003-2 has joined"),
    ]
    training: dict[str, Any] = {
        "startTime": ago(minutes=56),
        "membership": {"id": "1.1.3", "workers": members, "worldSize": 8,
                       "since": ago(minutes=24), "cause": "joined"},
        "progress": {"step": 1900, "totalSteps": 3000, "display": "1900/3000",
                     "stepsPerSecond": 0.6, "metrics": {"loss": 0.412, "accuracy": 0.887},
                     "estimatedCompletion": (NOW + timedelta(minutes=31)).isoformat()},
        "history": history,
        "restarts": {"total": 1, "infrastructure": 1},
    }  # fmt: skip
    return [
        job("resnet", state="Running", message="8 workers train", ready="8/8", **training),
        job("segmentation", state="Resizing", message="a worker joins after the next step",
            ready="5/6", **{**training, "restarts": {"total": 12, "infrastructure": 12}}),
        job("detection", state="Waiting", ready="1/4",
            message="1 of at least 2 workers is here; 0/14 nodes are available: insufficient nvidia.com/gpu"),
        job(LONG_NAME, "a-namespace-with-a-long-name-too", state="Stalled", ready="4/4",
            message="ranks 1 and 3 have done no step for 12 minutes; rank 1 is in all_reduce"),
        job("pretraining", "language", state="Failed", message=TRACEBACK, ready="0/32",
            completionTime=ago(hours=2), startTime=ago(hours=9),
            restarts={"total": 5, "application": 5}),
        job("tokenizer", "language", state="Complete", message="all processes ended with 0",
            completionTime=ago(days=1), startTime=ago(days=2)),
        job("new", "language"),
    ]  # fmt: skip


@contextlib.contextmanager
def site(kube: FakeKube) -> Iterator[str]:
    """The address of the page, served by a thread of its own."""
    port, ready = free_port(), threading.Event()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def main() -> None:
        runner = await serve(pages.web_app(JobCopies(kube, [""]), (), lambda: NOW), port)
        ready.set()
        await over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield f"http://127.0.0.1:{port}/"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    kube = FakeKube(Objects(now=lambda: NOW - timedelta(hours=9)))
    for each in jobs():
        kube.add(each)
    with site(kube) as found:
        yield found


def test_the_list_of_jobs(chromium: Browser, url: str, pictures: Path) -> None:
    ready = 'return document.querySelectorAll("#jobs tbody tr").length === 7'
    show(chromium, url, pictures, "jobs", ready, top=590)


def test_the_page_of_a_job(chromium: Browser, url: str, pictures: Path) -> None:
    show(chromium, f"{url}jobs/vision/resnet/", pictures, "job")
    show(chromium, f"{url}jobs/language/pretraining/", pictures, "job-failed")


def test_an_empty_list(chromium: Browser, pictures: Path) -> None:
    with site(FakeKube()) as empty:
        show(chromium, empty, pictures, "jobs-empty", 'return !!document.querySelector("main h1")')


def test_the_keyboard_leads_to_a_job_and_back(chromium: Browser, url: str) -> None:
    chromium.open(url, width=NARROW)
    focused = "return document.activeElement.textContent"
    for _ in range(20):
        if chromium.run(focused) == "resnet":
            break
        chromium.press(TAB)
    assert chromium.run(focused) == "resnet"
    chromium.press(ENTER)
    chromium.until('return document.title.startsWith("resnet")', "the page of the job")
    chromium.press(TAB)
    assert chromium.run(focused) == "All jobs"
    chromium.press(ENTER)
    chromium.until('return document.title.startsWith("DDPJobs")', "the list")
    check(chromium)
