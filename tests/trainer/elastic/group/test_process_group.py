"""Groups that could not be formed leave nothing behind: their processes can join the next one."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed

from ddpjob_trainer.elastic.group import process_group
from ddpjob_trainer.elastic.group.break_errors import GroupAbortedError
from ddpjob_trainer.elastic.group.process_group import ElasticProcessGroup, backend_for
from support.forked import Forks

# Argument 1: the store's port, 2: the rank, 3: how many groups of two it enters alone before.
ENTERS = """
import os, sys, threading, torch
from torch import distributed
from ddpjob_trainer.elastic.group.process_group import ElasticProcessGroup

def abort_when_connecting():
    while not over.wait(0.01):
        if group.connecting:
            group.abort()

port, rank, alone = map(int, sys.argv[1:])
group = ElasticProcessGroup("gloo")
hook = sys.excepthook
for attempt in range(alone):
    over = threading.Event()
    thread = threading.Thread(target=abort_when_connecting)
    thread.start()
    try:
        group.init(group.connect_store(f"127.0.0.1:{port}", f"{rank}-{attempt}"), rank, 2)
    except RuntimeError as error:
        print("not formed:", str(error).splitlines()[0])
    else:
        raise SystemExit("a group of two was formed by one")
    finally:
        over.set()
        thread.join()
        group.destroy()
for membership in ("first", "second"):
    group.init(group.connect_store(f"127.0.0.1:{port}", membership), rank, 2)
    total = torch.tensor([rank + 1.0])
    distributed.all_reduce(total)
    print(membership, total.item())
    group.destroy()
assert sys.excepthook is hook, "each group leaves a hook"
sys.stdout.flush()
os._exit(0)  # quickly: to take all of torch apart takes a second
"""


@pytest.fixture
def port() -> Iterator[int]:
    """Start a store; return its port."""
    server = distributed.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=dt.timedelta(seconds=60)
    )
    yield server.port
    del server


@pytest.mark.parametrize("alone", [1, 2])
def test_some_were_in_groups_that_were_not_formed(
    forks: Forks, tmp_path: Path, python_env: dict[str, str], port: int, alone: int
) -> None:
    """Others were not: a worker that joins, or one that had connected to all when one was lost."""
    script = tmp_path / "enters.py"
    script.write_text(ENTERS)
    outputs = [tmp_path / str(rank) for rank in range(2)]
    started = []
    for rank, attempts in enumerate((alone, 0)):
        with outputs[rank].open("w") as output:
            arguments = (script, port, rank, attempts)
            started.append(forks.start(*arguments, env=python_env, output=output))
    try:
        assert [process.wait(timeout=120) for process in started] == [0, 0]
    finally:
        for process in started:
            process.kill()
    printed = [output.read_text() for output in outputs]
    assert printed[0].count("not formed:") == alone
    assert [text.splitlines()[-2:] for text in printed] == 2 * [["first 3.0", "second 3.0"]]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[ElasticProcessGroup]:
    """A group of one, with a backend for the CPU and one for GPUs, which need not exist."""
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")  # torchrun's
    monkeypatch.setenv("TORCH_NCCL_ENABLE_MONITORING", "1")  # torch's default
    group = ElasticProcessGroup("cpu:gloo,cuda:gloo")
    group.init(distributed.HashStore(), 0, 1)
    yield group
    group.destroy()


def test_collectives_may_take_long_on_every_backend(alone: ElasticProcessGroup) -> None:
    world = distributed.group.WORLD
    assert alone.backend == "cpu:gloo,cuda:gloo"
    assert world is not None
    long = dt.timedelta(seconds=process_group.COLLECTIVE_SECONDS)
    for kind in ("cpu", "cuda"):
        assert world._get_backend(torch.device(kind)).options._timeout == long


def test_older_torch_has_another_function_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(distributed, "set_timeout")
    group = ElasticProcessGroup("gloo")
    with pytest.warns(FutureWarning, match="_set_pg_timeout"):
        group.init(distributed.HashStore(), 0, 1)
    group.destroy()


@pytest.mark.usefixtures("alone")
def test_nccls_watchdog_does_not_end_a_survivor() -> None:
    names = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING")
    assert [os.environ[name] for name in names] == ["0", "0"]


def test_torch_knows_an_aborted_group_until_it_is_left(alone: ElasticProcessGroup) -> None:
    alone.raise_if_failed()
    alone.abort()
    assert (distributed.get_rank(), distributed.get_world_size()) == (0, 1), "no ValueError"
    with pytest.raises(GroupAbortedError, match="the membership changed"):
        alone.raise_if_failed()
    alone.destroy()
    assert not distributed.is_initialized()


def test_gpus_have_a_backend_for_the_cpu_too() -> None:
    assert backend_for(torch.device("cpu")) == "gloo"
    assert backend_for(torch.device("cuda", 1)) == "cpu:gloo,cuda:nccl"
