"""Builds the Secrets with the keys of a job's pods, one for each pod.

The operator only creates them. A name contains the fingerprint of the job's key, so one that exists
has the same content.
"""

from __future__ import annotations

import base64

from ddpjob_operator.api import constants
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.manifests.metadata import object_metadata
from ddpjob_operator.manifests.pieces import Manifest
from ddpjob_operator.planner.actions import CreateRendezvous, CreateWorker
from ddpjob_protocol.keys.credentials import JobKey

KEYS_FILE = "keys"  # in the Secret, and the name of the file that comes of it
KEYS_FOLDER = "/keys"  # where a container gets the Secret


def secret_name(pod: str, key: JobKey) -> str:
    """Return the name of the Secret of a pod."""
    return f"{pod}-{key.fingerprint}"


def build_secret(job: DDPJob, action: CreateRendezvous | CreateWorker, key: JobKey) -> Manifest:
    """Return the Secret of a pod, which the job owns."""
    if isinstance(action, CreateWorker):
        role, text = constants.ROLE_WORKER, key.worker_keys(action.name).to_text()
    else:
        role, text = constants.ROLE_RENDEZVOUS, key.to_text()
    labels = {constants.LABEL_JOB: job.metadata.name, constants.LABEL_ROLE: role}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": object_metadata(job, secret_name(action.name, key), labels),
        "type": "Opaque",
        "immutable": True,
        "data": {KEYS_FILE: base64.b64encode(text.encode()).decode()},
    }


def secret_volume(pod: str, key: JobKey) -> Manifest:
    """Return the source of the volume with the keys of a pod."""
    return {"secret": {"secretName": secret_name(pod, key)}}
