"""A process as a member of one group after the other, as its agent assigns.

A process leaves its group after a stop step that all ranks share, or at once if the group broke. In
a new group, the ranks agree on the newest state, and those with an older one or none receive it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch import distributed

from ddpjob_protocol.environment import ENV_MEMBERSHIP, ENV_STORE
from ddpjob_trainer.elastic import own_state
from ddpjob_trainer.tensors import rng_state
from ddpjob_trainer.transfer.agreement import BEGINNING, Agreement, StateVersion, agree, exchange

if TYPE_CHECKING:
    from ddpjob_protocol.messages.membership import Membership
    from ddpjob_protocol.messages.process import Assignment
    from ddpjob_trainer.agent_link.connection import AgentConnection
    from ddpjob_trainer.elastic.data_feed import DataFeed
    from ddpjob_trainer.elastic.ddp_model import ElasticModel
    from ddpjob_trainer.elastic.group.group_breaks import GroupBreaks
    from ddpjob_trainer.elastic.group.process_group import ElasticProcessGroup
    from ddpjob_trainer.elastic.live_snapshots import LiveSnapshots
    from ddpjob_trainer.elastic.state.replica_check import ReplicaCheck
    from ddpjob_trainer.elastic.state.train_state import TrainState


class GroupMember:
    """One process and its groups, one at a time."""

    def __init__(
        self,
        group: ElasticProcessGroup,
        breaks: GroupBreaks,
        model: ElasticModel,
        training: TrainState,
        feed: DataFeed | None,
        snapshots: LiveSnapshots,
        replicas: ReplicaCheck,
    ) -> None:
        self._group = group
        self._breaks = breaks
        self._model = model
        self._training = training
        self._feed = feed
        self._snapshots = snapshots
        self._replicas = replicas
        self._membership: Membership | None = None

    def join_alone(self) -> None:
        """Join the group of torchrun's environment, or a group of this process alone."""
        if "RANK" in os.environ:
            self._group.init_torch()
        else:
            self._group.init_torch(store=distributed.HashStore(), rank=0, world_size=1)
        world_size = distributed.get_world_size()
        self._exchange_state(Agreement((None,) * world_size), None, distributed.get_rank())
        self._replicas.check()
        if self._feed is not None:
            self._feed.sync_speeds()

    def follow(self, agent: AgentConnection) -> bool:
        """Follow the assignments until this process is in a new group, or may start a step.

        Return True in a new group. Raise SystemExit if the agent has assigned the end.
        """
        while True:
            assignment = agent.assignment
            if assignment.membership is None:
                if self._has_passed(assignment.last_step):
                    self._pause(agent, assignment)
                    continue
            elif self._is_left_for(assignment.membership):
                if self._regroup(agent, assignment, assignment.membership):
                    return True
                continue
            if agent.may_start_step(self._training.steps_done):
                return False
            agent.wait_for_change(assignment)

    def leave(self) -> None:
        """Leave the group, if there is one."""
        self._model.unwrap()
        self._replicas.forget()
        self._group.destroy()
        self._membership = None

    def _pause(self, agent: AgentConnection, assignment: Assignment) -> None:
        """Leave the group and wait for another assignment. Raise SystemExit if none will come."""
        if assignment.save and self._membership is not None:
            self._snapshots.save_before_exit()
        self.leave()
        if assignment.leave:
            raise SystemExit(0)
        agent.left_group(None)
        agent.wait_for_change(assignment)

    def _is_left_for(self, other: Membership) -> bool:
        own = self._membership
        if own is None:
            return True
        return other.id > own.id and (other.stops_at_once(own.id) or self._has_passed(other.after))

    def _has_passed(self, after: int | None) -> bool:
        """Return whether the group has done its stop step."""
        if self._membership is None or after is None or self._breaks.is_broken:
            return True
        return self._training.steps_done > after

    def _regroup(
        self, agent: AgentConnection, assignment: Assignment, membership: Membership
    ) -> bool:
        """Join a membership's group; return False if the group broke or is superseded."""
        self.leave()
        self._snapshots.forget()
        agent.left_group(membership)
        rank = assignment.first_rank + int(os.environ.get("LOCAL_RANK", "0"))
        try:
            store = self._group.connect_store(os.environ[ENV_STORE], str(membership.id))
            if not agent.entering_group(membership):
                return False
            agreement = agree(store, rank, membership.world_size, self._training.progress)
            self._group.init(store, rank, membership.world_size)
            os.environ.update(
                RANK=str(rank),
                WORLD_SIZE=str(membership.world_size),
                **{ENV_MEMBERSHIP: str(membership.id)},
            )
            self._exchange_state(agreement, membership.snapshot_step, rank)
            self._replicas.check()
            if self._feed is not None:
                self._feed.sync_speeds()
        except Exception as error:  # noqa: BLE001 - raised again if it is not a break
            self._breaks.handle(error)
            self.leave()
            return False
        self._membership, self._training.membership = membership, membership.id
        agent.entered_group(membership)
        return True

    def _exchange_state(self, agreement: Agreement, snapshot_step: int | None, rank: int) -> None:
        """Bring this process to the state that all ranks resume from."""
        newest = agreement.newest
        is_old = newest is None or newest.step < (snapshot_step or 0)
        if is_old and self._snapshots.load():
            return
        choose = None
        if newest is None:  # no process has a state: all begin like rank 0
            if rank == 0:
                self._training.check_untrained()
            newest = StateVersion(0, BEGINNING)
            agreement = Agreement((newest, *[None] * (len(agreement.states) - 1)))
        elif rank not in agreement.holders:
            self._snapshots.wait_for_copy()
            # An older state stays until the newest one has arrived.
            if self._training.progress is None:
                choose = own_state.memory_of(self._training)
        # Over the CPU's backend: an abort raises an error there, but not on a GPU.
        cpu = torch.device("cpu")
        taken = exchange(agreement, rank, cpu, self._training.collect, choose)
        with self._training.changing:
            if taken is not None:
                self._snapshots.wait_for_copy()
                own_state.restore(self._training, taken)
                rng_state.draw_from(taken["extra"]["random"], rank)
            self._training.done, self._training.done_in = newest
        self._snapshots.resume_from(newest.step)
