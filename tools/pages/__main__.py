"""Write the generated pages.

python -m tools.pages            writes the pages that have changed
python -m tools.pages --check    writes nothing, and fails if a page is out of date
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

from tools import pages

ROOT = Path(__file__).resolve().parents[2]


def main(*, check: bool) -> int:
    stale = 0
    for info in pkgutil.iter_modules(pages.__path__):
        if info.name == "__main__":
            continue
        module = importlib.import_module(f"tools.pages.{info.name}")
        for name, build in module.PAGES.items():
            path, text = ROOT / name, build()
            if path.exists() and path.read_text() == text:
                continue
            stale += 1
            print(f"{name} is out of date: run make pages" if check else f"wrote {name}")
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(check=sys.argv[1:] == ["--check"]))
