"""Builds what a release consists of, in dist/: wheel, chart, bill of materials, checksums.

    python tools/release.py          builds
    python tools/release.py v0.1.0   first checks that all files name this version

Needs helm and cyclonedx-py on PATH, which `make release` provides.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
CHART = Path("charts/ddpjob-operator")
LOCK = "requirements-operator.lock"  # the packages of the wheel and of the operator's image
IMAGE_TAG = re.compile(r"^ *image: ddpjob/(\w+):(\S+)$", re.MULTILINE)


def versions(root: Path) -> dict[str, str]:
    """Return each version that the files of a checkout name, by its place."""
    chart = yaml.safe_load((root / CHART / "Chart.yaml").read_text())
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((root / "CITATION.cff").read_text())
    newest = re.search(r"^## \[(\d\S*)\]", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    images = IMAGE_TAG.findall(chart["annotations"]["artifacthub.io/images"])
    return {
        "pyproject.toml: version": project["version"],
        "Chart.yaml: version": chart["version"],
        "Chart.yaml: appVersion": str(chart["appVersion"]),
        "CITATION.cff: version": citation["version"],
        **{f"Chart.yaml: image {name}": tag for name, tag in images},
        "CHANGELOG.md: first version": newest[1] if newest else "none",
    }


def differing(tag: str, named: Mapping[str, str]) -> list[str]:
    """Return a line for each place that does not name the version of a tag."""
    wanted = tag.removeprefix("v")
    return [
        f"{place} is {found}, not {wanted}" for place, found in named.items() if found != wanted
    ]


def build() -> list[Path]:
    """Build all files of a release; returns their paths."""
    DIST.mkdir(exist_ok=True)
    for path in DIST.iterdir():
        path.unlink()
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", DIST)
    _run("helm", "package", CHART, "--destination", DIST)
    bill = DIST / "ddpjob.cdx.json"
    _run("cyclonedx-py", "requirements", LOCK, "--pyproject", "pyproject.toml", "-o", bill)
    files = sorted(DIST.iterdir())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (DIST / "SHA256SUMS").write_text("".join(sums))
    return [*files, DIST / "SHA256SUMS"]


def _run(*command: str | Path) -> None:
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def main(*tags: str) -> int:
    """Check the version of a tag, if there is one, and build."""
    wrong = [line for tag in tags for line in differing(tag, versions(ROOT))]
    for line in wrong:
        print(f"release: {line}: change it, and commit before the tag", file=sys.stderr)
    if wrong:
        return 1
    for path in build():
        print(f"release: {path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
