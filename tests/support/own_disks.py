"""Simulated nodes without shared storage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ddpjob_operator.local.simulated.networks import NodeNetwork
from ddpjob_protocol.environment import ENV_ADDRESS, ENV_SNAPSHOT_DIR


class OwnDisks(NodeNetwork):
    """Each node has a working directory and a place for snapshots that no other one sees."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def workdir(self, node: str, given: Path) -> Path:
        del given
        self.disk(node).mkdir(exist_ok=True)
        return self.disk(node)

    def environment(self, node: str) -> Mapping[str, str]:
        return {ENV_ADDRESS: self.host, ENV_SNAPSHOT_DIR: str(self.disk(node) / "snapshots")}

    def disk(self, node: str) -> Path:
        return self._folder / node
