"""Stands in for Horovod, which cannot be built for today's torch: what the example uses, over MPI."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from mpi4py import MPI

COMM = MPI.COMM_WORLD


def init() -> None:
    """MPI is there with its import."""


def rank() -> int:
    return COMM.rank


def local_rank() -> int:
    return int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])


def size() -> int:
    return COMM.size


def broadcast_object(value: Any, root_rank: int) -> Any:
    return COMM.bcast(value, root_rank)


def broadcast_parameters(state: Mapping[str, torch.Tensor], root_rank: int) -> None:
    for tensor in state.values():
        COMM.Bcast(tensor.numpy(), root_rank)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    optimizer.load_state_dict(COMM.bcast(optimizer.state_dict(), root_rank))


class DistributedOptimizer:
    """Averages gradients before each step."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
    ) -> None:
        self._optimizer = optimizer
        self._parameters = [parameter for _, parameter in named_parameters]

    def step(self) -> None:
        for parameter in self._parameters:
            assert parameter.grad is not None
            COMM.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())
            parameter.grad /= COMM.size
        self._optimizer.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)
