"""A namespace for whoever asks; what is in it goes while others go on."""

from __future__ import annotations

import uuid
from pathlib import Path

from e2e.kubectl import Kubectl


class Namespaces:
    """Those of one session."""

    def __init__(self, kubeconfig: Path, session: str) -> None:
        self._kubeconfig, self._session = kubeconfig, session
        self._used: list[Kubectl] = []

    def new(self) -> Kubectl:
        """kubectl in a namespace of its own."""
        name = f"{self._session}-{uuid.uuid4().hex[:8]}"
        kubectl = Kubectl(self._kubeconfig, name)
        kubectl("create", "namespace", name)
        self._used.append(kubectl)
        return kubectl

    def leave(self, kubectl: Kubectl) -> None:
        """Begin to delete it; who holds a GPU goes at once."""
        kubectl("delete", "namespace", kubectl.namespace, "--wait=false")
        kubectl("delete", "pods", "--all", "--grace-period=1", "--wait=false")

    def until_gone(self) -> None:
        """Nothing is left of any."""
        if names := [kubectl.namespace for kubectl in self._used]:
            Kubectl(self._kubeconfig)(
                *("delete", "namespaces", *names, "--ignore-not-found", "--timeout=300s")
            )
