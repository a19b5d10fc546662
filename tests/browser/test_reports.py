"""The page of a run in a real browser: while it recovers, and as a file; and odd runs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from browser import runs
from browser.driver import NARROW, Browser, wait
from browser.looks import check_quiet, show
from ddpjob_operator.report.page import report_page
from ddpjob_operator.report.run import Run

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "examples" / "digits" / "ddpjob.yaml"
DDPJOB = str(Path(sys.executable).with_name("ddpjob"))
STEP = """
  const cell = [...document.querySelectorAll("dt")].find(each => each.textContent === "Step");
  return parseInt(cell.nextElementSibling.textContent) || 0;
"""
LOST = """return [...document.querySelectorAll("#memberships td:nth-child(2)")]
  .some(each => each.textContent === "lost")"""
ASKED = "return performance.getEntriesByType('resource').length"
STATUS = 'return document.querySelector("[role=status]").textContent'


class LiveRun:
    """The digits example with a lost and an added node, and its page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "output.txt"
        command = [
            DDPJOB, "run", "--local", str(JOB), "--state-dir", str(folder / "state"), "--web",
            "--chaos", "kill=30%,join=60%",
        ]  # fmt: skip
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        self.url = str(wait(self._address, "the address of the page", self.log.read_text)[1])

    def _address(self) -> re.Match[str] | None:
        return re.search(r"^page of the run: (http\S+)$", self.log.read_text(), re.MULTILINE)

    def report(self) -> Path:
        page = self.folder / "digits.html"
        source = str(self.folder / "state" / "default" / "digits")
        subprocess.run([DDPJOB, "report", source, "-o", str(page)], check=True)
        return page


@pytest.fixture(scope="module")
def live_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    run = LiveRun(tmp_path_factory.mktemp("run"))
    try:
        yield run
    finally:
        run.process.terminate()
        run.process.wait()


def test_the_page_follows_a_recovery_and_stays(
    chromium: Browser, live_run: LiveRun, pictures: Path
) -> None:
    chromium.open(live_run.url, width=NARROW)
    chromium.until(STEP, "steps")
    chromium.until('return document.title.startsWith("digits: Running")', "the title follows")
    place = chromium.run("""
      window.kept = document.querySelector("main");
      const table = document.getElementById("memberships");
      table.focus(); table.scrollLeft = 60; scrollTo(0, 1100); return scrollY;
    """)
    chromium.until(LOST, "the loss is on the page")
    chromium.picture(pictures / "live-recovery.png")
    before = chromium.run(STEP)
    chromium.until(f"{STEP.replace('return', 'return ' + str(before) + ' <')}", "steps go on")
    kept = chromium.run("""
      const table = document.getElementById("memberships");
      return [window.kept === document.querySelector("main"), document.activeElement === table,
        table.scrollLeft, scrollY];
    """)
    assert kept == [True, True, 60, place]
    chromium.run("getSelection().selectAllChildren(document.querySelector('h1'))")
    asked = int(chromium.run(ASKED))
    chromium.until(f"{ASKED} > {asked + 1}", "the page asked for news")
    assert chromium.run("return getSelection().toString()") == "digits"
    chromium.run("getSelection().removeAllRanges()")
    check_quiet(chromium)
    assert live_run.process.wait(600) == 0, live_run.log.read_text()
    chromium.until("return document.title === 'digits: Complete'", "the end is on the page")
    chromium.until(f"{STATUS}.startsWith('The run has ended')", "a word about the end")


def test_the_report_of_a_run(chromium: Browser, live_run: LiveRun, pictures: Path) -> None:
    assert live_run.process.wait(600) == 0, live_run.log.read_text()
    show(chromium, live_run.report().as_uri(), pictures, "report", top=1000)
    assert "lost" in chromium.text()


@pytest.mark.parametrize("made", [runs.empty, runs.large, runs.failed])
def test_odd_runs(
    chromium: Browser, tmp_path: Path, pictures: Path, made: Callable[[], Run]
) -> None:
    page = tmp_path / "page.html"
    page.write_text(report_page(made()))
    show(chromium, page.as_uri(), pictures, f"report-{made.__name__}")
