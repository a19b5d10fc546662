"""Builds the agent as one executable file: `python agent.pyz`, with any Python from 3.9.

The same sources give the same bytes on every machine: sorted, uncompressed, with fixed times and
modes, and only modules inside. Only bytecode, for local runs, depends on the Python version.
`python -m ddpjob_operator.agent_bundle TARGET` builds the file for the image.
"""

from __future__ import annotations

import io
import marshal
import os
import sys
import zipfile
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import ddpjob_agent
import ddpjob_protocol

PACKAGES = [Path(package.__path__[0]) for package in (ddpjob_agent, ddpjob_protocol)]
SHEBANG = b"#!/usr/bin/env python3\n"
# Any Python reads this file, even Python 2: it has the message for those that are too old.
MAIN = """\
import sys

if sys.version_info < (3, 9):
    sys.stderr.write(
        "ddpjob-agent: %s is Python %d.%d; the agent needs python3 from 3.9 on. Add it to the image,"
        " as the first python3 on PATH, or use another image\\n"
        % ((sys.executable,) + tuple(sys.version_info[:2]))
    )
    sys.exit(2)

import ddpjob_agent.__main__ as agent

agent.run()
"""
EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time that a zip file can hold


def build_agent(target: Path, *, compiled: bool = False) -> None:
    """Write the application to `target` atomically.

    With `compiled`, the file holds bytecode for this Python, which halves its start time.
    """
    content = {"__main__.py": MAIN.encode()}
    for package, path in ((each, path) for each in PACKAGES for path in sorted(each.rglob("*.py"))):
        name = path.relative_to(package.parent).as_posix()
        content[name] = path.read_bytes()
        if compiled:
            content[f"{name}c"] = _bytecode(name, path)
    buffer = io.BytesIO(SHEBANG)
    buffer.seek(0, os.SEEK_END)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            entry = zipfile.ZipInfo(name, date_time=EPOCH)
            entry.create_system = 3  # Unix, whatever the build machine
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    scratch.write_bytes(buffer.getvalue())
    scratch.chmod(0o755)
    scratch.replace(target)


def _bytecode(name: str, path: Path) -> bytes:
    """Return bytecode as `py_compile` writes it with UNCHECKED_HASH; other Pythons ignore it."""
    code = SourceFileLoader(name, str(path)).get_code(name)  # from __pycache__, if present
    unchecked_hash = (1).to_bytes(4, "little") + bytes(8)
    return MAGIC_NUMBER + unchecked_hash + marshal.dumps(code)


def main() -> None:
    """Build the file at the path from the command line."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m ddpjob_operator.agent_bundle TARGET")
    target = Path(sys.argv[1])
    build_agent(target)
    print(f"{target}: {target.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
