"""Imports what the scripts need, once, and forks a process for each request: zygote.py SOCKET.

A request is a line of JSON. Answers are {"key": …, "pid": …} for each process that started, and
{"pid": …, "code": …} for each that ended. The processes end with it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from importlib import import_module
from typing import Any, NoReturn

import torch

from support import huge_pages

PR_SET_PDEATHSIG = 1
MODULES = (
    "torch._dynamo",
    "accelerate",
    "lightning_fabric",
    "ddpjob_trainer.__main__",
    "ddpjob_trainer.data.lr_scaling",
    "ddpjob_trainer.elastic.loop",
    "ddpjob_trainer.snapshots.manager",
    "ddpjob_trainer.snapshots.storage.directory",
)


def become(request: dict[str, Any]) -> NoReturn:
    """Run one script, as `python SCRIPT` would."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.update(request["environment"])
    if os.environ.get("DDPJOB_TEST_DEVICE"):  # several processes on one GPU: see ADR 0062
        own = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
        os.environ.update(own, NCCL_HOSTID=f"process-{request['key']}")
    os.chdir(request["folder"])
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(number, target)
    code = 0
    try:
        module, _, name = request["script"].rpartition(".")
        getattr(import_module(module), name)()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as Python itself
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # gloo's threads may abort a process that ends in the usual way


def main(path: str) -> None:
    """Fork until the other side closes the connection."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    gc.disable()
    for name in MODULES:
        import_module(name)
    huge_pages.collapse(os.getpid())
    gc.freeze()  # keeps a child's collector from touching, and so copying, shared memory
    gc.enable()
    wake, wake_end = os.pipe()
    os.set_blocking(wake_end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(path)
    _send(line, ready=True)
    waiting = b""
    while True:
        ready, _, _ = select.select([line.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _reap(line)
        if line.fileno() in ready:
            data = line.recv(1 << 16)
            if not data:
                os._exit(0)
            *requests, waiting = (waiting + data).split(b"\n")
            for text in requests:
                request = json.loads(text)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    line.close()
                    become(request)
                _send(line, key=request["key"], pid=pid)


def _reap(line: socket.socket) -> None:
    """Report each process that ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _send(line, pid=pid, code=os.waitstatus_to_exitcode(status))


def _send(line: socket.socket, **words: Any) -> None:
    line.sendall(json.dumps(words).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
