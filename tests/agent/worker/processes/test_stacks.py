"""The stacks of a worker's processes: of one that sleeps, one that is stopped, one without a handler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

COLLECT = """
import asyncio, os, signal, subprocess, sys
from pathlib import Path
from ddpjob_agent.worker.processes.stacks import collect_stacks

folder = Path(sys.argv[1])
TRAINS = '''
import threading, time
from ddpjob_trainer.reporting import stacks
stacks.register()
def wait_for_others():
    print("ready", flush=True)
    while True:
        time.sleep(60)
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
wait_for_others()
'''
environment = {**os.environ, "DDPJOB_STEPS": str(folder / "steps")}

def begin(code):
    child = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    return child

sleeps, stopped = begin(TRAINS), begin(TRAINS)
plain = begin("print('ready', flush=True); import time; time.sleep(300)")
(folder / f"stacks.{plain.pid}").write_text("")  # from before it executed another program
foreign = folder / f"stacks.{os.getpid()}"  # of a process that is not below this one
foreign.write_text("")
os.kill(stopped.pid, signal.SIGSTOP)
try:
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
    for _ in range(2):
        whole, short = asyncio.run(collect_stacks(str(folder)))
    alive = [each.poll() is None for each in (sleeps, stopped, plain)]
    print(whole.count("in wait_for_others"), whole.count("in wait_for_others") == 1, alive)
    print(whole)
    print("--- short")
    print(short)
finally:
    for each in (sleeps, stopped, plain):
        each.kill()
        each.wait()
"""


def test_python_stacks_where_a_process_can_write_them_and_the_kernels_words_elsewhere(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    head, *_ = done.stdout.splitlines()
    assert head == "1 True [True, True, True]", "each call has its own stacks, and ends no process"
    whole, short = done.stdout.split("--- short")
    assert "stopped)\n  no Python stack; in the kernel: " in whole
    assert "time.sleep(300)" in whole
    assert "in wait_for_others" in short
    assert whole.count("\n  File ") > short.count("\n  File "), "only the main thread of each"
