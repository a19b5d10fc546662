"""The documentation's site in a real browser: `make docs` has built it."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from browser.driver import NARROW, Browser
from browser.looks import check_quiet

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
PAGES = ("index.html", "docs/install.html", "docs/ddpjob.html", "docs/adr/index.html")
TOO_WIDE = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
BROKEN_PICTURES = """
  return [...document.images].filter(each => !each.complete || !each.naturalWidth).map(e => e.src);
"""


class Quiet(SimpleHTTPRequestHandler):
    """Files of the site, without a log."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Print nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    assert (SITE / "index.html").is_file(), "run `make docs` first"
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=SITE)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_and_loads_nothing_from_elsewhere(
    chromium: Browser, site: str, pictures: Path, page: str
) -> None:
    name = "docs-" + page.removesuffix(".html").replace("/", "-")
    for look, width in (("", 1300), ("-narrow", NARROW)):
        chromium.open(site + page, width=width)
        chromium.until("return document.readyState === 'complete'", "it is loaded")
        chromium.picture(pictures / f"{name}{look}.png")
        assert chromium.run(TOO_WIDE) <= 0, "wider than the screen"
        assert chromium.run(BROKEN_PICTURES) == []
        check_quiet(chromium)


def test_no_page_shows_a_table_or_a_list_as_text(site: str) -> None:
    for path in sorted(SITE.rglob("*.html")):
        plain = re.sub(r"<(code|pre).*?</\1>", "", path.read_text(), flags=re.DOTALL)
        assert not re.findall(r".*\|---.*|<p>[^<]*\n- .*", plain), path


def test_the_search_finds_a_page(chromium: Browser, site: str, pictures: Path) -> None:
    chromium.open(f"{site}index.html", width=1300)
    chromium.run("""
      document.querySelector("[data-md-toggle=search]").click();
      const field = document.querySelector(".md-search__input");
      field.focus(); field.value = "orphanSeconds";
      field.dispatchEvent(new Event("input", {bubbles: true}));
      field.dispatchEvent(new Event("keyup", {bubbles: true}));
    """)
    found = chromium.until(
        "return document.querySelectorAll('.md-search-result__item').length", "results"
    )
    assert found > 0
    chromium.picture(pictures / "docs-search.png")
    check_quiet(chromium)
