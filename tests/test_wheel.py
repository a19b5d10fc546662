"""The package that `make wheel` builds: whole, typed, and able to build the agent."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [
    ROOT / name for name in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
]
BUILD = """
from pathlib import Path
import sys
from ddpjob_operator.agent_bundle import build_agent
build_agent(Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


def test_it_holds_every_module_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to(package.parent).as_posix()
        for package in PACKAGES
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert names == expected
    assert names >= {f"{package.name}/py.typed" for package in PACKAGES}
    assert sum(each.compress_size for each in wheel.infolist()) < 2_000_000


def test_its_metadata(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = message_from_string(wheel.read(name).decode())
    assert metadata["Name"] == "ddpjob"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra") or ()) == {"cluster", "trainer"}
    plain = [r for r in metadata.get_all("Requires-Dist") or () if "extra ==" not in r]
    assert not [each for each in plain if each.startswith(("kopf", "kubernetes", "torch"))]
    assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())
    (scripts,) = (n for n in wheel.namelist() if n.endswith("entry_points.txt"))
    text = wheel.read(scripts).decode()
    assert "ddpjob = ddpjob_operator.cli.entry:main" in text
    assert "kubectl_complete-ddp = ddpjob_operator.cli.kubectl_completion:main" in text


def test_it_builds_the_same_agent(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "installed")
    built: list[bytes] = []
    for source in (str(tmp_path / "installed"), f"{ROOT}/operator:{ROOT}/trainer-image"):
        target = tmp_path / f"agent{len(built)}.pyz"
        command = [sys.executable, "-c", BUILD, str(target)]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": source}, check=True)
        built.append(target.read_bytes())
    assert built[0] == built[1]
