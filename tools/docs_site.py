"""Check and build the documentation: `python tools/docs_site.py [--check]`.

`--check` needs the standard library only. It finds links to files or headings that do not exist,
and pages that neither the navigation of mkdocs.yml nor docs/README.md names.
Without it, the pages and the files that they link to are copied to build/site-src, in the folders
of the repository, and mkdocs builds build/site from them; a warning is a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "build" / "site-src"
CONFIG = "mkdocs.yml"
INDEX = "docs/README.md"
STYLE = "docs/site.css"
DECISIONS = "docs/adr/"  # docs/adr/README.md lists them
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()([^()\s]+)(\))")
BLOCK = re.compile(r"\||(?:[-*+]|\d+\.) ")
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$", re.MULTILINE)
NAVIGATION = re.compile(r"^ *- +(?:[^:#\n]+: +)?(\S+\.md) *$", re.MULTILINE)


class Link(NamedTuple):
    """A link of a page; `target` is a path from the root, empty for a link of another site."""

    line: int
    text: str
    target: str
    anchor: str


def pages(root: Path) -> list[str]:
    """Return the paths of all pages: the root's, those of docs, and those of examples."""
    found = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("examples/**/README.md")]
    return sorted(path.relative_to(root).as_posix() for path in found)


def without_code(text: str) -> str:
    """Return a text whose code is blank, with the same lines."""
    text = FENCE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
    return CODE.sub(lambda found: " " * len(found.group()), text)


def links(page: str, text: str) -> Iterator[Link]:
    """Yield the links of a page."""
    plain = without_code(text)
    for found in LINK.finditer(plain):
        given = found[2]
        line = plain.count("\n", 0, found.start()) + 1
        if re.match(r"[a-z][a-z0-9+.-]*:", given):
            continue
        path, _, anchor = unquote(given).partition("#")
        folder = PurePosixPath(page).parent
        target = os.path.normpath(folder / path) if path else page
        yield Link(line, given, target, anchor)


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub and the site make them."""
    plain = FENCE.sub("", text)
    found: set[str] = set()
    counts: Counter[str] = Counter()
    for heading in HEADING.finditer(plain):
        words = LINK.sub(
            lambda link: link[0][link[0].index("[") + 1 : link[0].rindex("](")], heading[2]
        )
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        found.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return found


def check(root: Path) -> Iterator[str]:
    """Yield each fault of the pages and of the navigation."""
    texts = {page: (root / page).read_text(encoding="utf-8") for page in pages(root)}
    known = {page: anchors(text) for page, text in texts.items()}
    for page, text in texts.items():
        for link in links(page, text):
            place = f"{page}:{link.line}: {link.text}"
            if link.target.startswith("..") or not (root / link.target).exists():
                yield f"{place}: there is no {link.target}"
            elif link.anchor and link.anchor not in known.get(link.target, {link.anchor}):
                yield f"{place}: {link.target} has no heading #{link.anchor}"
    yield from _check_lists(root, texts)


def _check_lists(root: Path, texts: dict[str, str]) -> Iterator[str]:
    """Yield the pages that a list of pages lacks, or names without need."""
    wanted = {p for p in texts if p.startswith("docs/") and not p.startswith(DECISIONS)}
    wanted |= {f"{DECISIONS}README.md"}
    named = Counter(NAVIGATION.findall((root / CONFIG).read_text(encoding="utf-8")))
    for page, count in sorted(named.items()):
        if page not in texts:
            yield f"{CONFIG}: there is no page {page}"
        if count > 1:
            yield f"{CONFIG}: {page} is there {count} times"
    linked = {link.target for link in links(INDEX, texts[INDEX])}
    for page in sorted(wanted):
        if page not in named:
            yield f"{CONFIG}: the navigation lacks {page}"
        if page not in linked and page != INDEX:
            yield f"{INDEX}: no link to {page}"
    decisions = {p for p in texts if p.startswith(DECISIONS)} - {f"{DECISIONS}README.md"}
    listed = {
        link.target for link in links(f"{DECISIONS}README.md", texts[f"{DECISIONS}README.md"])
    }
    for page in sorted(decisions - listed):
        yield f"{DECISIONS}README.md: no link to {page}"


def stage(root: Path, source: Path) -> None:
    """Copy the pages and what they link to; a link to a folder becomes one to its page."""
    shutil.rmtree(source, ignore_errors=True)
    texts = {page: (root / page).read_text(encoding="utf-8") for page in pages(root)}
    for page, text in texts.items():
        for link in links(page, text):
            if (root / link.target).is_file() and link.target not in texts:
                _write(source / link.target, (root / link.target).read_bytes())
        _write(source / page, separated(_with_pages(root, page, text)).encode())
    if (root / STYLE).is_file():
        _write(source / STYLE, (root / STYLE).read_bytes())


def separated(text: str) -> str:
    """Return a text with an empty line around each list, table and block of code.

    GitHub needs none; the site's parser takes such a list for a part of the paragraph before it.
    """
    code = {
        number
        for found in FENCE.finditer(text)
        if not found[1]
        for number in range(
            text.count("\n", 0, found.start()), text.count("\n", 0, found.end()) + 1
        )
    }
    lines: list[str] = []
    kind = ""
    for number, line in enumerate(text.split("\n")):
        before = kind
        if number in code:
            kind = "code"
        elif block := BLOCK.match(line):
            kind = "table" if block[0] == "|" else "list"
        elif not line.startswith(" "):
            kind = "text" if line else ""
        goes_on = before == "list" and kind == "text"  # the rest of its last entry
        if before and kind and kind != before and not goes_on:
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _with_pages(root: Path, page: str, text: str) -> str:
    """Return the text of a page with links to pages in the place of links to folders."""
    plain = without_code(text)
    parts, end = [], 0
    for found in LINK.finditer(plain):
        given = found[2]
        folder = os.path.normpath(PurePosixPath(page).parent / given.partition("#")[0])
        if ":" in given or given.startswith("#") or not (root / folder).is_dir():
            continue
        index = next((n for n in ("README.md",) if (root / folder / n).is_file()), None)
        replaced = f"{given.rstrip('/')}/{index}" if index else "#"
        parts += [text[end : found.start(2)], replaced]
        end = found.end(2)
    return "".join([*parts, text[end:]])


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def main() -> None:
    faults = list(check(ROOT))
    for fault in faults:
        print(fault)
    if faults:
        sys.exit(f"docs: {len(faults)} faults")
    if "--check" in sys.argv[1:]:
        print("docs: all links and lists are whole")
        return
    stage(ROOT, SOURCE)
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--config-file",
        CONFIG,
    ]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement
    done = subprocess.run(command, cwd=ROOT, env=quiet, check=False)
    if done.returncode:
        sys.exit("docs: mkdocs failed; if it is missing, run `make setup`")
    print("docs: build/site/index.html")


if __name__ == "__main__":
    main()
