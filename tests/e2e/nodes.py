"""Stops and starts the nodes of the development cluster, which are containers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from e2e.kubectl import Kubectl

NETWORK = "kind"
UP = Path(__file__).resolve().parents[2] / "tools" / "kind" / "up.sh"


class Nodes:
    """The cluster's nodes; what was stopped is started again in the end."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._stopped: list[str] = []
        self._cut_off: list[str] = []

    def stop(self, node: str) -> None:
        """The node loses power."""
        self._stopped.append(node)
        _docker("kill", node)

    def cut_off(self, node: str) -> None:
        """The node's network is deleted: packets vanish, and no connection is closed."""
        self._cut_off.append(node)
        _docker("network", "disconnect", NETWORK, node)

    def restore(self) -> None:
        """Everything is as it was, GPUs included."""
        if not self._stopped and not self._cut_off:
            return
        for node in self._cut_off:
            _docker("network", "connect", NETWORK, node)
            _docker("kill", node)  # a container learns of its network when it starts
        for node in (*self._stopped, *self._cut_off):
            _docker("start", node)
        self._kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=300s")
        subprocess.run([UP], check=True, capture_output=True)  # routes between nodes, and GPUs
        self._stopped.clear()
        self._cut_off.clear()


def _docker(*arguments: str) -> None:
    subprocess.run(["docker", *arguments], check=True, capture_output=True)
