"""Folders that all nodes share, as volumes for jobs; all are gone when the tests end."""

from __future__ import annotations

from e2e.kubectl import Kubectl, Object

SIZE = {"storage": "1Gi"}
FOR_SESSION = "ddpjob-test"  # a label


class Volumes:
    """Those of one session, and who makes and removes their folders."""

    def __init__(self, session: str, shared: str, image: str) -> None:
        self._session, self._shared, self._image = session, shared, image

    def claim(self, kubectl: Kubectl, name: str, mode: str = "ReadWriteMany") -> None:
        """A claim of this name, to a new folder that any user may write to."""
        volume = f"{kubectl.namespace}-{name}"
        folder = f"{self._shared}/{self._session}/{volume}"
        self._as_root(kubectl, f"folder-{name}", ["install", "-d", "-m", "1777", folder])
        spec = {"accessModes": [mode], "storageClassName": ""}
        kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume, "labels": {FOR_SESSION: self._session}},
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

    def remove(self, kubectl: Kubectl) -> None:
        """All of them, with what is in them; no pod has one any more."""
        self._as_root(kubectl, "no-folder", ["rm", "-rf", f"{self._shared}/{self._session}"])
        kubectl("delete", "pod", "no-folder")
        kubectl("delete", "persistentvolume", f"--selector={FOR_SESSION}={self._session}")

    def _as_root(self, kubectl: Kubectl, pod: str, command: list[str]) -> None:
        container = {
            "name": "main",
            "image": self._image,
            "command": command,
            "securityContext": {"runAsUser": 0},
            "volumeMounts": [{"name": "shared", "mountPath": self._shared}],
        }
        manifest: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": pod},
            "spec": {
                "containers": [container],
                "restartPolicy": "Never",
                "volumes": [{"name": "shared", "hostPath": {"path": self._shared}}],
            },
        }
        kubectl.apply(manifest)
        kubectl.until(
            lambda: kubectl.get("pods", pod)["status"].get("phase") == "Succeeded",
            " ".join(command),
        )
