"""The documentation: no dead link, no page that no list names."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "tools" / "docs_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_site"] = module
    spec.loader.exec_module(module)
    return module


TOOL = load_tool()
PAGES = {
    "mkdocs.yml": "nav:\n- README.md\n- Guides:\n  - docs/README.md\n  - One: docs/one.md\n"
    "  - docs/adr/README.md\n",
    "README.md": "# Top\n",
    "docs/README.md": "[one](one.md), [top](../README.md#top), [decisions](adr/README.md)\n",
    "docs/one.md": "# One `--page`, (done)\n## Twice\n## Twice\n[b](#twice-1) [c](#one---page-done)\n",
    "docs/adr/README.md": "[0001](0001-x.md)\n",
    "docs/adr/0001-x.md": "# X\n",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name, text in PAGES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_documentation_is_whole() -> None:
    assert list(TOOL.check(ROOT)) == []


@pytest.mark.parametrize(
    ("page", "added", "fault"),
    [
        ("README.md", "", ""),
        ("README.md", "```\n[x](gone.md)\n```\n`[x](gone.md)` https://a.example/b", ""),
        ("README.md", "[x](https://a.example/b) [y](mailto:a@b.example)", ""),
        ("README.md", "[x](gone.md)", "README.md:2: gone.md: there is no gone.md"),
        ("docs/one.md", "![x](p.svg)", "docs/one.md:5: p.svg: there is no docs/p.svg"),
        ("docs/one.md", "[x](../../y.md)", "docs/one.md:5: ../../y.md: there is no ../y.md"),
        ("docs/one.md", "[x](#gone)", "docs/one.md:5: #gone: docs/one.md has no heading #gone"),
        ("docs/one.md", "[a [b]](#gone)", "docs/one.md:5: #gone: docs/one.md has no heading #gone"),
        (
            "README.md",
            "[x](docs/one.md#two)",
            "README.md:2: docs/one.md#two: docs/one.md has no heading #two",
        ),
        ("mkdocs.yml", "- docs/gone.md", "mkdocs.yml: there is no page docs/gone.md"),
        ("mkdocs.yml", "- docs/one.md", "mkdocs.yml: docs/one.md is there 2 times"),
    ],
)
def test_a_fault_is_found(site: Path, page: str, added: str, fault: str) -> None:
    with (site / page).open("a") as file:
        file.write(added + "\n")
    assert list(TOOL.check(site)) == ([fault] if fault else [])


def test_a_page_that_no_list_names_is_found(site: Path) -> None:
    (site / "docs" / "guides").mkdir()
    (site / "docs" / "guides" / "new.md").write_text("# New\n")
    (site / "docs" / "adr" / "0002-y.md").write_text("# Y\n")
    assert list(TOOL.check(site)) == [
        "mkdocs.yml: the navigation lacks docs/guides/new.md",
        "docs/README.md: no link to docs/guides/new.md",
        "docs/adr/README.md: no link to docs/adr/0002-y.md",
    ]


def test_a_link_to_a_folder_becomes_a_link_to_its_page(site: Path, tmp_path: Path) -> None:
    (site / "examples" / "one").mkdir(parents=True)
    (site / "examples" / "one" / "README.md").write_text("# One\n")
    (site / "examples" / "one" / "train.py").write_text("pass\n")
    text = "[a](../examples/one) `[b](../examples/one)` [c](../examples/one/train.py) [d](one.md)\n"
    (site / "docs" / "README.md").write_text(text)
    TOOL.stage(site, tmp_path / "staged")
    assert (tmp_path / "staged/docs/README.md").read_text() == text.replace(
        "[a](../examples/one)", "[a](../examples/one/README.md)"
    )
    assert (tmp_path / "staged/examples/one/train.py").read_text() == "pass\n"


@pytest.mark.parametrize(
    ("given", "staged"),
    [
        ("text:\n- a\n  more\n- b\nlast", "text:\n\n- a\n  more\n- b\nlast"),
        ("text\n| a |\n|---|\n| b |\n- c", "text\n\n| a |\n|---|\n| b |\n\n- c"),
        ("text\n```\n- a\n| b |\n```\n| c |", "text\n\n```\n- a\n| b |\n```\n\n| c |"),
        (
            "1. a\n   ```\n   - b\n   ```\n2. c\n\ntext",
            "1. a\n   ```\n   - b\n   ```\n2. c\n\ntext",
        ),
    ],
    ids=["a list", "a table", "code", "code in a list"],
)
def test_blocks_are_separated_for_the_site(given: str, staged: str) -> None:
    assert TOOL.separated(given) == staged
