"""Builds the Secrets with the keys of a job's pods, one for each pod.

The pod owns its Secret, so the garbage collector deletes the Secret after the pod. The operator only
creates it.
"""

from __future__ import annotations

import base64

from ddpjob_operator.api import constants
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.manifests.metadata import object_metadata
from ddpjob_operator.manifests.parse import Pod
from ddpjob_operator.manifests.pieces import Manifest
from ddpjob_protocol.keys.credentials import JobKey

KEYS_FILE = "keys"  # in the Secret, and the name of the file that comes of it
KEYS_FOLDER = "/keys"  # where a container gets the Secret
KEYS_MOUNT = {"name": constants.KEYS_VOLUME, "mountPath": KEYS_FOLDER, "readOnly": True}


def build_secret(job: DDPJob, pod: Pod, key: JobKey) -> Manifest:
    """Return the Secret that a pod names, which the pod owns."""
    text = key.worker_keys(pod.name).to_text() if pod.worker else key.to_text()
    labels = {constants.LABEL_JOB: job.metadata.name, constants.LABEL_ROLE: pod.role}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            **object_metadata(job, pod.secret, labels),
            "ownerReferences": [owner],
        },
        "type": "Opaque",
        "immutable": True,
        "data": {KEYS_FILE: base64.b64encode(text.encode()).decode()},
    }


def keys_volume(secret: str) -> Manifest:
    """Return the volume with the Secret of a pod."""
    return {"name": constants.KEYS_VOLUME, "secret": {"secretName": secret}}
