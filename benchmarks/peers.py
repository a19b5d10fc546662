"""The peers of the recovery benchmark and their changes; runs them in turns.

That ddpjob does not recover is a failure; that another one does not is a result. What cannot be
measured on this machine is left out, with a note.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.floor import cold_start, regroup
from benchmarks.ours import LocalJob
from benchmarks.peer_env import TORCHFT_PACKAGE, PeerMissingError
from benchmarks.stock import DEFAULT, TUNED, TorchrunJob
from benchmarks.tables import (
    L0,
    L0_WARM,
    L2,
    L2_LARGE,
    LIGHTHOUSE,
    LIMIT,
    LIMIT_COLD,
    LIMIT_LARGE,
    SERVICE,
    STOCK,
    STOCK_TUNED,
    TCP_STORE,
    TORCHFT,
    Collected,
    cap,
)
from benchmarks.torchft_peer import TorchftJob
from benchmarks.trials import Change, Job, Measure, Trial, TrialError, measure
from benchmarks.workloads.common import LARGE, TINY
from rich.console import Console

from support.networks import NetworkError, networks

K, F, C, P, J, L = (
    Change.KILL, Change.FREEZE, Change.CUT, Change.PROCESS, Change.JOIN, Change.LEAVE,
)  # fmt: skip
OURS = (K, J, L, J, F, J, P)  # done to one job, in this order
TORCHFTS = (K, J, L, J, F)
STOCKS = (K, J, L, J, P)
QUICK_NOTE = (
    f"QUICK: one repetition; left out: torchrun, torchft, 21 M parameters, silent nodes, killed"
    f" training processes; of {L0_WARM} all but a killed and an added node, of {L0} all but a"
    " killed one."
)
FROZEN_NOTE = "A frozen node: measured once with torchrun, which never recovers from it."
CUT_NOTE = "A silent loss: not measured with torchrun."

Peer = Callable[[int], Awaitable[None]]  # measures once; given which repetition it is


class Recovery:
    """The peers; collects what they give."""

    def __init__(self, console: Console, *, kills_only: bool = False) -> None:
        self.collected = Collected()
        self.kills_only = kills_only
        self.notes: list[str] = []
        self.versions: dict[str, str] = {}  # of peers
        self._console = console

    async def ours(
        self,
        number: int,
        *,
        name: str,
        changes: Sequence[Change],
        size: str = TINY,
    ) -> None:
        """ddpjob; nodes have networks of their own if one is to be cut off."""
        changes = self._chosen(changes)
        stays, warm = name in {L2, L2_LARGE}, name != L0
        make = partial(LocalJob, stays=stays, warm=warm, size=size)

        def keep(trial: Trial) -> None:
            self._keep(name, trial)
            if trial.group is None:
                raise TrialError(f"{name} did not recover: {trial.change.value}")

        if C not in changes:
            memory = await measure(make, changes, victim=number, cap=cap, keep=keep)
        else:
            with networks() as made:
                cut_off = partial(make, networks=made)
                memory = await measure(cut_off, changes, victim=number, cap=cap, keep=keep)
        self.collected.keep_memory(SERVICE, memory)

    async def stock(self, number: int, *, name: str, conf: dict[str, int]) -> None:
        """torchrun."""
        make = partial(TorchrunJob, conf=conf)
        for changes in [STOCKS, (F,)] if number == 0 and not self.kills_only else [STOCKS]:
            await self._other(number, name, make, changes, TCP_STORE)

    async def torchft(self, number: int, *, programs: Path, cut: bool) -> None:
        """torchft; in a second job, as with ours, a node is cut off."""
        make = partial(TorchftJob, programs=programs)
        await self._other(number, TORCHFT, make, TORCHFTS, LIGHTHOUSE)
        if cut:
            with networks() as made:
                await self._other(number, TORCHFT, partial(make, networks=made), [C], LIGHTHOUSE)

    async def _other(
        self,
        number: int,
        name: str,
        make: Callable[[Path], Job],
        changes: Sequence[Change],
        service: str,
    ) -> None:
        keep, changes = partial(self._keep, name), self._chosen(changes)
        try:
            memory = await measure(make, changes, victim=number, cap=cap, keep=keep)
        except TrialError as error:
            first, _, rest = str(error).partition("\n")
            self.note(f"{name}, repetition {number + 1} cut short: {first}.")
            self._console.print(rest, markup=False)
        else:
            self.collected.keep_memory(service, memory)

    async def limit(self, _: int, *, name: str, size: str) -> None:
        """Run and keep the trials of changes in memory."""
        for trial in await regroup(size):
            self._keep(name, trial)

    async def cold_limit(self, _: int) -> None:
        """Measure a cold start; no process dies here."""
        seconds = await cold_start()
        self.collected.keep_cold_start(seconds)
        self._console.print(f"  {LIMIT_COLD}: {seconds:.2f} s")

    def _chosen(self, changes: Sequence[Change]) -> Sequence[Change]:
        return [K] if self.kills_only else changes

    def note(self, text: str) -> None:
        """For the result file, and at once."""
        self.notes.append(text)
        self._console.print(f"  {text}", markup=False)

    def _keep(self, name: str, trial: Trial) -> None:
        self.collected.keep(name, trial)
        told = f">{cap(trial.change):g} s"
        if trial.group is not None:
            told = f"{trial.seconds:.3f} s, stall {trial.measures()[Measure.STALL]:.3f} s"
        self._console.print(f"  {name}: {trial.change.value}: {told}")


def _quick(bench: Recovery) -> list[Peer]:
    return [
        bench.cold_limit,
        partial(bench.limit, name=LIMIT, size=TINY),
        partial(bench.ours, name=L2, changes=(K, J, L)),
        partial(bench.ours, name=L0_WARM, changes=(K, J)),
        partial(bench.ours, name=L0, changes=[K]),
    ]


def _why_uncut() -> str:
    """Why networks of nodes cannot be made here; empty if they can."""
    try:
        with networks() as made:
            made.namespace("node-0")
    except NetworkError as error:
        return str(error).partition("\n")[0]
    return ""


def _all(bench: Recovery) -> list[Peer]:
    uncut = "only killed nodes are measured" if bench.kills_only else _why_uncut()
    if uncut:
        bench.note(f"A silent loss: left out, since {uncut}.")
    peers: list[Peer] = [
        bench.cold_limit,
        partial(bench.limit, name=LIMIT, size=TINY),
        partial(bench.limit, name=LIMIT_LARGE, size=LARGE),
        *(partial(bench.ours, name=name, changes=OURS) for name in (L2, L0_WARM, L0)),
        *(partial(bench.ours, name=name, changes=[C]) for name in (L2, L0_WARM) if not uncut),
        partial(bench.ours, name=L2_LARGE, changes=[K, J], size=LARGE),
    ]
    try:
        programs = TORCHFT_PACKAGE.programs()
    except PeerMissingError as error:
        bench.note(f"{TORCHFT}: left out, since it cannot be had here: {error}.")
    else:
        bench.versions[TORCHFT_PACKAGE.package] = TORCHFT_PACKAGE.version
        peers.append(partial(bench.torchft, programs=programs, cut=not uncut))
    return [
        *peers,
        partial(bench.stock, name=STOCK_TUNED, conf=dict(TUNED)),
        partial(bench.stock, name=STOCK, conf=dict(DEFAULT)),
    ]


async def run(
    repeat: int,
    *,
    quick: bool,
    kills_only: bool,
    console: Console,
    keep: Callable[[Recovery], None],
) -> None:
    """All repetitions, each begins with another peer; `keep` gets what there is after each."""
    bench = Recovery(console, kills_only=kills_only)
    if not kills_only:
        bench.notes += [QUICK_NOTE] if quick else [FROZEN_NOTE, CUT_NOTE]
    peers = _quick(bench) if quick else _all(bench)
    if not quick:
        await cold_start()  # not counted: brings torch into the page cache
    for number in range(repeat):
        console.print(f"repetition {number + 1} of {repeat}")
        first = number % len(peers)
        for peer in peers[first:] + peers[:first]:
            await peer(number)
        keep(bench)
