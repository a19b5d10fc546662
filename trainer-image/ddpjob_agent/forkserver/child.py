"""Runs a Python program in a forked process as `python -u PROGRAM` would.

This module removes the differences between a fork and a fresh process, except the imports.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import importlib.machinery
import io
import logging
import os
import runpy
import signal
import sys
import types
from typing import TYPE_CHECKING

from ddpjob_agent.forkserver.proc_title import set_proc_cmdline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

    from ddpjob_agent.forkserver.channel import ForkRequest

_exit_codes = [0]  # of this process; the last one counts
OURS = ("ddpjob_agent", "ddpjob_protocol")  # the script may import its own versions of them


def become_fresh_process(request: ForkRequest, descriptors: list[int]) -> None:
    """Replace the session, standard streams, directory, environment and command line."""
    os.setsid()
    replace_streams(descriptors)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.directory)
    if "tempfile" in sys.modules:
        vars(sys.modules["tempfile"])["tempdir"] = None  # the cached value of the old TMPDIR
    command = [sys.executable, "-u", *request.arguments]
    set_proc_cmdline(command, request.environment.items())
    if sys.version_info >= (3, 10):
        sys.orig_argv = command
    _reseed_random()


def replace_streams(descriptors: list[int]) -> None:
    """Make the first three descriptors the standard streams."""
    for target, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, target)
    for descriptor in set(descriptors[:3]) - {0, 1, 2}:
        os.close(descriptor)


def _reseed_random() -> None:
    """Draw new seeds and keys, as a fresh process does; `random` reseeds itself after a fork."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "multiprocessing" in sys.modules:
        sys.modules["multiprocessing"].current_process().authkey = os.urandom(32)


def run(arguments: list[str]) -> NoReturn:
    """Run the program as `python -u ARGUMENTS`; raise SystemExit at its end."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    for name in [each for each in sys.modules if each.partition(".")[0] in OURS]:
        del sys.modules[name]
    try:
        if arguments[0] == "-m":
            _prepend_to_path(os.getcwd())
            sys.argv = ["-m", *arguments[2:]]
            sys.modules.pop(arguments[1], None)  # runpy warns of a module that is imported already
            getattr(runpy, "_run_module_as_main")(arguments[1])  # noqa: B009 - `python -m` uses it
        else:
            _prepend_to_path(os.path.dirname(os.path.realpath(arguments[0])))
            sys.argv = list(arguments)
            _run_file(os.path.abspath(arguments[0]), main)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - a program may end by any error
        _end(error)
    raise SystemExit


@contextlib.contextmanager
def fast_exit() -> Iterator[None]:
    """End the process at SystemExit, without the seconds that destroying all modules takes."""
    try:
        yield
    except SystemExit as end:
        code = _exit_code(end)
        if end.code is not None and not isinstance(end.code, int):
            sys.stderr.write(f"{end.code}\n")
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def full_exit() -> Iterator[None]:
    """Keep the code of SystemExit for `exit_after_modules`."""
    try:
        yield
    except SystemExit as end:
        _exit_codes.append(_exit_code(end))
        raise


def _exit_code(end: SystemExit) -> int:
    """Return the exit code that Python gives a process for this exception."""
    if end.code is None:
        return 0
    return end.code & 0xFF if isinstance(end.code, int) else 1


class _Last:
    """An object that Python destroys after all modules; its end ends the process."""

    def __init__(self, code: int) -> None:
        self._code = code
        self._flush = ctypes.CDLL(None).fflush

    def __del__(self, end: Callable[[int], NoReturn] = os._exit) -> None:
        self._flush(None)  # what native libraries have printed
        end(self._code)


def exit_after_modules() -> None:
    """End the process as soon as all modules are destroyed, which comes after all exit handlers.

    The destructors of torch's libraries take 0.2 s of CPU time, and some abort: threads of gloo
    still run. The garbage collector skips frozen objects, because destroying them would touch, and
    so copy, all shared memory; native libraries would report them as leaks.
    """
    vars(sys)["_ddpjob_last"] = _Last(_exit_codes[-1])


def _prepend_to_path(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)


def _run_file(path: str, main: types.ModuleType) -> None:
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        why = f"[Errno {error.errno}] {error.strerror}"
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: {why}\n")
        raise SystemExit(2) from error
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(
        __file__=path, __loader__=loader, __package__=None, __spec__=None, __cached__=None
    )
    program = compile(source, path, "exec", dont_inherit=True)
    exec(program, main.__dict__)  # noqa: S102 - runs the user's script


def _end(error: BaseException) -> NoReturn:
    """Print an error as Python does at exit, without the frames of this module; then exit."""
    traceback = error.__traceback__
    mine = _end.__code__.co_filename
    while traceback is not None and traceback.tb_frame.f_code.co_filename == mine:
        traceback = traceback.tb_next
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(1) from None
