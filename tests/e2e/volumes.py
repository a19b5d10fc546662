"""Folders that all nodes share, as volumes for jobs; each is gone when its test ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import PurePosixPath

from e2e.kubectl import Kubectl, Object

SIZE = {"storage": "1Gi"}


@contextlib.contextmanager
def claim(kubectl: Kubectl, name: str, shared: str, image: str, mode: str) -> Iterator[None]:
    """A claim of this name, to a new folder that any user may write to."""
    volume, folder = f"{kubectl.namespace}-{name}", f"{shared}/{kubectl.namespace}-{name}"
    _as_root(kubectl, image, shared, ["install", "-d", "-m", "1777", folder])
    spec = {"accessModes": [mode], "storageClassName": ""}
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                **spec,
                "capacity": SIZE,
                "claimRef": {"namespace": kubectl.namespace, "name": name},
                "hostPath": {"path": folder, "type": "Directory"},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {**spec, "resources": {"requests": SIZE}, "volumeName": volume},
        },
    )
    kubectl("wait", "--for=jsonpath={.status.phase}=Bound", f"pvc/{name}", "--timeout=180s")
    yield
    kubectl("delete", "ddpjobs", "--all", "--timeout=180s")
    kubectl("delete", "persistentvolumeclaim", name, "--timeout=180s")
    kubectl("delete", "persistentvolume", volume, "--timeout=180s")
    _as_root(kubectl, image, shared, ["rm", "-rf", folder])


def _as_root(kubectl: Kubectl, image: str, shared: str, command: list[str]) -> None:
    name = f"folder-{PurePosixPath(command[0]).name}"
    container = {
        "name": "main",
        "image": image,
        "command": command,
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "shared", "mountPath": shared}],
    }
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "volumes": [{"name": "shared", "hostPath": {"path": shared}}],
        },
    }
    kubectl.apply(pod)
    kubectl.until(
        lambda: kubectl.get("pod", name)["status"].get("phase") == "Succeeded",
        " ".join(command),
    )
