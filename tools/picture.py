"""Make a picture of a report with a real browser: `python tools/picture.py [PAGE] [PICTURE]`.

Without a page it runs the digits example with a lost and an added node first. The browser is the
first of chromium, chromium-browser, google-chrome and chrome on PATH, or that of $BROWSER_BINARY.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
JOB = ROOT / "examples" / "digits" / "ddpjob.yaml"
LIMIT_SECONDS = 120


def find_browser() -> str:
    """Return the path of a browser; exit with the names that were searched."""
    names = (os.environ.get("BROWSER_BINARY") or "", *BROWSERS)
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        sys.exit(
            f"picture: none of {', '.join(BROWSERS)} is on PATH; install Chromium, or set"
            " BROWSER_BINARY to its path"
        )
    return found


def make_page(folder: Path) -> Path:
    """Run the example with two faults, and return its report."""
    ddpjob = [sys.executable, "-m", "ddpjob"]
    state = ["--state-dir", str(folder / "state")]
    chaos = ["--chaos", "kill=30%,join=60%"]
    subprocess.run([*ddpjob, "run", "--local", str(JOB), *chaos, *state], check=True)
    page = folder / "report.html"
    source = folder / "state" / "default" / "digits"
    subprocess.run([*ddpjob, "report", str(source), "-o", str(page)], check=True)
    return page


def take(browser: str, page: Path, picture: Path) -> None:
    """Let the browser draw the page."""
    with tempfile.TemporaryDirectory() as profile:
        options = [
            "--headless", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
            "--window-size=1100,2400", f"--screenshot={picture}",
        ]  # fmt: skip
        if os.geteuid() == 0:
            options.append("--no-sandbox")  # it does not start as root otherwise
        subprocess.run(
            [browser, *options, page.resolve().as_uri()], check=True, timeout=LIMIT_SECONDS
        )
    if not picture.is_file():
        sys.exit(f"picture: {browser} wrote no picture; run it by hand with {page}")


def main() -> None:
    browser = find_browser()
    picture = Path(sys.argv[2] if len(sys.argv) > 2 else ROOT / "build" / "report.png")
    picture.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(sys.argv[1]) if len(sys.argv) > 1 else make_page(Path(folder))
        take(browser, page, picture)
    print(f"{picture}: {picture.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main()
