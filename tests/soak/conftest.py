"""What only `make soak` runs on a cluster: it takes minutes, and no tier collects this folder."""

from __future__ import annotations

from e2e.conftest import (
    images,
    kubeconfig,
    kubectl,
    namespace,
    namespaces,
    nodes,
    operator,
    session_name,
    volumes,
)

__all__ = [
    "images",
    "kubeconfig",
    "kubectl",
    "namespace",
    "namespaces",
    "nodes",
    "operator",
    "session_name",
    "volumes",
]
