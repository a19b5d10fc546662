"""People with few rights, and a job: rows of SECURITY.md on a real API server.

The operator is a process, and the API server decides about roles. No node runs here: pods only exist,
and tests/e2e/test_lifecycle.py has the logs of a kubelet and the network.
"""

from __future__ import annotations

import base64
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from cluster.charting import Helm, of_kind, render
from cluster.control_plane import ControlPlane, Object, eventually
from cluster.jobs import API, Jobs
from cluster.operators import JOB, Operator, running
from cluster.people import RBAC, Person
from ddpjob_protocol.keys.credentials import JobKey
from support import forked_command
from support.key_traces import keys_from, keys_in, keys_of

OPERATOR_KEY = b"the key of an operator, in tests that look for it"
WORKERS = ("digits-worker-000-1", "digits-worker-001-1")
IN_SECRETS = {"job", "peers", *WORKERS}
DERIVED = {"operator", "memberships"}
SECONDS = 120
COMMANDS = {  # with what each shows
    ("get",): "digits",
    ("get", "digits", "-o", "yaml"): "kind: DDPJob",
    ("describe", "digits"): WORKERS[0],
    ("events", "digits"): "",
    ("doctor",): "operator",
}


class Stage(NamedTuple):
    """A job whose pods have their Secrets, and two persons."""

    server: ControlPlane
    operator: Operator
    here: str
    elsewhere: str
    uid: str
    keys: dict[str, bytes]  # all that are in use, by name
    viewer: Person  # has the role `view` in the namespace of the job
    neighbour: Person  # has the role `edit` in another namespace
    folder: Path

    def secrets(self, namespace: str) -> list[Object]:
        """Return the Secrets of a namespace."""
        found: list[Object] = self.server.get(f"/api/v1/namespaces/{namespace}/secrets")["items"]
        return found

    def contents(self, namespace: str) -> str:
        """Return the files in the Secrets of a namespace."""
        data = [each["data"]["keys"] for each in self.secrets(namespace)]
        return "\n".join(base64.b64decode(each).decode() for each in data)


def roles_of(server: ControlPlane, helm: Helm, suffix: str) -> dict[str, list[str]]:
    """Create the chart's roles for users; return the roles that make up `view` and `edit`.

    A controller adds their rules up, and none runs here.
    """
    for role in of_kind(render(helm, []), "ClusterRole"):
        if role["metadata"]["name"] in ("ddpjob-viewer", "ddpjob-editor"):
            body = {**role, "metadata": {"name": f"{role['metadata']['name']}-{suffix}"}}
            server.send("POST", f"{RBAC}/clusterroles", body)
    view = ["system:aggregate-to-view", f"ddpjob-viewer-{suffix}"]
    return {"view": view, "edit": [*view, "system:aggregate-to-edit", f"ddpjob-editor-{suffix}"]}


@pytest.fixture(scope="module")
def stage(
    apiserver: ControlPlane, crd: None, helm: Helm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    folder, suffix = tmp_path_factory.mktemp("threats"), uuid.uuid4().hex[:8]
    here, elsewhere = f"threats-{suffix}", f"threats-elsewhere-{suffix}"
    for namespace in (here, elsewhere):
        apiserver.create_namespace(namespace)
    roles = roles_of(apiserver, helm, suffix)
    viewer, neighbour = Person(apiserver, "vera", here), Person(apiserver, "ned", elsewhere)
    for person, role, namespace in ((viewer, "view", here), (neighbour, "edit", elsewhere)):
        for part in roles[role]:
            person.grant(part, namespace)
    key_file = folder / "operator.key"
    key_file.write_bytes(OPERATOR_KEY)
    uid = Jobs(apiserver, here).create(JOB)["metadata"]["uid"]
    keys = keys_of(JobKey.of(OPERATOR_KEY, uid), WORKERS) | {"the operator's key": OPERATOR_KEY}
    options = (
        f"--kubeconfig={apiserver.kubeconfig}",
        f"--key-file={key_file}",
        f"--namespace={here}",
        f"--namespace={elsewhere}",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDPJOB_LOG_LEVEL", "DEBUG")
        patch.setenv("PYTHONASYNCIODEBUG", "1")  # it shows arguments of slow callbacks
        with running(folder, *options) as operator:
            stage = Stage(
                apiserver, operator, here, elsewhere, uid, keys, viewer, neighbour, folder
            )
            operator.until(lambda: len(stage.secrets(here)) == len(WORKERS) + 1, "Secrets")
            yield stage
    for name in ("ddpjob-viewer", "ddpjob-editor"):
        apiserver.send("DELETE", f"{RBAC}/clusterroles/{name}-{suffix}")


def readable(person: Person, namespace: str) -> dict[str, str]:
    """Return all that a person can read in a namespace and of the cluster, by path."""
    found: dict[str, str] = {}
    versions = [
        "api/v1",
        *(
            f"apis/{group['preferredVersion']['groupVersion']}"
            for group in person.answer("GET", "/apis")[1]["groups"]
        ),
    ]
    for version in versions:
        resources = person.answer("GET", f"/{version}")[1].get("resources", [])
        subs = [
            each["name"] for each in resources if "get" in each["verbs"] and "/" in each["name"]
        ]
        for each in resources:
            if "list" not in each["verbs"]:
                continue
            place = f"namespaces/{namespace}/" if each["namespaced"] else ""
            path = f"/{version}/{place}{each['name']}"
            status, answer = person.answer("GET", path)
            if status == 200:
                found[each["name"]] = json.dumps(answer)
            for item in answer.get("items") or ():
                for sub in (name for name in subs if name.startswith(f"{each['name']}/")):
                    own = f"{path}/{item['metadata']['name']}/{sub.partition('/')[2]}"
                    status, more = person.answer("GET", own)
                    if status == 200:
                        found[sub] = found.get(sub, "") + json.dumps(more)
    return found


def run_command(stage: Stage, person: Person, *arguments: str) -> str:
    """Return what a `ddpjob` command of a person prints, also if it finds a problem."""
    access = person.kubeconfig(stage.folder / "kubeconfig")
    command = [*arguments, "--namespace", stage.here, "--kubeconfig", str(access)]
    with forked_command.start(command, stage.folder, {**os.environ}) as process:
        out, err = process.communicate("", SECONDS)
    assert "Traceback" not in err
    return str(out + err)


def test_a_viewer_reads_no_key_and_nothing_that_leads_to_one(stage: Stage) -> None:
    found: dict[str, str] = {}

    def may_read() -> bool:  # the API server knows a role a moment after it was written
        found.update(readable(stage.viewer, stage.here))
        return {"pods", "pods/status", "services", "events", "ddpjobs", "configmaps"} <= set(found)

    eventually(may_read, "the role is in force", lambda: str(sorted(found)))
    assert "secrets" not in found
    for secret in stage.secrets(stage.here):
        path = f"/api/v1/namespaces/{stage.here}/secrets/{secret['metadata']['name']}"
        assert secret["metadata"]["name"] in found["pods"], "the viewer knows the name"
        for query in ("", "?watch=true"):
            assert stage.viewer.answer("GET", path + query)[0] == 403
    shown = []
    for command, expected in COMMANDS.items():
        shown.append(run_command(stage, stage.viewer, *command))
        assert expected in shown[-1]
    everything = "\n".join([*found.values(), *shown])
    assert stage.uid in everything
    assert JobKey.of(OPERATOR_KEY, stage.uid).fingerprint in everything
    assert keys_in(everything, stage.keys) == set()
    assert keys_from(everything, stage.keys, [stage.uid]) == set()


def test_the_search_finds_keys_where_there_are_some(stage: Stage) -> None:
    contents = stage.contents(stage.here)
    assert keys_in(json.dumps(stage.secrets(stage.here)), stage.keys) == IN_SECRETS
    assert keys_from(contents, stage.keys, [stage.uid]) == IN_SECRETS | DERIVED
    everything = IN_SECRETS | DERIVED | {"the operator's key"}
    for text in (OPERATOR_KEY.decode(), f'"{OPERATOR_KEY.hex()}"', repr(OPERATOR_KEY)):
        assert keys_in(text, stage.keys) == {"the operator's key"}
    key = stage.keys["job"]
    for text in (repr(key), key[:16].hex(), base64.b64encode(b"x" + key).decode(), str([*key])):
        assert keys_in(text, stage.keys) == {"job"}, text
    assert stage.keys.keys() == everything


def test_the_operator_shows_no_key_on_any_port_or_in_its_log(stage: Stage) -> None:
    operator = stage.operator
    process = psutil.Process(operator.process.pid)
    listening = {
        each.laddr.port for each in process.net_connections("inet") if each.status == "LISTEN"
    }
    assert listening == {operator.health, operator.metrics}, "every port is in SECURITY.md"
    shown = [operator.get(path)[1] for path in ("/healthz", "/readyz", "/")]
    shown += [operator.get(path, operator.metrics)[1] for path in ("/metrics", "/")]
    log = operator.log.read_text()
    assert " DEBUG " in log
    words = " ".join(process.cmdline()) + "\0".join(process.environ().values())
    everything = "\n".join([*shown, log, words])
    assert keys_in(everything, stage.keys) == set()
    assert keys_from(everything, stage.keys, [stage.uid]) == set()


def pod(name: str, **spec: Any) -> Object:
    container = {"name": "main", "image": "any"}
    body = {"containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}


def mounting(**secret: str) -> Object:
    return pod("thief", volumes=[{"name": "keys", "secret": secret}])


def test_a_neighbour_reaches_nothing_in_the_namespace_of_the_job(stage: Stage) -> None:
    """With the role `edit` in another namespace, which may create pods and read Secrets there."""
    core, worker = f"/api/v1/namespaces/{stage.here}", WORKERS[0]
    name = stage.secrets(stage.here)[0]["metadata"]["name"]
    job = f"{API}/namespaces/{stage.here}/ddpjobs/digits"
    networking = f"/apis/networking.k8s.io/v1/namespaces/{stage.here}/networkpolicies"
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{stage.here}/endpointslices"
    attempts: list[tuple[str, str, Object | None]] = [
        *(("GET", f"{core}/{each}", None) for each in ("secrets", f"secrets/{name}", "pods")),
        ("GET", f"{core}/secrets?watch=true", None),
        ("POST", f"{core}/pods", mounting(secretName=name)),
        ("POST", f"{core}/secrets", {"metadata": {"name": "forged"}}),
        ("DELETE", f"{core}/secrets/{name}", None),
        ("DELETE", f"{core}/pods/{worker}", None),
        *(("GET", f"{core}/pods/{worker}/{each}", None) for each in ("log", "proxy", "attach")),
        *(("POST", f"{core}/pods/{worker}/{each}", {}) for each in ("exec", "portforward")),
        ("PATCH", f"{core}/pods/{worker}/ephemeralcontainers", {"spec": {}}),
        ("GET", f"{core}/services/digits-rendezvous:29400/proxy/report", None),
        ("POST", f"{core}/serviceaccounts/default/token", {}),
        ("POST", f"{core}/endpoints", {"metadata": {"name": "digits-rendezvous"}}),
        ("POST", slices, {"metadata": {"name": "forged"}}),
        ("DELETE", f"{networking}/digits-pods", None),
        ("PATCH", job, {"spec": {"replicas": 5}}),
        ("PATCH", f"{job}/status", {"status": {}}),
        ("POST", "/api/v1/persistentvolumes", {"metadata": {"name": "thief"}}),
    ]
    at_home = f"/api/v1/namespaces/{stage.elsewhere}/pods?dryRun=All"
    assert stage.neighbour.answer("POST", at_home, mounting(secretName=name))[0] == 201
    for method, path, body in attempts:
        status, answer = stage.neighbour.answer(method, path, body)
        assert status == 403, f"{method} {path}: {status} {answer}"
    status, _ = stage.neighbour.answer("GET", f"{core}/secrets", Impersonate_User="admin")
    assert status == 403
