"""The page of a run: what it shows, that it is one safe file, and that it stays small."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html.parser
import itertools
import re
from typing import Any

import pytest

from ddpjob_operator.report.charts import bands
from ddpjob_operator.report.page import live_page, report_page
from ddpjob_operator.report.run import Change, Hang, Note, Point, Run
from ddpjob_operator.report.style import STYLE
from ddpjob_operator.report.time_use import USES, time_use

HOSTILE = (
    """</style></title><script>alert('1')</script><img src="//x.example/y" onerror=alert(2)>"""
)
VOID = {"meta", "link", "img", "br", "line", "rect", "polyline"}


class Page(html.parser.HTMLParser):
    """Reads a page: its elements, the links that it loads, its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert not self.opened, f"not closed: {self.opened}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.opened.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def change(number: int, since: float, until: float, **fields: Any) -> Change:
    given = {"cause": "started" if number == 1 else "lost", "workers": 2, "world_size": 2, **fields}
    return Change(f"1.1.{number}", detail="", since=since, until=until, **given)


def two_memberships(**fields: Any) -> Run:
    """100 s: 10 of start, 40 of steps, 10 lost, 30 of steps of which 6 again, 10 after the last."""
    first = change(
        1, 1002, 1052, first_step=1, first_step_at=1010.0, last_step=41, last_step_at=1050.0,
        stall_seconds=8.0,
    )  # fmt: skip
    second = change(
        2, 1052, 1100, first_step=36, first_step_at=1060.0, last_step=66, last_step_at=1090.0,
        stall_seconds=10.0, resumed_step=35, repeated_steps=6, world_size=1,
    )  # fmt: skip
    run = Run(
        name="digits", source="test", state="Complete", message="", started=1000, now=1100,
        ended=True, changes=(first, second), step=66, total_steps=66,
    )  # fmt: skip
    return dataclasses.replace(run, **fields)


def test_time_is_divided_without_rest() -> None:
    found = time_use(two_memberships())
    assert found is not None
    expected = {"training": 64.0, "started": 10.0, "lost": 10.0, "repeated": 6.0, "end": 10.0}
    assert {use: s for use, s in found.seconds.items() if s} == pytest.approx(expected)
    assert found.goodput == pytest.approx(0.64)


def test_a_hang_costs_only_the_time_that_its_change_does_not() -> None:
    """One hang ends with a step; one lasts from the last step until after the change."""
    hangs = (Hang(1020.0, 1030.0, 11, "rank 1"), Hang(1050.0, 1060.0, 41, "rank 0"))
    found = time_use(two_memberships(hangs=hangs))
    assert found is not None
    assert found.seconds["hang"] == pytest.approx(10.0)
    assert found.seconds["lost"] == pytest.approx(10.0)
    assert sum(found.seconds.values()) == pytest.approx(100.0)


def test_a_run_without_steps_has_no_goodput() -> None:
    run = two_memberships(changes=(change(1, 1002, 1100),), step=None)
    assert time_use(run) is None
    assert "The script reports no steps" in report_page(run)


def test_an_empty_run_is_a_page() -> None:
    run = Run("new", "test", "Pending", "", started=5.0, now=5.0, ended=False)
    page = Page(report_page(run))
    assert "No membership was formed yet." in page.text
    assert page.all("svg") == []


def test_the_page_shows_the_run() -> None:
    notes = (Note(1050.0, "chaos", "kill on node-1"),)
    hangs = (Hang(1020.0, 1030.0, 11, "rank 1 is behind"),)
    text = Page(report_page(two_memberships(notes=notes, hangs=hangs))).text
    for part in ("digits", "54.0 %", "66 of 66", "step 35", "kill on node-1", "rank 1 is behind"):
        assert part in text


def test_hostile_texts_are_text() -> None:
    notes = (Note(None, HOSTILE, HOSTILE),)
    points = tuple(Point(1010.0 + n, n, 1.0, {HOSTILE: float(n)}) for n in range(3))
    hostile = change(
        1, 1002, 1052, cause=HOSTILE, first_step=1, first_step_at=1010.0, ended=(HOSTILE,)
    )
    run = two_memberships(
        name=HOSTILE, state=HOSTILE, message=HOSTILE, source=HOSTILE, notes=notes, points=points,
        changes=(hostile,), hangs=(Hang(1011.0, None, 1, HOSTILE),), metrics={HOSTILE: 1.0},
    )  # fmt: skip
    page = Page(report_page(run))
    assert not page.all("script")
    assert not page.all("img")
    assert len(page.all("style")) == 1
    assert "alert('1')" in page.text
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


@pytest.mark.parametrize("made", [report_page, live_page])
def test_the_page_loads_nothing_from_elsewhere(made: Any) -> None:
    text = made(two_memberships())
    page = Page(text)
    for _, attributes in page.elements:
        assert not {"src", "href", "srcset", "action", "data"} & attributes.keys()
    assert "url(" not in re.sub(r"url\(#\w+\)", "", text)
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv", "") == POLICY)
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert ("script-src" in policy) == (made is live_page)
    for inline in re.findall(r"<(?:style|script)>(.*?)</(?:style|script)>", text, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy, "else a browser ignores it"
    assert not any("style" in attributes for _, attributes in page.elements)


POLICY = "Content-Security-Policy"


def test_people_who_see_no_picture_have_words_and_tables() -> None:
    points = tuple(Point(1010.0 + n, n, 1.0, {"loss": 1 / (n + 1)}) for n in range(40))
    page = Page(report_page(two_memberships(points=points)))
    pictures = page.all("svg")
    assert len(pictures) == 5, "memberships, time, steps, rate, loss"
    ids = {attributes.get("id") for _, attributes in page.elements}
    for each in pictures:
        assert each["role"] == "img"
        assert set((each["aria-labelledby"] or "").split()) <= ids
    for region in [each for each in page.all("div") if each.get("role") == "region"]:
        assert region["tabindex"] == "0", "the keyboard scrolls a wide table"
    assert all(each.get("id") for each in page.all("summary")), "by which it keeps the focus"
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert all(new - old <= 1 for old, new in itertools.pairwise(levels))
    assert len({i for i in ids if i}) == len([i for _, a in page.elements if (i := a.get("id"))])


def test_each_color_of_a_chart_has_its_name_beside_it() -> None:
    page = Page(report_page(two_memberships()))
    drawn = {c for each in page.all("rect") if "band" in (c := each.get("class") or "")}
    named = {c for each in page.all("span") if "key" in (c := each.get("class") or "")}
    assert {each.removeprefix("band ") for each in drawn} == {
        each.removeprefix("key ") for each in named
    }
    for word in ("New steps", "Workers were lost", "started"):
        assert word in page.text


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_have_contrast_and_uses_have_different_colors(scheme: int) -> None:
    block = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[scheme]
    colors = dict(re.findall(r"--(\w+): (#\w{6})", block))
    for text, behind in [
        ("ink", "back"), ("soft", "back"), ("line", "back"), *(("ink", use) for use in USES),
    ]:  # fmt: skip
        assert contrast(colors[text], colors[behind]) >= 4.5, (text, behind)
    assert len({colors[use] for use in USES}) == len(USES)


def contrast(one: str, other: str) -> float:
    """The ratio that WCAG defines."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(
    ("seconds", "ticks"),
    [
        (0.2, "0:00"),
        (42, "0:00 0:10 0:20 0:30 0:40"),
        (3000, "0:00 10:00 20:00 30:00 40:00 50:00"),
        (5 * 86400, "0:00 24:00:00 48:00:00 72:00:00 96:00:00 120:00:00"),
    ],
)
def test_times_below_a_chart_are_round_on_a_clock(seconds: float, ticks: str) -> None:
    run = two_memberships(started=0, now=seconds, changes=(change(1, 0, seconds),))
    found = re.findall(r'class="below">([\d:]+)<', bands(run))
    assert " ".join(found) == ticks


def test_without_scripts_the_live_page_loads_again() -> None:
    text = live_page(two_memberships())
    assert '<noscript><meta http-equiv="refresh"' in text
    assert '<p role="status"></p>' in text


def test_a_long_run_is_a_small_page() -> None:
    points = tuple(
        Point(1000.0 + n / 100, n, 1.0, {f"metric{m}": float(n % 7) for m in range(20)})
        for n in range(10_000)
    )
    changes = tuple(change(n, 1000 + n / 10, 1000 + (n + 1) / 10) for n in range(1000))
    notes = tuple(Note(1000.0, "event", "x" * 10_000) for _ in range(500))
    text = report_page(two_memberships(points=points, changes=changes, notes=notes))
    assert len(text) < 400_000
    assert "14 more metrics not shown" in text


@pytest.mark.parametrize("values", [[0.0, 0.0], [1e308, -1e308], [1e-320, 2e-320], [5.0, 5.0]])
def test_odd_numbers_are_drawn(values: list[float]) -> None:
    points = tuple(Point(1010.0 + n, n, None, {"loss": value}) for n, value in enumerate(values))
    text = report_page(two_memberships(points=points))
    assert "nan" not in re.sub(r'<[^>]*class="[^"]*"', "", text).lower().replace("finance", "")
    assert "loss over steps" in text
