"""Deterministic mode: equal bits for any number of ranks, because sums have one fixed order.

A batch is always cut into the same shards. Each shard's gradient is computed alone, with random
numbers derived from the seed, the step and the shard. One binary tree fixes the order in which the
gradients are added. Each rank adds up the subtrees that its shards fill and broadcasts these sums.
Then each rank completes the tree with the sums of the other ranks. The order of additions does not
depend on the rank that holds a shard. This module does not depend on loops or data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class TreeNode(NamedTuple):
    """A subtree of 2**level shards, from shard position * 2**level on."""

    level: int
    position: int

    @property
    def parent(self) -> TreeNode:
        """The subtree of which this subtree is one half."""
        return TreeNode(self.level + 1, self.position // 2)

    @property
    def first(self) -> int:
        """The first shard of this subtree."""
        return self.position << self.level


def subtrees(shards: range) -> list[TreeNode]:
    """Return the largest subtrees that these shards fill, from left to right."""
    tree = SumTree()
    for shard in shards:
        tree.add(TreeNode(0, shard), None)
    return [node for node, _ in tree.sums]


class SumTree:
    """The completed sums along the tree. A subtree without samples has the sum None."""

    def __init__(self) -> None:
        self.sums: list[tuple[TreeNode, torch.Tensor | None]] = []

    def add(self, node: TreeNode, value: torch.Tensor | None) -> None:
        """Add the next subtree to the right."""
        while self.sums and node.position % 2:
            left, before = self.sums[-1]
            if left != TreeNode(node.level, node.position - 1):
                break
            self.sums.pop()
            value, node = _plus(before, value), node.parent
        self.sums.append((node, value))

    def total(self) -> torch.Tensor | None:
        """Return the sum of all shards, once the shards fill the tree."""
        [(_, value)] = self.sums
        return value


def _plus(left: torch.Tensor | None, right: torch.Tensor | None) -> torch.Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left.add_(right)


class DeterministicReducer:
    """The gradients of one step, collected by shard, then summed to equal bits on each rank."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._parameters = [each for each in parameters if each.requires_grad]
        self._tree = SumTree()
        self._next = 0  # shard

    def begin(self, first: int) -> None:
        """Begin a step with this rank's first shard."""
        self._tree, self._next = SumTree(), first

    def add_shard(self, shard: int) -> None:
        """Add the current gradients of the parameters as those of this shard, and clear them."""
        self._skip_to(shard)
        self._tree.add(TreeNode(0, shard), self._pack())
        self._next = shard + 1
        for parameter in self._parameters:
            parameter.grad = None

    def finish(self, ranges: Sequence[range], filled: int) -> None:
        """Set the parameters' gradients to the sum over all ranks, whose shards are `ranges`.

        The first `filled` shards of the batch hold samples.
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
        """Add the shards before `shard`, which hold no samples."""
        for empty in range(self._next, shard):
            self._tree.add(TreeNode(0, empty), None)

    def _share(self, owner: int, value: torch.Tensor | None) -> torch.Tensor:
        """Return the owner's value; the other ranks pass None."""
        if value is None:
            size = sum(map(_count, self._parameters)) + len(self._parameters)
            value = torch.empty(size, dtype=self._dtype, device=self._parameters[0].device)
        distributed.broadcast(value, owner)
        return value

    @property
    def _dtype(self) -> torch.dtype:
        kinds = {parameter.dtype for parameter in self._parameters}
        return torch.float64 if kinds & {torch.float64, torch.complex128} else torch.float32

    def _pack(self) -> torch.Tensor:
        """Return a flat tensor of all gradients, then a flag per parameter: 1 with a gradient."""
        found = [parameter.grad for parameter in self._parameters]
        used = torch.tensor([float(each is not None) for each in found], device="cpu")
        flat = [
            torch.zeros(_count(parameter), device=parameter.device) if each is None else _real(each)
            for parameter, each in zip(self._parameters, found, strict=True)
        ]
        device = self._parameters[0].device
        return torch.cat([each.detach().reshape(-1).to(device, self._dtype)
                          for each in (*flat, used)])  # fmt: skip

    def _unpack(self, total: torch.Tensor) -> None:
        used = total[-len(self._parameters) :].tolist()
        sizes = [*map(_count, self._parameters)]
        parts = total[: -len(self._parameters)].split(sizes)
        for parameter, part, is_used in zip(self._parameters, parts, used, strict=True):
            if not is_used:
                parameter.grad = None
                continue
            shaped = torch.empty_like(parameter, requires_grad=False)
            _real(shaped).copy_(part.view(_real(shaped).shape))
            parameter.grad = shaped


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as pairs of real numbers, and other tensors as they are."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _count(tensor: torch.Tensor) -> int:
    """Return the count of real numbers in a tensor."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)
