"""An OCI runtime in front of runc: takes CAP_SYS_RESOURCE out of what a container asks for.

A machine may withhold this capability from root, and runc then cannot start a privileged
container at all. Standard library only; knows nothing of the project.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

WITHHELD = "CAP_SYS_RESOURCE"


def value_of(arguments: list[str], *names: str) -> str | None:
    """The value of an option, given as `--name value` or `--name=value`."""
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in names:
            return value if equals else arguments[position + 1]
    return None


def without_capability(process: dict[str, Any]) -> dict[str, Any]:
    """The same process, in each of its sets of capabilities without the one withheld."""
    sets = process.get("capabilities") or {}
    kept = {name: [one for one in given if one != WITHHELD] for name, given in sets.items()}
    return {**process, "capabilities": kept} if sets else process


def rewrite(arguments: list[str]) -> None:
    """Change the file in which this call of runc describes its process, if it has one."""
    if "create" in arguments or "run" in arguments:
        path = Path(value_of(arguments, "--bundle", "-b") or ".") / "config.json"
        config = json.loads(path.read_text())
        config["process"] = without_capability(config["process"])
        path.write_text(json.dumps(config))
    elif "exec" in arguments and (given := value_of(arguments, "--process", "-p")):
        path = Path(given)
        path.write_text(json.dumps(without_capability(json.loads(path.read_text()))))


def main() -> None:
    """Called as `runc_without_sys_resource.py RUNC ARGUMENTS...`."""
    runc, *arguments = sys.argv[1:]
    rewrite(arguments)
    os.execv(runc, [runc, *arguments])  # noqa: S606 - the arguments are the container engine's


main()
