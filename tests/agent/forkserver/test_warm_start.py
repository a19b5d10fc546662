"""A training process that was forked from a warm parent does what one does that was executed.

Both are started by torch's own code, in a process that the agent's code started, cold and warm.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ddpjob_agent.forkserver.client import ForkServerClient

SCRIPTS = Path(__file__).parent / "scripts"
AGENT = Path(__file__).resolve().parents[3] / "trainer-image"
PATIENCE = 300  # seconds; torch is slow to start on a busy machine

FACTS = """
    import __main__, gc, json, os, resource, signal, sys, threading, multiprocessing as mp
    def disposition(number):
        found = signal.getsignal(number)
        return getattr(found, "__name__", None) or str(found)
    shown = {"own": "RANK", "marked": "DDPJOB_TEST_SESSION"}
    def read(path):
        with open(path, "rb") as file:
            return file.read().decode().split("\\0")
    facts = {
        "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "path": sys.path,
        "executable": sys.executable, "flags": str(sys.flags), "name": __name__,
        "globals": sorted(set(globals()) - {"facts", "shown"}),
        "package": __package__, "spec": getattr(__spec__, "name", None), "loader": type(__loader__).__name__,
        "file": __file__, "builtins": type(__builtins__).__name__,
        "main": __main__.__dict__ is globals(), "cwd": os.getcwd(),
        "env": {k: v for k, v in os.environ.items() if not k.startswith("TORCHINDUCTOR")},
        "signals": {str(n): disposition(n) for n in sorted(signal.valid_signals())},
        "blocked": str(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "umask": oct(os.umask(0o22)), "leads": os.getsid(0) == os.getpid() == os.getpgrp(),
        "stdin": sys.stdin.read(), "fds": sorted(os.listdir("/proc/self/fd"), key=int),
        "threads": [each.name for each in threading.enumerate()],
        "tasks": len(os.listdir("/proc/self/task")),
        "streams": [[s.encoding, s.line_buffering, s.write_through, s.isatty(), s.fileno()]
                    for s in (sys.stdout, sys.stderr)],
        "mp": [mp.current_process().name, str(mp.parent_process()), mp.get_start_method()],
        "excepthook": sys.excepthook is sys.__excepthook__,
        "cmdline": read("/proc/self/cmdline"), "environ": sorted(read("/proc/self/environ")),
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE), "nice": os.nice(0),
        "agent": [name for name in sys.modules if name.startswith("ddpjob_agent")],
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
        "profile": [sys.gettrace(), sys.getprofile(), sys.getrecursionlimit()],
    }
    print(json.dumps(facts, indent=1), flush=True)
    os._exit(0)  # quickly: to take all of torch apart takes a second
"""
TRAIN = """
    import os, pickle, torch, traceback
    from torch.distributed.elastic.multiprocessing.errors import record
    from torch.utils.data import DataLoader, Dataset
    def inner(): raise ValueError("broken ü")
    @record
    def broken(): inner()
    class Squares(Dataset):
        def __len__(self): return 8
        def __getitem__(self, i): return i * i
    if __name__ == "__main__":
        assert pickle.loads(pickle.dumps(Squares)) is Squares
        loader = DataLoader(Squares(), 4, num_workers=1)
        print([batch.tolist() for batch in loader])
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(model.parameters(), fused=False)
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        print(torch.initial_seed(), model.weight.tolist(), torch.get_num_threads())
        print(torch.cuda.is_available(), torch.cuda.is_initialized())
        try: broken()
        except ValueError: traceback.print_exc()
"""
SPAWNS = """
    import multiprocessing as mp, os, sys
    class Squares:
        def __getitem__(self, i): return i * i
    def work(squares, key):
        print(__name__, sys.argv, sys.path, squares[3], key == mp.current_process().authkey, flush=True)
    if __name__ == "__main__":
        key = bytes(mp.current_process().authkey)
        child = mp.get_context("spawn").Process(target=work, args=(Squares(), key))
        child.start()
        child.join()
        print(child.exitcode, flush=True)
        os._exit(0)
"""
CHANCE = """
    import json, multiprocessing, os, random, numpy, torch
    drawn = [random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed()]
    print(json.dumps([*drawn, multiprocessing.current_process().authkey.hex()]), flush=True)
    os._exit(0)
"""
ERROR = """
    def f():
        try: 1/0
        except Exception as error: raise ValueError("ü") from error
    f()
"""
ERROR_IN_A_MODULE = """
    import sys
    def hook(*error):
        print(error[:2])
        sys.__excepthook__(*error)
    sys.excepthook = hook
    import nowhere
"""
AT_EXIT = """
    import atexit, sys, threading, time
    class Dying:
        def __del__(self): print("destroyed")
    dying = Dying()
    atexit.register(print, "at exit")
    def work():
        threading.main_thread().join()
        print("thread")
    threading.Thread(target=work).start()
    print("unflushed", end="")
    sys.stdout.flush()
    sys.exit("no data")
"""
CYCLES = """
    import os, sys
    class Dying:
        def __init__(self): self.me = self
        def __del__(self, write=sys.stderr.write): write("destroyed ")
    dying = [Dying(), Dying()]
    file = os.fdopen(os.dup(1), "w")
    file.write("unflushed")
"""
NATIVE = """
    import ctypes, sys
    ctypes.CDLL(None).printf(b"printed by a native library")
    sys.exit(300)
"""
SETS = """
    import os, sys
    os.environ.update(OMP_NUM_THREADS="3", TORCH_COMPILE_DISABLE="1", WANDB_MODE="offline")
    from torch.nn import Linear
    import torch._dynamo.config
    print(torch.get_num_threads(), torch._dynamo.config.disable, sys.argv, torch.__spec__.origin)
    os._exit(0)
"""
SETS_WHAT_NO_IMPORT_READS = """
    import os, sys
    print("torch" in sys.modules, "torch.nn" in sys.modules)
    os.environ.update(NCCL_DEBUG="INFO", WANDB_MODE="offline")
    from torch.nn import Linear
    import torch
    print(torch.nn.Linear is Linear, torch.__spec__.origin, torch.nn.__spec__.name)
    print([getattr(each, "__name__", type(each).__name__) for each in sys.meta_path])
    os._exit(0)
"""
HANDLED = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(17))
    print("ready", flush=True)
    while True: time.sleep(0.01)
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """A program `case.py` of its own folder, and how it is run."""

    name: str
    program: str
    arguments: tuple[str, ...] = ("{folder}/case.py", "one", "--two=3 4", "")
    code: int = 0
    env: tuple[tuple[str, str], ...] = ()
    signal: str = ""
    cold: str = ""  # why it is not forked
    says: str = ""  # in a line of its own, if it was forked


CASES = (
    Case("facts", FACTS, env=(("LOCAL_RANK", "1"), ("TORCHELASTIC_RUN_ID", "ü"))),
    Case("facts_of_a_relative_path", FACTS, ("facts_of_a_relative_path/case.py",)),
    Case("facts_of_a_module", FACTS, ("-m", "facts_of_a_module.case", "x", "-m")),
    Case("facts_of_a_package", FACTS, ("-m", "facts_of_a_package")),
    Case("imported_module", "[1]", ("-m", "json.tool", "{folder}/case.py")),
    Case("training", TRAIN),
    Case("spawns", SPAWNS),
    Case("exit", AT_EXIT, code=1),
    Case("exit_with_cycles", CYCLES),
    Case("exit_of_native_libraries", NATIVE, code=300 & 0xFF),
    Case("exit_hard", "import os; os._exit(9)", code=9),
    Case("error", ERROR, code=1),
    Case("error_in_a_module", ERROR_IN_A_MODULE, ("-m", "error_in_a_module.case"), code=1),
    Case("syntax", "def f(:\n", code=1),
    Case("no_file", "", ("{folder}/missing.py",), code=2),
    Case("no_module", "", ("-m", "no.such.module"), code=1),
    Case("interrupted", "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint(1)", code=-2),
    Case("killed", "import os\nos.kill(os.getpid(), 9)", code=-9),
    Case("crashed", "import ctypes\nctypes.string_at(0)", code=-11),
    Case("terminated", HANDLED, code=17, signal="SIGTERM"),
    Case("terminated_unhandled", "import time\nprint(1)\ntime.sleep(600)", code=-15, signal="SIGTERM"),
    Case("sets", SETS, says="the script sets OMP_NUM_THREADS, TORCH_COMPILE_DISABLE before it"),
    Case("sets_what_no_import_reads", SETS_WHAT_NO_IMPORT_READS),
    Case("env_differs", FACTS, env=(("OMP_NUM_THREADS", "3"),), cold="OMP_NUM_THREADS differs"),
    Case("other_file", FACTS, ("{folder}/case.txt",), cold="is not a .py file"),
    Case("command", FACTS, ("-c", "print(1)"), cold="Python is given -c"),
)  # fmt: skip

DRAWS = (Case("first_draw", CHANCE), Case("second_draw", CHANCE))
IN_ADVANCE = Case("in_advance", "import colorsys, sys\nprint(*sys.modules)")
ONLY_WARM = (*DRAWS, IN_ADVANCE)


@dataclasses.dataclass(frozen=True)
class Runs:
    """The outcomes of all cases, cold and warm."""

    cold: dict[str, Any]
    warm: dict[str, Any]
    told: str


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("programs")
    for case in (*CASES, *ONLY_WARM):
        home = folder / case.name
        home.mkdir()
        program = textwrap.dedent(case.program)
        for name in ("case.py", "case.txt", "__main__.py"):
            (home / name).write_text(program)
    torchrun = folder / "bin" / "torchrun"
    torchrun.parent.mkdir()
    torchrun.write_text(f"#!{sys.executable}\n{(SCRIPTS / 'each_case.py').read_text()}")
    torchrun.chmod(0o755)
    cold, _ = start(folder, CASES, warm=False)
    warm, told = start(folder, (*CASES, *ONLY_WARM), warm=True)
    return Runs(cold, warm, told)


def start(folder: Path, cases: tuple[Case, ...], *, warm: bool) -> tuple[dict[str, Any], str]:
    """Run the cases; return the exit and the output of each."""
    results, output = folder / f"results-{warm:d}.json", folder / f"output-{warm:d}"
    output.mkdir()
    rows = {
        case.name: {
            "arguments": [word.format(folder=folder / case.name) for word in case.arguments],
            "env": dict(case.env),
            "signal": case.signal,
        }
        for case in cases
    }
    (folder / "cases.json").write_text(json.dumps(rows))
    ended = subprocess.run(
        [
            *(sys.executable, SCRIPTS / "start_as_agent.py", f"{warm:d}"),
            *("torchrun", "cases.json", results, output),
        ],
        cwd=folder,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "DDPJOB_WARM_IMPORTS": "colorsys json.tool",
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(AGENT),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    said = ended.stdout + ended.stderr
    assert results.exists(), said
    end = json.loads(next(s for s in ended.stdout.splitlines() if s.startswith("ENDED "))[6:])
    assert (end["code"], end["warm"]) == (0, warm), said
    found: dict[str, Any] = json.loads(results.read_text())
    return found, end["stderr"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_warm_does_what_cold_does(runs: Runs, case: Case) -> None:
    cold, warm = runs.cold[case.name], runs.warm[case.name]
    assert cold["code"] == case.code, cold
    assert warm["code"] == cold["code"], warm
    assert warm["out"] == cold["out"]
    lines = warm["err"].splitlines()
    says = [line for line in lines if line.startswith("ddpjob: ")]
    assert [line for line in lines if line not in says] == cold["err"].splitlines()
    assert len(says) == bool(case.says)
    assert case.says in "".join(says)


def test_each_process_draws_its_own_random_numbers(runs: Runs) -> None:
    first, second = (json.loads(runs.warm[case.name]["out"]) for case in DRAWS)
    assert [a for a, b in zip(first, second, strict=True) if a == b] == []


def test_modules_that_are_named_are_imported_in_advance(runs: Runs) -> None:
    assert {"colorsys", "json.tool"} <= {*runs.warm[IN_ADVANCE.name]["out"].split()}


def test_a_module_that_is_not_there_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Such a job is started cold."""

    async def body() -> None:
        standby, named = ForkServerClient(), {"DDPJOB_WARM_IMPORTS": "no_such_module"}
        with caplog.at_level("INFO"):
            command = [sys.executable, "-m", "torch.distributed.run"]
            standby.begin(command, {**os.environ, **named}, wanted=True)
            await standby.wait()
        assert standby.pid is None
        assert "cannot import no_such_module and torch: ModuleNotFoundError" in caplog.text

    asyncio.run(body())


def test_a_program_that_would_differ_is_started_cold_with_a_log_line(runs: Runs) -> None:
    said = [line for line in runs.told.splitlines() if "started cold" in line]
    expected = [case.cold for case in CASES if case.cold]
    assert len(said) == len(expected), runs.told
    assert all(why in line for why, line in zip(expected, said, strict=True)), said
