"""A live job for tests: each process reports its steps to the test, and they are judged here.

The ledger is kept by the test's own process: rows outlive the processes that sent them.
"""

from __future__ import annotations

import collections
import itertools
import json
import socket
import threading
from pathlib import Path
from typing import NamedTuple

from ddpjob_protocol.messages.membership import MembershipId

STEPS = 300
BATCH = 12  # samples per step over all processes

# The same samples at each step, however many processes share. Slow until the file `end` appears, and
# ever slower: on the slowest machine something is left to be disturbed, and elsewhere few steps are.
SLOWLY = "time.sleep(0.05 * 2 ** (step.number / 40))"
SCRIPT = f"""
    import hashlib, json, os, pathlib, socket, sys, time
    import torch
    from ddpjob_trainer import Loop

    ledger = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ledger.connect("ledger.sock")
    end = pathlib.Path(sys.argv[1])
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else {STEPS}

    def tell(what, step, value=""):
        facts = (os.environ["DDPJOB_MEMBERSHIP"], what, step.number, step.rank, step.world_size)
        ledger.send(json.dumps((*facts, os.getpid(), value)).encode())

    torch.set_num_threads(1)
    torch.manual_seed(os.getpid())  # whoever starts gets rank 0's parameters, or a survivor's
    net = torch.nn.Sequential(
        torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 16)
    )
    net[1].eval()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.001)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.97)
    loop = Loop(net, optimizer, scheduler=scheduler, steps=steps)
    for step in loop:
        with step:
            tell("begun", step)
            numbers = torch.Generator().manual_seed(step.number)
            batch = torch.randn({BATCH}, 16, generator=numbers)[step.rank :: step.world_size]
            loss = (loop.model(batch) - batch.roll(1, 1)).pow(2).sum() * step.world_size / {BATCH}
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not end.exists():
                {SLOWLY}
        if step.done:
            tell("done", step)
    weights = torch.cat([each.flatten() for each in net.state_dict().values()]).double()
    rows = {{"weights": weights.tolist(), "lr": scheduler.get_last_lr()}}
    pathlib.Path(f"final-{{os.getpid()}}.json").write_text(json.dumps(rows))
"""


class Row(NamedTuple):
    """One word of one process."""

    membership: str
    what: str  # begun | done
    step: int
    rank: int
    world_size: int
    pid: int
    value: str


class Course(NamedTuple):
    """The steps of one membership."""

    membership: str
    first: int  # step it began with
    done: int  # steps done when it ended, by the reports of its processes
    pids: frozenset[int]


class Ledger:
    """Takes rows at `folder`/ledger.sock for as long as it is open."""

    def __init__(self, folder: Path) -> None:
        self._rows: list[Row] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._socket.bind(str(folder / "ledger.sock"))
        self._folder = folder
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while data := self._socket.recv(65536):
            self._rows.append(Row(*json.loads(data)))

    def rows(self) -> list[Row]:
        """All so far."""
        return list(self._rows)

    def courses(self) -> list[Course]:
        """Return the memberships that began a step, in their order."""
        by: dict[str, list[Row]] = collections.defaultdict(list)
        for row in self.rows():
            by[row.membership].append(row)
        found = []
        for membership in sorted(by, key=MembershipId.parse):
            rows = by[membership]
            first = min(row.step for row in rows)
            done = max((row.step + 1 for row in rows if row.what == "done"), default=first)
            found.append(Course(membership, first, done, frozenset(row.pid for row in rows)))
        return found

    def void_steps(self) -> list[int]:
        """Return for each change the steps that a process had begun and the next membership repeats."""
        courses, rows = self.courses(), self.rows()
        begun = [max(r.step + 1 for r in rows if r.membership == c.membership) for c in courses]
        return [max(0, b - after.first) for b, after in zip(begun, courses[1:], strict=False)]

    def check(self, steps: int, *, dead: frozenset[int] = frozenset()) -> None:
        """Every step is done once; nothing that a survivor had done is done again."""
        courses = self.courses()
        assert courses[0].first == 0
        assert courses[-1].done == steps
        for before, after in itertools.pairwise(courses):
            kept = [
                row.step + 1
                for row in self.rows()
                if row.membership == before.membership and row.what == "done"
                and row.pid not in dead and row.pid in after.pids
            ]  # fmt: skip
            assert after.first >= max(kept, default=0), f"lost: {before}, {after}"
            assert after.first <= max(before.done, before.first), f"skipped: {before}, {after}"
            # Done by a lost worker only, which may have begun the next one.
            assert before.done - after.first <= 1, f"several done again: {before}, {after}"

    def finals(self) -> list[dict[str, list[float]]]:
        """Return the parameters of all processes that came to the end."""
        return [json.loads(path.read_text()) for path in self._folder.glob("final-*.json")]

    def close(self) -> None:
        """Take no more."""
        self._socket.shutdown(socket.SHUT_RD)
        self._socket.close()
