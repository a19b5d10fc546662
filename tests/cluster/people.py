"""People on the API server: accounts with tokens and roles of their own."""

from __future__ import annotations

from pathlib import Path

import yaml

from cluster.control_plane import ControlPlane, Object

RBAC = "/apis/rbac.authorization.k8s.io/v1"
GROUP = "rbac.authorization.k8s.io"


class Person:
    """An account in a namespace; it acts by its own token."""

    def __init__(self, server: ControlPlane, name: str, home: str) -> None:
        self._server = server
        self._subject = {"kind": "ServiceAccount", "name": name, "namespace": home}
        accounts = f"/api/v1/namespaces/{home}/serviceaccounts"
        server.send("POST", accounts, {"metadata": {"name": name}})
        self.token = token_of(server, name, home)

    def grant(self, role: str, namespace: str) -> None:
        """Give the person a cluster role in a namespace."""
        grant(self._server, self._subject, role, namespace)

    def answer(
        self, method: str, path: str, body: Object | None = None, **headers: str
    ) -> tuple[int, Object]:
        """Send a request; return status and answer."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        access = {"Authorization": f"Bearer {self.token}", **given}
        return self._server.answer(method, path, body, access)

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig of the person; return its path."""
        access = yaml.safe_load(self._server.kubeconfig.read_text())
        access["users"][0]["user"] = {"token": self.token}
        path.write_text(yaml.safe_dump(access))
        return path


def token_of(server: ControlPlane, account: str, namespace: str) -> str:
    """Return a new token of a service account."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token: str = server.send("POST", path, request)["status"]["token"]
    return token


def grant(server: ControlPlane, subject: Object, role: str, namespace: str) -> None:
    """Bind a cluster role in a namespace to a subject."""
    body = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "RoleBinding",
        "metadata": {"generateName": "binding-"},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    }
    server.send("POST", f"{RBAC}/namespaces/{namespace}/rolebindings", body)
