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

from ddpjob_protocol.process import ProcessMessage
from ddpjob_trainer.agent_link import connection
from ddpjob_trainer.data.stream import Stream
from ddpjob_trainer.elastic.data_feed import DataFeed
from ddpjob_trainer.elastic.ddp_model import ElasticModel
from ddpjob_trainer.elastic.group.commit_gate import CommitGate
from ddpjob_trainer.elastic.group.group_breaks import GroupBreaks
from ddpjob_trainer.elastic.group.group_member import GroupMember
from ddpjob_trainer.elastic.group.process_group import ElasticProcessGroup, backend_for
from ddpjob_trainer.elastic.live_snapshots import LiveSnapshots
from ddpjob_trainer.elastic.state.train_state import TrainState
from ddpjob_trainer.elastic.step import Step
from ddpjob_trainer.reporting import progress
from ddpjob_trainer.snapshots.manager import VARIABLES, Snapshots

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader

    from ddpjob_trainer.elastic.state.step_rollback import StepRollback


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
        self._training = TrainState(model, optimizer, self._feed, extra, scheduler, scaler)
        device = next(iter(model.parameters()), torch.empty(0)).device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # or all ranks of a node would communicate by GPU 0
        group = ElasticProcessGroup(backend_for(device), device)
        self._training.before_change = CommitGate(group, model.parameters()).check
        self._agent = connection.connect(group, self._training.dump)
        self._breaks = GroupBreaks(self._agent)
        self._snapshots = LiveSnapshots(snapshots, self._training, self._breaks)
        self._member = GroupMember(
            group, self._breaks, self.model, self._training, self._feed, self._snapshots
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
            while self._agent is not None and self._member.follow(self._agent):
                self._get_ready()
                self._agent.report_step(self._training.steps_done, self._last)
            done = self._training.steps_done
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
            if self._agent is not None:
                self._agent.report_step(done, self._last)
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

    def begin(self) -> StepRollback:
        """Begin a step."""
        return self._training.begin()

    def end(self, step: Step, attempt: StepRollback, error: BaseException | None) -> bool:
        """End a step, with or without an error; return True if the error is handled."""
        if error is not None and not self._breaks.is_break(error):
            self._training.end()
            return False
        if error is None and self._feed is not None:
            self._feed.check()
        if error is None or attempt.applied:
            self._count(step)
        else:
            self._training.rollback()
        if error is not None:
            self._breaks.await_assignment(error)
        return True

    def _count(self, step: Step) -> None:
        done = self._training.count()
        step.done = True
        progress.step_done(done, self.steps, **step.metrics)
        self._snapshots.save_if_due(done)
        if self._agent is not None:
            self._agent.report_step(done, self._last)

    def _finish(self) -> bool:
        """Leave after the last step, with all ranks; return False if the membership has changed."""
        self._snapshots.save_before_exit()
        try:
            distributed.all_reduce(torch.zeros(1))  # on the CPU, where an abort raises an error
        except Exception as error:  # noqa: BLE001 - raised again if it is no break
            self._breaks.handle(error)
            return False
        if self._agent is not None:
            self._agent.send(ProcessMessage.FINISHED)
        self._member.leave()
        return True

    def _get_ready(self) -> None:
        """Get ready for the first step in a group with a common state."""
        done = self._training.steps_done
        self._breaks.is_broken = False
        self._optimizer.zero_grad(set_to_none=True)
        self.model.wrap()
        if self._feed is not None:
            self._feed.restart()
            if self._epochs is not None:
                remaining = self._feed.source.remaining(self._epochs)
                self.steps = None if remaining is None else done + remaining
        progress.resumed(done)


def _check_deterministic(shards: int, loader: Any, ddp_options: dict[str, Any]) -> None:
    if loader is None or ddp_options:
        raise ValueError("deterministic needs a loader, and takes no options of DDP")
    if shards < 1 or shards & (shards - 1):
        raise ValueError(f"deterministic is {shards}: a power of two is needed, as 8")
    torch.use_deterministic_algorithms(True, warn_only=True)
