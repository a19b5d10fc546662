"""Faults of single pods, made on the nodes of the development cluster, which are containers."""

from __future__ import annotations

import subprocess

from e2e.kubectl import Object

DIRECTIONS = ("-s", "-d")


class PodFaults:
    """Frozen and cut off pods; all are as they were when the test ends."""

    def __init__(self) -> None:
        self._frozen: list[tuple[str, list[str]]] = []
        self._cut_off: list[tuple[str, str]] = []

    def freeze(self, pod: Object) -> None:
        """Send SIGSTOP to all processes of its first container."""
        node = pod["spec"]["nodeName"]
        container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("//")[2]
        _, *rows = _on(node, "ctr", "-n", "k8s.io", "task", "ps", container).splitlines()
        processes = [row.split()[0] for row in rows]
        self._frozen.append((node, processes))
        _on(node, "kill", "-STOP", *processes)

    def thaw(self) -> None:
        """Send SIGCONT; processes that have been killed since do not matter."""
        for node, processes in self._frozen:
            _on(node, "kill", "-CONT", *processes, check=False)
        self._frozen.clear()

    def cut_off(self, pod: Object) -> None:
        """Its packets vanish in both directions, and no connection is closed."""
        node, address = pod["spec"]["nodeName"], pod["status"]["podIP"]
        self._cut_off.append((node, address))
        for direction in DIRECTIONS:
            _on(node, *_rule("-I", direction, address))

    def restore(self) -> None:
        """End all faults."""
        self.thaw()
        for node, address in self._cut_off:
            for direction in DIRECTIONS:
                _on(node, *_rule("-D", direction, address))
        self._cut_off.clear()


def _rule(action: str, direction: str, address: str) -> tuple[str, ...]:
    return ("iptables", "-t", "raw", action, "PREROUTING", direction, address, "-j", "DROP")


def _on(node: str, *words: str, check: bool = True) -> str:
    command = ["docker", "exec", node, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
