"""Targets: jobs as the API server has them, reports of services, and what the operator makes of both."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from ddpjob_operator.api.stored_job import read_stored_job
from ddpjob_operator.manifests.build import build_rendezvous, build_service, build_worker
from ddpjob_operator.planner.actions import CreateRendezvous, CreateWorker
from ddpjob_operator.planner.observed import Observed, Rendezvous
from ddpjob_operator.planner.planner import plan
from ddpjob_protocol.codec import DecodeError, encode
from ddpjob_protocol.keys.signed_http import ForgedError, RequestSigner
from ddpjob_protocol.parsers.service_report import parse_report
from fuzz.target import Form, Target, of_json, to_json
from support.answers import FULL, MAX_STATUS_BYTES, check
from support.builders import NOW
from support.keys import KEY

SPEC: dict[str, Any] = {
    "image": "i", "command": ["torchrun", "a.py"], "replicas": 2, "minReplicas": 1,
    "resources": {"limits": {"nvidia.com/gpu": 1}}, "env": [{"name": "A", "value": "1"}],
    "template": {
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "containers": [{"name": "trainer", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "initContainers": [{"name": "c", "image": "c"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}}, "hostNetwork": True, "dnsPolicy": "None",
        },
    },
    "extraWorkerGroups": [{"name": "big", "replicas": 1, "command": ["torchrun", "a.py"]}],
    "failurePolicy": {"maxRestarts": {"application": 3}, "avoidNodes": 2},
    "snapshot": {"files": ["ckpt/*.pt"]}, "rendezvous": {"nodeSelector": {"a": "b"}},
}  # fmt: skip
STATUS: dict[str, Any] = {
    "rendezvousTerm": 1, "observedRendezvousTerm": 1, "startTime": "2026-01-02T03:04:05Z",
    "state": "Running", "restarts": {"application": 1},
    "conditions": [
        {"type": "Running", "status": "True", "reason": "Training", "message": "m",
         "lastTransitionTime": "2026-01-02T03:04:05Z", "observedGeneration": 1}
    ],
}  # fmt: skip


def job(**fields: Any) -> dict[str, Any]:
    metadata = {"name": "digits", "namespace": "ml", "uid": "u", "generation": 1}
    return {"apiVersion": "ddpjob.io/v1alpha1", "kind": "DDPJob", "metadata": metadata, **fields}


def run_a_pass(value: Any) -> None:
    match value:
        case {"metadata": {"name": str()}, **_rest}:
            stored = read_stored_job(value)
        case _:
            return
    assert len(json.dumps(stored.status_to_write(stored.status))) < MAX_STATUS_BYTES
    if stored.job is None or stored.problems:
        return
    planned = plan(Observed(stored.job, (), Rendezvous(term=1, ready=True)), NOW)
    assert len(json.dumps(planned.status.to_json(), allow_nan=False)) < MAX_STATUS_BYTES
    manifests = [
        build_service(stored.job),
        build_rendezvous(stored.job, CreateRendezvous("r", 1), "agent", KEY, "keys"),
    ]
    for each in planned.actions:
        if isinstance(each, CreateWorker) and len(manifests) < 5:
            manifests.append(build_worker(stored.job, each, "agent", KEY, "keys"))
    json.dumps(manifests)


def read_answer(value: Any) -> None:
    signer = RequestSigner(KEY.operator)
    try:
        signer.open(value, "n")
    except ForgedError:
        pass
    else:
        raise AssertionError("a proof without the key")
    check(parse_report(value))


TARGETS = (
    Target("answers", Form.JSON, of_json(read_answer), to_json(encode(FULL)), (DecodeError,)),
    Target(
        "stored",
        Form.JSON,
        of_json(run_a_pass),
        to_json(job(spec=SPEC), job(spec=SPEC, status=STATUS)),
        (ValidationError,),
    ),
)
