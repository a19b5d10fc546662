"""The training loop whose processes stay when workers join and leave (live mode).

    loop = Loop(model, optimizer, loader=loader, epochs=10)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for inputs, targets in step.parts():
                step.backward(loss_fn(loop.model(inputs), targets))
            optimizer.step()

An unplanned change breaks the collectives of the current step; a planned one waits for its end. The
remaining processes form the new group in memory. New processes, and those with fewer steps, receive
the state of the process with most steps. Then the loop repeats the broken step or starts the next.
A step counts once the optimizer has stepped. Without an agent, this is a plain loop.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from ddpjob_protocol.environment import ENV_MEMBERSHIP, ENV_STORE
from ddpjob_protocol.membership import Membership
from ddpjob_protocol.process import Assignment, ProcessMessage
from ddpjob_trainer.agent_link import connection
from ddpjob_trainer.data.stream import Stream
from ddpjob_trainer.elastic.data_feed import DataFeed
from ddpjob_trainer.elastic.ddp_model import ElasticModel
from ddpjob_trainer.elastic.process_group import ElasticProcessGroup, backend_for
from ddpjob_trainer.elastic.step import Step
from ddpjob_trainer.elastic.train_state import TrainState
from ddpjob_trainer.errors import FencedError, SnapshotError
from ddpjob_trainer.reporting import progress
from ddpjob_trainer.snapshots.manager import VARIABLES, Snapshots
from ddpjob_trainer.tensors import rng_state
from ddpjob_trainer.transfer.agreement import BEGINNING, Agreement, StateVersion, agree, exchange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader

    from ddpjob_trainer.elastic.step_rollback import StepRollback

NEWS_SECONDS = 60.0  # seconds after a broken group in which a new membership must arrive
_BROKEN = re.compile(
    r"gloo|NCCL|nccl|Connection (closed|reset|refused)|Broken pipe|[Ss]ocket|process group"
)

_log = logging.getLogger("ddpjob")


class Loop:
    """A training loop; each rank iterates over it, in each process of the job."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        steps: int | None = None,
        loader: DataLoader[Any] | Stream | None = None,
        epochs: int | None = None,
        deterministic: int | None = None,
        balance: bool = False,
        scheduler: Any = None,
        scaler: Any = None,
        extra: Any = None,
        snapshots: Snapshots | None = None,
        **ddp_options: Any,
    ) -> None:
        """Loop over `steps`, or over `epochs` of a `loader`.

        The loader is a Stream, or its batch_sampler is an ElasticBatchSampler. `deterministic` is a
        number of shards, a power of two; the result has equal bits for any membership. With
        `balance`, slower processes take less of each batch, as measured after each change. The loop
        calls `scheduler` once per step. `scaler` is a GradScaler. `extra` has state_dict and
        load_state_dict. `snapshots` defaults to the job's snapshots. `ddp_options` are passed to
        DistributedDataParallel. Return once the agent has registered this process. If this
        process was started for one membership only, restart it once.
        """
        if (steps is None) == (epochs is None) or (epochs is not None and loader is None):
            raise ValueError("a Loop needs either steps, or epochs and a loader")
        if (steps or 0) < 0 or (epochs or 0) < 0:
            raise ValueError(f"steps is {steps}, epochs is {epochs}: they count what is to do")
        if deterministic is not None:
            _check_deterministic(deterministic, loader, ddp_options)
        if balance and (loader is None or deterministic is not None):
            raise ValueError("balance needs a loader, and cannot be deterministic: it goes by time")
        self.model = ElasticModel(model, ddp_options, alone=deterministic is not None)
        self.steps = steps  # None: unknown so far
        self._epochs = epochs
        self._feed = None
        if loader is not None:
            self._feed = DataFeed(loader, self.model, shards=deterministic, balance=balance)
        self._optimizer = optimizer
        if snapshots is None and any(map(os.environ.get, VARIABLES)):
            snapshots = Snapshots(share=True)
        self._snapshots = snapshots
        self._training = TrainState(model, optimizer, self._feed, extra, scheduler, scaler)
        self._device = next(iter(model.parameters()), torch.empty(0)).device
        self._saved: int | None = None
        self._membership: Membership | None = None
        self._broken = False
        self._group = ElasticProcessGroup(backend_for(self._device))
        self._line = connection.connect(self._group, self._training.dump)
        importlib.import_module("torch._dynamo")  # or DDP imports it during a change: 1 s

    # --- the loop -------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Step]:
        if self._line is None:
            self._enter_alone()
        else:
            self._restore_dump()
            self._line.start()
        while True:
            self._follow_assignment()
            done = self._done
            if self._has_more(done):
                step = Step(self, done)
                yield step
                if not step.was_tried:
                    raise RuntimeError("the body of the loop belongs into `with step:`")
            elif self._finish():
                return

    def _restore_dump(self) -> None:
        path = connection.dumped_state_path()
        if path is not None:
            self._training.restore_dump(path)

    def _has_more(self, done: int) -> bool:
        if self.steps is None and not self.feed.source.has_more(self._epochs or 0):
            self.steps = done
            if self._line is not None:
                self._line.report_step(done, self._last)
        return self.steps is None or done < self.steps

    @property
    def _done(self) -> int:
        """The steps that this process's state has done. The state must exist."""
        done = self._training.done
        assert done is not None
        return done

    @property
    def _last(self) -> int:
        """The number of the last step; sys.maxsize while the number is unknown."""
        return sys.maxsize if self.steps is None else self.steps - 1

    @property
    def feed(self) -> DataFeed:
        """The source of the samples. Raises RuntimeError if the loop has no loader."""
        if self._feed is None:
            raise RuntimeError("the Loop has no loader: Loop(model, optimizer, loader=...)")
        return self._feed

    def begin(self) -> StepRollback:
        """Begin a step."""
        return self._training.begin()

    def end(self, step: Step, attempt: StepRollback, error: BaseException | None) -> bool:
        """End a step, with or without an error; return True if the error is handled."""
        if error is not None and not self._is_break(error):
            self._training.end()
            return False
        if error is None and self._feed is not None:
            self._feed.check()
        if error is None or attempt.applied:
            self._count(step)
        else:
            self._training.rollback()
        if error is not None:
            self._await_assignment(error)
        return True

    def _count(self, step: Step) -> None:
        done = self._training.count()
        step.done = True
        progress.step_done(done, self.steps, **step.metrics)
        if self._snapshots is not None and self._snapshots.due(done):
            self._save(done)
        if self._line is not None:
            self._line.report_step(done, self._last)

    def _save(self, done: int, *, wait: bool = False) -> None:
        assert self._snapshots is not None
        extra = self._training.extra
        try:
            if self._saved == done:
                self._snapshots.wait()
                return
            self._snapshots.discover_storage_group()
            is_saved = self._snapshots.save(
                done,
                wait=wait,
                model=self.model.module,
                extra=None if extra is None else extra.state_dict(),
                **self._training.parts,
            )
        except FencedError as error:
            if self._line is None:
                raise
            _log.warning("%s", error)
            self._await_assignment(error)
        except RuntimeError as error:
            if isinstance(error, SnapshotError) or not self._is_break(error):
                raise
            self._await_assignment(error)
        else:
            self._saved = done if is_saved else self._saved

    def _save_before_exit(self) -> None:
        if self._snapshots is not None and self._training.done is not None:
            self._save(self._done, wait=True)

    def _finish(self) -> bool:
        """Leave after the last step, with all ranks; return False if the membership has changed."""
        self._save_before_exit()
        try:
            distributed.barrier()
        except RuntimeError as error:
            if not self._is_break(error):
                raise
            self._await_assignment(error)
            return False
        if self._line is not None:
            self._line.send(ProcessMessage.FINISHED)
        self._leave_group()
        return True

    # --- changes --------------------------------------------------------------------------------

    def _follow_assignment(self) -> None:
        """Join or leave groups until the next step may start as the agent has assigned."""
        if self._line is None:
            return
        while True:
            place = self._line.assignment
            if place.membership is None:
                if self._has_passed(place.last_step):
                    if place.save and self._membership is not None:
                        self._save_before_exit()
                    self._leave_group()
                    if place.leave:
                        raise SystemExit(0)
                    self._line.left_group(None)
                    self._line.wait_for_change(place)
                    continue
            elif self._is_left_for(place.membership):
                self._regroup(place, place.membership)
                continue
            if self._line.may_start_step(self._done):
                return
            self._line.wait_for_change(place)

    def _is_left_for(self, other: Membership) -> bool:
        mine = self._membership
        if mine is None:
            return True
        return other.id > mine.id and (
            other.stops_at_once(mine.id) or self._has_passed(other.after)
        )

    def _has_passed(self, after: int | None) -> bool:
        """Return whether the group has done its stop step."""
        if self._membership is None or after is None or self._broken:
            return True
        return self._done > after

    def _regroup(self, assignment: Assignment, membership: Membership) -> None:
        assert self._line is not None
        self._leave_group()
        self._saved = None  # a snapshot that the old group was writing may stay incomplete
        self._line.left_group(membership)
        rank = assignment.first_rank + int(os.environ.get("LOCAL_RANK", "0"))
        try:
            store = self._group.connect_store(os.environ[ENV_STORE], str(membership.id))
            if not self._line.entering_group(membership):
                return
            mine = self._training.progress
            agreement = agree(store, rank, membership.world_size, mine)
            self._group.init(store, rank, membership.world_size)
            os.environ.update(
                RANK=str(rank),
                WORLD_SIZE=str(membership.world_size),
                **{ENV_MEMBERSHIP: str(membership.id)},
            )
            self._exchange_state(agreement, membership.snapshot_step, rank)
            if self._feed is not None:
                self._feed.sync_speeds()
        except RuntimeError as error:
            if not self._is_break(error):
                raise
            self._broken = True
            self._await_assignment(error)
            self._leave_group()
            return
        self._membership, self._training.membership = membership, membership.id
        self._line.entered_group(membership)
        self._line.report_step(self._ready(), self._last)

    def _enter_alone(self) -> None:
        """Join the group of torchrun's environment, or a group of this process alone."""
        if "RANK" in os.environ:
            distributed.init_process_group(self._group.backend)
        else:
            store = distributed.HashStore()
            distributed.init_process_group(self._group.backend, store=store, rank=0, world_size=1)
        world_size = distributed.get_world_size()
        self._exchange_state(Agreement((None,) * world_size), None, distributed.get_rank())
        if self._feed is not None:
            self._feed.sync_speeds()
        self._ready()

    def _exchange_state(self, agreement: Agreement, snapshot_step: int | None, rank: int) -> None:
        """Bring this process to the state that all ranks resume from."""
        newest = agreement.newest
        old = newest is None or newest.step < (snapshot_step or 0)
        if self._snapshots is not None and old and self._load(self._snapshots):
            return
        if newest is None:  # no process has a state: all begin like rank 0
            newest = StateVersion(0, BEGINNING)
            agreement = Agreement((newest, *[None] * (len(agreement.states) - 1)))
        taken = exchange(agreement, rank, self._device, self._training.collect)
        with self._training.changing:
            if taken is not None:
                if self._snapshots is not None:
                    self._snapshots.wait_for_copy()
                self._training.restore(taken)
                rng_state.draw_from(taken["extra"]["random"], rank)
            self._training.done, self._training.done_in = newest
        if self._snapshots is not None:
            self._snapshots.resume_from(newest.step)

    def _load(self, snapshots: Snapshots) -> bool:
        """Load the newest snapshot; return False if there is none."""
        with self._training.changing:
            loaded = snapshots.load(model=self.model.module, **self._training.parts)
            if loaded is None:
                return False
            if self._training.extra is not None:
                self._training.extra.load_state_dict(loaded.extra)
            self._training.done = self._saved = loaded.step
            self._training.done_in = BEGINNING
            return True

    def _ready(self) -> int:
        """Get ready for the first step in a group with a common state."""
        self._broken = False
        self._optimizer.zero_grad(set_to_none=True)
        self.model.wrap()
        if self._feed is not None:
            self._feed.restart()
            if self._epochs is not None:
                remaining = self._feed.source.remaining(self._epochs)
                self.steps = None if remaining is None else self._done + remaining
        progress.resumed(self._done)
        return self._done

    def _leave_group(self) -> None:
        self.model.unwrap()
        self._group.destroy()
        self._membership = None

    def _is_break(self, error: BaseException) -> bool:
        """Return whether an exception means a broken group, not a faulty script."""
        if self._line is None or not isinstance(error, RuntimeError):
            return False
        known = isinstance(error, distributed.DistError) or bool(_BROKEN.search(str(error)))
        return known or self._line.is_superseded()

    def _await_assignment(self, error: BaseException) -> None:
        """Wait for the membership after a broken group; raise the error if none arrives."""
        assert self._line is not None
        self._broken = True
        _log.info("the group is broken off: %s", error)
        if not self._line.wait_until_superseded(NEWS_SECONDS, str(error).partition("\n")[0]):
            raise error


def _check_deterministic(shards: int, loader: Any, ddp_options: dict[str, Any]) -> None:
    if loader is None or ddp_options:
        raise ValueError("deterministic needs a loader, and takes no options of DDP")
    if shards < 1 or shards & (shards - 1):
        raise ValueError(f"deterministic is {shards}: a power of two is needed, as 8")
    torch.use_deterministic_algorithms(True, warn_only=True)
