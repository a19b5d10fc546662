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
import os
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from ddpjob_trainer.agent_link import connection
from ddpjob_trainer.data.stream import Stream
from ddpjob_trainer.elastic.control import left_loop
from ddpjob_trainer.elastic.control.between_steps import BetweenSteps
from ddpjob_trainer.elastic.control.script_control import ScriptControl
from ddpjob_trainer.elastic.control.signals import Signals
from ddpjob_trainer.elastic.data_feed import DataFeed
from ddpjob_trainer.elastic.ddp_model import ElasticModel
from ddpjob_trainer.elastic.group.commit_gate import CommitGate
from ddpjob_trainer.elastic.group.group_breaks import GroupBreaks
from ddpjob_trainer.elastic.group.group_member import GroupMember
from ddpjob_trainer.elastic.group.process_group import ElasticProcessGroup, backend_for
from ddpjob_trainer.elastic.live_snapshots import LiveSnapshots
from ddpjob_trainer.elastic.options import check_division, check_length
from ddpjob_trainer.elastic.state.replica_check import ReplicaCheck
from ddpjob_trainer.elastic.state.train_state import TrainState
from ddpjob_trainer.elastic.step import Step
from ddpjob_trainer.reporting import progress
from ddpjob_trainer.snapshots.manager import Snapshots
from ddpjob_trainer.snapshots.settings import VARIABLES
from ddpjob_trainer.tensors import training_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.utils.data import DataLoader


class Loop(ScriptControl):
    """A training loop; each rank iterates over it, in each process of the job."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        steps: int | None = None,
        loader: DataLoader[Any] | Stream | None = None,
        epochs: int | None = None,
        accumulate: int = 1,
        deterministic: int | None = None,
        balance: bool = False,
        scheduler: Any = None,
        scheduler_every: str = "step",
        scaler: Any = None,
        extra: Any = None,
        check_replicas: bool = True,
        snapshots: Snapshots | None = None,
        **ddp_options: Any,
    ) -> None:
        """Loop over `steps`, or over `epochs` of a `loader`.

        `steps` and `epochs` count those of the whole job. `model` is on its device, and the loop
        wraps it; it may be an nn.ModuleDict, as of a generator and a critic: `loop.model["critic"](x)`.
        `optimizer` may be a list; then a step counts at the end of its body, and each step begins
        with a copy of the weights and of the optimizers' states. With `accumulate`, that many
        batches of the loader are one batch, which each rank takes in as many parts.
        `loader` is a Stream, or its batch_sampler is an ElasticBatchSampler. `deterministic` is a
        number of shards, a power of two; the result has equal bits for any membership. With
        `balance`, slower processes take less of each batch, as measured after each change. The loop
        steps `scheduler`, or each of several, once per "step" or "epoch" (`scheduler_every`), and
        ReduceLROnPlateau once per `metric`. `scaler` is a GradScaler. `extra` has state_dict and
        load_state_dict. With `check_replicas`, the ranks compare checksums of their parameters and
        optimizers' states in each new group, after its first step, and at each save; ReplicaError
        names a difference. `snapshots` defaults to the job's snapshots. `ddp_options` are passed to
        DistributedDataParallel. Return once the agent has registered this process. If this
        process was started for one membership only, restart it once. Raise ValueError if options
        exclude each other, and SnapshotError if a snapshot cannot hold the state.
        """
        check_length(steps, epochs, loader)
        check_division(loader, accumulate, deterministic, ddp_options, balance=balance)
        self.model = ElasticModel(model, ddp_options, alone=deterministic is not None)
        for each in training_state.optimizers_of(optimizer):
            self.model.guard(each)
        self.steps = self._given_steps = steps  # None: unknown so far
        self._epochs = epochs
        self._feed = None
        if loader is not None:
            self._feed = DataFeed(
                loader, self.model, shards=deterministic, balance=balance, accumulate=accumulate
            )
        if snapshots is None and any(map(os.environ.get, VARIABLES)):
            snapshots = Snapshots(share=True)
        self._training = TrainState(
            model, optimizer, self._feed, extra, scheduler, scaler, scheduler_every
        )
        is_exact = self._training.schedule.needs_metric or deterministic is not None
        self._signals = Signals(every_step=is_exact)
        device = next((each.device for each in model.parameters()), torch.device("cpu"))
        if device.type == "cuda":
            torch.cuda.set_device(device)  # or all ranks of a node would communicate by GPU 0
        group = ElasticProcessGroup(backend_for(device), device)
        self._training.before_change = CommitGate(group, model.parameters()).check
        self._replicas = ReplicaCheck(model, self._training.optimizers, enabled=check_replicas)
        self._is_first = True  # step of this group
        self._between = BetweenSteps()
        self._agent = connection.connect(group, self._training.dump)
        self._breaks = GroupBreaks(self._agent)
        self._snapshots = LiveSnapshots(snapshots, self._training, self._breaks)
        self._snapshots.check()
        self._member = GroupMember(
            group,
            self._breaks,
            self.model,
            self._training,
            self._feed,
            self._snapshots,
            self._replicas,
        )
        importlib.import_module("torch._dynamo")  # or DDP imports it during a change: 1 s

    def __iter__(self) -> Iterator[Step]:
        if self._agent is None:
            self._member.join_alone()
            self._get_ready()
        else:
            self._restore_dump()
            self._agent.start()
        while True:
            done = self._next_step()
            if self._has_more(done):
                step = Step(self, done)
                self.set_between_steps(True)
                try:
                    yield step
                except GeneratorExit:
                    left_loop.on_close(self._training.steps_done, self._end_here)
                    raise
                self.set_between_steps(False)
                if not step.was_tried:
                    raise RuntimeError("the body of the loop belongs into `with step:`")
            elif self._finish():
                return

    def _next_step(self) -> int:
        """Follow the assignments until the ranks may start a step, or end; return its number."""
        while True:
            while self._agent is not None and self._member.follow(self._agent):
                self._get_ready()
                self._agent.report_step(self._training.steps_done, self._last)
            done = self._training.steps_done
            if self._exchange_signals(done):
                if self._signals.is_stopping and self.steps != done:
                    self._set_end(done)
                    progress.step_done(done, done)
                return done

    def _end_here(self) -> None:
        """End the loop, which all ranks have left after the same step, with those that join now."""
        self._signals.leave(self._training.steps_done)
        self._set_end(self._training.steps_done)
        while not self._finish():
            self._next_step()

    def _set_end(self, done: int) -> None:
        self.steps = done
        if self._agent is not None:
            self._agent.report_step(done, self._last)

    def _restore_dump(self) -> None:
        path = connection.dumped_state_path()
        if path is not None:
            self._training.restore_dump(path)

    def _has_more(self, done: int) -> bool:
        if self.steps is None and not self.feed.source.has_more(self._epochs or 0):
            self._set_end(done)
        return self.steps is None or done < self.steps

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

    def begin(self) -> None:
        """Begin a step."""
        self.model.begin_step()
        self.set_between_steps(False)
        if self._training.changes_weights:  # maybe outside of the optimizer's step, which waits
            self._snapshots.wait_for_copy()
        self._training.begin()

    def end(self, step: Step, error: BaseException | None) -> bool:
        """End a step, with or without an error; return True if the error is handled."""
        late = None if error is not None else self._training.late_error()
        error = error or late
        if error is not None and not self._breaks.is_break(error):
            self._training.end()
            if late is not None:
                raise late
            return False
        if error is None and self._feed is not None:
            self._feed.check()
        if error is None or self._training.is_applied:
            is_saved = self._count(step, is_cut_off=error is not None)
            if error is None:
                self._check_replicas(start=is_saved or self._is_first)
                self._is_first = False
        else:
            self._training.rollback()
        if error is not None:
            self._breaks.await_assignment(error)
        return True

    def _count(self, step: Step, *, is_cut_off: bool) -> bool:
        """Count the step; return whether its state is saved."""
        epoch = 0 if self._feed is None else self._feed.source.epoch
        done = self._training.count(is_cut_off=is_cut_off)
        self._signals.on_count()
        step.count(epoch)
        progress.step_done(done, self.steps, **step.metrics)
        is_saved = self._snapshots.save_if_due(done)
        if self._agent is not None:
            self._agent.report_step(done, self._last)
        return is_saved

    def _check_replicas(self, *, start: bool) -> None:
        """End the last comparison of the ranks' states, and maybe start another one."""
        try:
            self._replicas.finish()
            if start:
                self._replicas.start()
        except Exception as error:  # noqa: BLE001 - raised again if it is not a break
            self._breaks.handle(error)

    def _finish(self) -> bool:
        """Leave after the last step, with all ranks; return False if the membership has changed."""
        if self._agent is not None and not self._agent.may_finish():
            self._breaks.is_broken = True
            return False
        self._snapshots.save_before_exit()
        try:
            self._replicas.check()
            distributed.all_reduce(torch.zeros(1, device="cpu"))  # where an abort raises an error
        except Exception as error:  # noqa: BLE001 - raised again if it is not a break
            self._breaks.handle(error)
            return False
        if self._agent is not None:
            self._agent.finished()
        self._member.leave()
        self._training.schedule.finish()
        return True

    def _get_ready(self) -> None:
        """Get ready for the first step in a group with a common state."""
        done = self._training.steps_done
        self._breaks.is_broken = False
        self._is_first = True
        self._restart_control(done)
        self.steps = self._given_steps
        self._training.drop_gradients()
        self.model.wrap()
        if self._feed is not None:
            self._feed.restart()
            if self._epochs is not None:
                remaining = self._feed.source.remaining(self._epochs)
                self.steps = None if remaining is None else done + remaining
        progress.resumed(done)
