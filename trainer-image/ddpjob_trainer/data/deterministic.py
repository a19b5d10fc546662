"""Deterministic mode: the same bits for any ranks, because sums are formed in one order.

A batch is always cut into the same shards. Each shard's gradient is computed alone, with random
numbers that follow from seed, step and shard; then all are added up along one binary tree. Each
rank adds up the subtrees whose shards it has, sends these, and finishes the tree with those of the
others: what is added to what does not depend on who has it.
Knows nothing of loops and data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class TreeNode(NamedTuple):
    """A subtree: shards from place * 2**level on, 2**level of them."""

    level: int
    position: int

    @property
    def parent(self) -> TreeNode:
        """The subtree that it is a half of."""
        return TreeNode(self.level + 1, self.position // 2)

    @property
    def first(self) -> int:
        """Its first shard."""
        return self.position << self.level


def subtrees(shards: range) -> list[TreeNode]:
    """The largest ones that these shards fill, in their order."""
    tree = SumTree()
    for shard in shards:
        tree.add(TreeNode(0, shard), None)
    return [node for node, _ in tree.sums]


class SumTree:
    """Sums along the tree as far as they are complete. A subtree without samples is None."""

    def __init__(self) -> None:
        self.sums: list[tuple[TreeNode, torch.Tensor | None]] = []

    def add(self, node: TreeNode, value: torch.Tensor | None) -> None:
        """The next subtree to the right."""
        while self.sums and node.position % 2:
            left, before = self.sums[-1]
            if left != TreeNode(node.level, node.position - 1):
                break
            self.sums.pop()
            value, node = _plus(before, value), node.parent
        self.sums.append((node, value))

    def total(self) -> torch.Tensor | None:
        """Of all, once they fill the tree."""
        [(_, value)] = self.sums
        return value


def _plus(left: torch.Tensor | None, right: torch.Tensor | None) -> torch.Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left.add_(right)


class DeterministicReducer:
    """Those of one step: collected shard by shard, then the same on every rank."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._parameters = [each for each in parameters if each.requires_grad]
        self._tree = SumTree()
        self._next = 0  # shard

    def begin(self, first: int) -> None:
        """A step begins; this rank's first shard."""
        self._tree, self._next = SumTree(), first

    def add_shard(self, shard: int) -> None:
        """The gradients that the parameters have now are this shard's."""
        self._skip_to(shard)
        self._tree.add(TreeNode(0, shard), self._pack())
        self._next = shard + 1
        for parameter in self._parameters:
            parameter.grad = None

    def finish(self, ranges: Sequence[range], filled: int) -> None:
        """All ranks have taken theirs, which are these: give the sum to the parameters.

        So many shards, from the first on, hold samples.
        """
        rank = distributed.get_rank()
        self._skip_to(ranges[rank].stop)
        mine = dict(self._tree.sums)
        whole = SumTree()
        for owner, shards in enumerate(ranges):
            for node in subtrees(shards):
                whole.add(node, self._share(owner, mine.get(node)) if node.first < filled else None)
        total = whole.total()
        assert total is not None
        self._unpack(total)

    def _skip_to(self, shard: int) -> None:
        """Shards that hold no samples."""
        for empty in range(self._next, shard):
            self._tree.add(TreeNode(0, empty), None)

    def _share(self, owner: int, value: torch.Tensor | None) -> torch.Tensor:
        """The owner's value; only it has one before."""
        if value is None:
            size = sum(parameter.numel() for parameter in self._parameters) + len(self._parameters)
            value = torch.empty(size, dtype=self._dtype, device=self._parameters[0].device)
        distributed.broadcast(value, owner)
        return value

    @property
    def _dtype(self) -> torch.dtype:
        kinds = {parameter.dtype for parameter in self._parameters}
        return torch.float64 if torch.float64 in kinds else torch.float32

    def _pack(self) -> torch.Tensor:
        """All gradients one after the other, and for each parameter whether it has one."""
        found = [parameter.grad for parameter in self._parameters]
        used = torch.tensor([float(each is not None) for each in found])
        flat = [
            torch.zeros(parameter.numel(), device=parameter.device) if each is None else each
            for parameter, each in zip(self._parameters, found, strict=True)
        ]
        device = self._parameters[0].device
        return torch.cat([each.detach().reshape(-1).to(device, self._dtype)
                          for each in (*flat, used)])  # fmt: skip

    def _unpack(self, total: torch.Tensor) -> None:
        used = total[-len(self._parameters) :].tolist()
        sizes = [parameter.numel() for parameter in self._parameters]
        parts = total[: -len(self._parameters)].split(sizes)
        for parameter, part, is_used in zip(self._parameters, parts, used, strict=True):
            shaped = part.view(parameter.shape).to(parameter.device, parameter.dtype)
            parameter.grad = shaped.clone() if is_used else None
