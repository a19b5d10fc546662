"""What is true of the project as a whole: its promises to machines it has not seen."""

from __future__ import annotations

import ast
import collections
import operator
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ddpjob_operator.agent_bundle import build_agent
from support.pythons import OLDEST

ROOT = Path(__file__).resolve().parent.parent
AGENT = tuple(ROOT / "trainer-image" / name for name in ("ddpjob_agent", "ddpjob_protocol"))
AGENT_MODULES = sorted(path for package in AGENT for path in package.rglob("*.py"))
# In today's standard library, but missing somewhere between OLDEST and NEWEST.
NOT_EVERYWHERE = frozenset(
    "_pyrepl aifc annotationlib asynchat asyncore audioop binhex cgi cgitb chunk compression crypt "
    "distutils formatter imghdr imp lib2to3 mailcap msilib nis nntplib ossaudiodev parser pipes "
    "smtpd sndhdr spwd sunau symbol telnetlib tomllib uu xdrlib".split()
)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def git(*arguments: str) -> str:
    command = ["git", "-c", "safe.directory=*", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def project_files() -> list[Path]:
    """Everything that is, or could be, committed."""
    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return sorted(ROOT / name for name in set(names) if name and (ROOT / name).is_file())


def text_of(path: Path) -> str:
    content = path.read_bytes()
    return "" if b"\0" in content else content.decode(errors="replace")


# The folder called operator


def test_the_folder_called_operator_does_not_shadow_the_standard_library() -> None:
    assert operator.__file__ is not None
    assert Path(operator.__file__).parent == Path(sysconfig.get_path("stdlib"))
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_the_standard_librarys_operator_wins_from_the_root_of_the_project() -> None:
    # -S: before site has imported it as a side effect
    command = [sys.executable, "-S", "-c", "import operator; print(operator.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    assert not answer.stdout.decode().startswith(str(ROOT / "operator"))


# The agent runs in whatever image the user brings


def test_every_agent_module_is_valid_for_the_oldest_python() -> None:
    invalid = []
    for path in AGENT_MODULES:
        try:
            ast.parse(path.read_text(), filename=str(path), feature_version=OLDEST)
        except SyntaxError as error:
            invalid.append(f"{relative(path)}:{error.lineno}: {error.msg}")
    assert AGENT_MODULES
    assert not invalid, "\n".join(invalid)


def test_every_agent_module_imports_only_the_standard_library_and_itself() -> None:
    allowed = (sys.stdlib_module_names - NOT_EVERYWHERE) | {package.name for package in AGENT}
    imported = {relative(path): imports_of(path) for path in AGENT_MODULES}
    foreign = {path: names - allowed for path, names in imported.items() if names - allowed}
    assert not foreign


def imports_of(path: Path) -> set[str]:
    """Top-level names of the absolute imports, wherever in the module they stand."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("agent") / "ddpjob-agent.pyz"
    build_agent(target)
    return target


def test_the_built_agent_is_the_same_bytes_each_time(agent: Path, tmp_path: Path) -> None:
    build_agent(tmp_path / "again.pyz")
    assert (tmp_path / "again.pyz").read_bytes() == agent.read_bytes()


# A newcomer finds each module: few in a folder, none long


PACKAGES = sorted(path.parent for path in ROOT.glob("*/ddpjob*/__init__.py"))


def test_no_folder_has_more_than_12_modules_and_no_module_more_than_300_lines() -> None:
    modules = [path for package in PACKAGES for path in package.rglob("*.py")]
    folders = collections.Counter(path.parent for path in modules if path.name != "__init__.py")
    large = {relative(folder) for folder, count in folders.items() if count > 12}
    large |= {relative(path) for path in modules if len(path.read_text().splitlines()) > 300}
    assert len(PACKAGES) == 5
    assert not large


# The lock


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def declared() -> list[Requirement]:
    """All requirements of the project, its extras, its groups and its build."""
    content = pyproject()
    lines = [*content["project"]["dependencies"], *content["build-system"]["requires"]]
    for extra in content["project"]["optional-dependencies"].values():
        lines += extra
    for group in content["dependency-groups"].values():
        lines += [line for line in group if isinstance(line, str)]
    return [Requirement(line) for line in lines]


def locked(path: Path) -> dict[str, list[tuple[Requirement, int]]]:
    """Of each package its pins, one per environment marker, and how many hashes each has."""
    content = path.read_text().replace("\\\n", " ")
    pins: dict[str, list[tuple[Requirement, int]]] = {}
    for line in content.splitlines():
        if line.strip() and not line.startswith("#"):
            pin, *hashes = re.split(r"\s+--hash=sha256:[0-9a-f]{64}", line)
            requirement = Requirement(pin)
            pins.setdefault(canonicalize_name(requirement.name), []).append(
                (requirement, len(hashes))
            )
    return pins


LOCK = locked(ROOT / "requirements.lock")


@pytest.mark.parametrize("requirement", declared(), ids=str)
def test_each_declared_requirement_is_pinned_to_a_version_that_it_allows(
    requirement: Requirement,
) -> None:
    for pin, _ in LOCK[canonicalize_name(requirement.name)]:
        version = str(pin.specifier).removeprefix("==")
        assert requirement.specifier.contains(version, prereleases=True)


@pytest.mark.parametrize(
    "name",
    [
        "requirements.lock",
        "requirements-operator.lock",
        "tools/examples.lock",
        "tools/fuzz.lock",
        "tools/uv.lock",
    ],
)
def test_every_line_of_a_lock_is_one_pin_with_hashes(name: str) -> None:
    pins = [pin for entries in locked(ROOT / name).values() for pin in entries]
    assert pins
    for requirement, hashes in pins:
        assert str(requirement.specifier).startswith("==")
        assert hashes > 0, requirement


# Nothing in the project belongs to one machine or to one network


FORBIDDEN = {
    # written so that this file does not match itself
    "a package registry's host": r"py" + r"pi\.(org|python)|python" + r"hosted|npm" + r"js\.org",
    "an index for packages": r"--(extra-)?index" + r"-url|INDEX" + r"_URL|--find" + r"-links",
    "a path of one machine": r"(?<![\w.~*}-])/(work|root|home/[a-z]\w*)" + r"/\w",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what: str) -> None:
    needle = re.compile(FORBIDDEN[what])
    found = [
        f"{relative(path)}:{number}: {line.strip()[:100]}"
        for path in project_files()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if needle.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a package registry's host", "https://py" + "pi.org/simple"),
        ("an index for packages", "pip install --index" + "-url x"),
        ("a path of one machine", "cd /ro" + "ot/x"),
        ("a path of one machine", 'path = "/wo' + 'rk/main"'),
    ],
)
def test_the_search_finds(what: str, line: str) -> None:
    assert re.search(FORBIDDEN[what], line)


SCRIPTS = [relative(path) for path in project_files() if path.suffix == ".sh"]


@pytest.mark.parametrize("path", [*SCRIPTS, ".ci/run"])
def test_script_is_executable_and_valid(path: str) -> None:
    sourced = "# shellcheck shell=bash" in (ROOT / path).read_text()
    assert sourced or os.access(ROOT / path, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / path)], check=True)


def test_every_make_target_is_listed_by_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, flags=re.MULTILINE))
    answer = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert set(re.findall(r"^  ([a-z-]+) ", answer.stdout, flags=re.MULTILINE)) == targets
