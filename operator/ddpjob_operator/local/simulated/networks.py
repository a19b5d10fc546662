"""The networks of simulated nodes: the address of each pod and of the service.

May not: start processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ddpjob_protocol.environment import ENV_ADDRESS


class NodeNetwork:
    """A network in which all nodes and the service share one loopback address."""

    host = "127.0.0.1"  # address of the service

    def namespace(self, _node: str) -> str:
        """Return the file of a node's network namespace; empty: no separate namespace."""
        return ""

    def environment(self, _node: str) -> Mapping[str, str]:
        """Return the variables with the address of a pod on a node."""
        return {ENV_ADDRESS: self.host}

    def workdir(self, _node: str, given: Path) -> Path:
        """Return the working directory on a node; all nodes share one folder."""
        return given


class SeparateNetworks(NodeNetwork):
    """A network with one address per node, for scripts that distinguish hosts by address."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}

    def environment(self, node: str) -> Mapping[str, str]:
        """Return the variables with the node's own address."""
        new = f"127.0.1.{len(self._addresses) + 1}"
        return {ENV_ADDRESS: self._addresses.setdefault(node, new)}


def within(network: str) -> list[str]:
    """Return the command prefix for a network namespace."""
    return ["nsenter", f"--net={network}"] if network else []
