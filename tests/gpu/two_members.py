"""One rank of two on one GPU, whose groups break: two_members.py CASE RANK PORT."""

from __future__ import annotations

import datetime as dt
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import distributed, nn

from ddpjob_trainer.elastic.ddp_model import ElasticModel
from ddpjob_trainer.elastic.group.break_errors import GroupAbortedError
from ddpjob_trainer.elastic.group.commit_gate import CommitGate
from ddpjob_trainer.elastic.group.process_group import ElasticProcessGroup, backend_for

DEVICE = torch.device("cuda", 0)
WIDTH = 512


class Member:
    """This rank, its group, and a store that no abort disconnects."""

    def __init__(self, rank: int, port: int) -> None:
        self.rank = rank
        self._address = f"127.0.0.1:{port}"
        wait = dt.timedelta(seconds=300)
        self.meeting = distributed.TCPStore("127.0.0.1", port, is_master=False, timeout=wait)
        self.group = ElasticProcessGroup(backend_for(DEVICE), DEVICE)

    def enter(self, membership: str) -> None:
        """Join the group of both ranks, and use it once."""
        self.group.init(self.group.connect_store(self._address, membership), self.rank, 2)
        total = torch.full((WIDTH,), self.rank + 1.0, device=DEVICE)
        distributed.all_reduce(total)
        assert total.eq(3).all()

    def abort_when(self, has_begun: threading.Event) -> threading.Thread:
        """Abort the group from another thread, as the agent's assignment does."""

        def abort() -> None:
            has_begun.wait()
            self.group.abort()

        thread = threading.Thread(target=abort)
        thread.start()
        return thread


def all_reduce(member: Member) -> None:
    """Abort an all-reduce that the other rank never begins."""
    has_begun = threading.Event()
    thread = member.abort_when(has_begun)
    distributed.all_reduce(torch.ones(WIDTH, device=DEVICE))
    has_begun.set()
    torch.cuda.synchronize(DEVICE)  # it ends without an error
    thread.join()
    with pytest.raises(GroupAbortedError):
        member.group.raise_if_failed()


def two_groups(member: Member) -> None:
    """Abort two groups at the same time, each of which hangs."""
    has_begun = threading.Event()
    thread = member.abort_when(has_begun)
    distributed.all_reduce(torch.ones(WIDTH, device=DEVICE))
    distributed.all_reduce(torch.ones(WIDTH, device=DEVICE), group=OTHER[0])
    has_begun.set()
    torch.cuda.synchronize(DEVICE)
    thread.join()
    with pytest.raises(GroupAbortedError):
        member.group.raise_if_failed()


def backward(member: Member) -> None:
    """Change no parameter by gradients of a backward that was aborted."""
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))).to(DEVICE)
    before = [each.detach().clone() for each in net.parameters()]
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    gate = CommitGate(member.group, net.parameters())
    optimizer.register_step_pre_hook(lambda *_: gate.check())
    model = ElasticModel(net, {})
    model.wrap()
    has_begun = threading.Event()
    thread = member.abort_when(has_begun)
    model(torch.ones(2, WIDTH, device=DEVICE)).square().mean().backward()
    has_begun.set()
    with pytest.raises(GroupAbortedError):
        optimizer.step()
    thread.join()
    assert all(map(torch.equal, before, net.parameters()))
    model.unwrap()


CASES: dict[str, Callable[[Member], None]] = {
    "all_reduce": all_reduce,
    "two_groups": two_groups,
    "backward": backward,
    "lost_peer": all_reduce,
}
OTHER: list[Any] = []  # of the script, beside the default group


def main(case: str, rank: int, port: int) -> None:
    torch.cuda.set_device(DEVICE)
    member = Member(rank, port)
    member.enter("first")
    if case == "two_groups":
        OTHER.append(distributed.new_group([0, 1]))
        distributed.all_reduce(torch.ones(1, device=DEVICE), group=OTHER[0])
    if rank == 0:
        CASES[case](member)
        member.meeting.set("over", "")
    elif case == "lost_peer":
        os._exit(0)
    else:
        member.meeting.wait(["over"])
    member.group.destroy()
    if case != "lost_peer":
        member.enter("second")
        member.group.destroy()
    sys.stdout.write("done\n")
    sys.stdout.flush()
    os._exit(0)  # quickly: to take all of torch apart takes a second


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
