"""What holds for every page that a browser shows: it fits, it loads nothing, it says all in words."""

from __future__ import annotations

from pathlib import Path

from browser.driver import LOOPBACK, NARROW, Browser

TOO_WIDE = """
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) return ["a text"];
  return [...document.querySelectorAll("body *")]
    .filter(each => !each.closest(".wide") || each.matches(".wide"))
    .filter(each => each.getBoundingClientRect().right > width + 1)
    .map(each => each.outerHTML.slice(0, 120));
"""
OVERLAPPING = """
  return [...document.querySelectorAll("h1, h2, h3, p, dt, dd, summary")]
    .filter(each => each.scrollWidth > each.clientWidth && !each.matches("[role=status]"))
    .map(each => each.textContent);
"""
BROKEN_WORDS = """
  const words = [];
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.parentElement.closest("svg")) continue;
    for (const found of node.textContent.matchAll(/\\S+/g)) {
      if (found[0].length > 20 || /[-\\/]/.test(found[0])) continue;
      const range = document.createRange();
      range.setStart(node, found.index);
      range.setEnd(node, found.index + found[0].length);
      const lines = new Set([...range.getClientRects()].map(each => Math.round(each.top)));
      if (lines.size > 1) words.push(found[0]);
    }
  }
  return words;
"""
WITHOUT_ID = """
  return [...document.querySelectorAll("main a, main summary, main [tabindex]")]
    .filter(each => !each.id).map(each => each.outerHTML.slice(0, 120));
"""
UNNAMED = """
  return [...document.querySelectorAll("svg, [role=region], a, summary")]
    .filter(each => {
      const ids = (each.getAttribute("aria-labelledby") || "").split(" ").filter(Boolean);
      const named = ids.map(id => document.getElementById(id)?.textContent || "").join("");
      return !(named || each.textContent).trim();
    }).map(each => each.outerHTML.slice(0, 120));
"""


def check(browser: Browser) -> None:
    """Fail if the page that is shown does not fit, breaks words, or hides something from readers."""
    assert browser.run(TOO_WIDE) == []
    assert browser.run(OVERLAPPING) == []
    assert browser.run(BROKEN_WORDS) == []
    assert browser.run(WITHOUT_ID) == [], "these lose the focus when the page renews itself"
    assert browser.run(UNNAMED) == []
    check_quiet(browser)


def check_quiet(browser: Browser) -> None:
    """Fail if the page has loaded something from elsewhere, or the console has a line."""
    assert browser.logged() == []
    assert browser.loaded() <= {*LOOPBACK, "file", "data"}


def show(
    browser: Browser,
    url: str,
    pictures: Path,
    name: str,
    ready: str = "return true",
    top: int | None = None,
) -> None:
    """Take pictures of a page, wide, dark and narrow, and check each; `top`: one of its top, too."""
    for look, options in {
        "": {}, "-dark": {"dark": True}, "-narrow": {"width": NARROW},
    }.items():  # fmt: skip
        browser.open(url, **options)  # type: ignore[arg-type]
        browser.until(ready, f"{name} is ready")
        browser.picture(pictures / f"{name}{look}.png")
        if top and not look:
            browser.picture(pictures / f"{name}-top.png", height=top)
        check(browser)
