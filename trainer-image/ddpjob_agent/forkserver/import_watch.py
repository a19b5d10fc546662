"""The variables that a script sets before its first import of torch.

In a forked process torch is imported already, and has read other values. So the modules that were
imported in advance are hidden until the script imports one of them. Then the variables are
compared. If one differs, the process executes its program again, cold, with the variables that the
script has set.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from typing import TYPE_CHECKING

from ddpjob_agent.forkserver.eligibility import is_read_at_import

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Mapping, Sequence


def watch(packages: Iterable[str], arguments: Sequence[str]) -> None:
    """Watch for the first import of one of these packages by `python -u ARGUMENTS`."""
    tops = frozenset(packages) - getattr(sys, "stdlib_module_names", frozenset())
    names = [name for name in sys.modules if name.partition(".")[0] in tops]
    sys.meta_path.insert(0, _Watch({name: sys.modules.pop(name) for name in names}, arguments))


class _Watch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A finder of hidden modules; it acts once. Python leaves importers out of tracebacks."""

    def __init__(self, hidden: dict[str, types.ModuleType], arguments: Sequence[str]) -> None:
        self._hidden = hidden
        self._arguments = arguments
        self._before = dict(os.environ)
        self._process = os.getpid()

    def find_spec(
        self, name: str, *_: object, **__: object
    ) -> importlib.machinery.ModuleSpec | None:
        """Load a hidden module, or execute the program again."""
        if name not in self._hidden:
            return None
        sys.meta_path.remove(self)
        changed = changed_by_script(self._before, os.environ)
        if changed and os.getpid() == self._process:  # not in a process that the script has forked
            _execute_cold(changed, self._arguments)
        return importlib.machinery.ModuleSpec(name, self)

    def exec_module(self, _module: types.ModuleType) -> None:
        """Show the hidden modules, which replace the new one."""
        sys.modules.update(self._hidden)


def changed_by_script(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the variables that differ and that an import may read."""
    names = {name for name in (*before, *now) if before.get(name) != now.get(name)}
    return sorted(filter(is_read_at_import, names))


def _execute_cold(changed: Sequence[str], arguments: Sequence[str]) -> None:
    """Replace this process with a cold one."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    sys.stderr.write(
        f"ddpjob: the script sets {', '.join(changed)} before it imports torch: it starts again, cold. "
        "Set such variables in the job's env to start warm\n"
    )
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-u", *arguments])  # noqa: S606 - the same program
