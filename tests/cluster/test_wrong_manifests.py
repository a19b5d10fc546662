"""What a real API server says of wrong manifests, and whether model and CEL judge commands alike."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from cluster.conftest import CRD, DEFINITION
from cluster.control_plane import ControlPlane, eventually
from cluster.jobs import DRY, Jobs, complaint
from ddpjob_operator.api.errors import explain_errors
from support.refused import Object, accepted_by_model, build_job
from support.wrong_manifests import FIXED, WRONG, Wrong, job

SEED, CASES = 20, 1000


@pytest.fixture(scope="module")
def dry(apiserver: ControlPlane, crd: None) -> Jobs:
    """For what stores nothing."""
    return Jobs(apiserver, "default")


def answer_to(jobs: Jobs, manifest: str) -> str:
    """What the API server says of the text of a manifest."""
    http = jobs.server.http
    response = http.request(
        "POST",
        jobs.server.url + jobs.path + DRY,
        body=manifest,
        headers={**http.headers, "Content-Type": "application/yaml"},
    )
    return complaint(response.status, response.json())


@pytest.mark.parametrize("wrong", [pytest.param(wrong, id=wrong.id) for wrong in WRONG])
def test_the_api_server_refuses_wrong_manifests(dry: Jobs, wrong: Wrong) -> None:
    said = answer_to(dry, wrong.text)
    assert wrong.server in said
    assert bool(said) == bool(wrong.server), said


def test_a_number_with_a_fraction_needs_quotes(dry: Jobs) -> None:
    """`ddpjob apply` sends text; see test_commands.py."""
    said = answer_to(dry, job("resources: {limits: {cpu: 0.5, memory: 2.0}}"))
    assert said.splitlines()[0] == (
        'spec.resources.limits.cpu: Invalid value: "number": spec.resources.limits.cpu in body must '
        'be of type integer,string: "number"'
    )
    for value in ('"0.5"', "500m", "1", "1e3", "'.5'", "+2", "1E3"):
        assert not answer_to(dry, job(f"resources: {{limits: {{cpu: {value}}}}}"))


# --- model and API server read commands alike -----------------------------------------------------

WORDS = [
    *("torchrun", "/opt/bin/torchrun", "python", "python3.11", "/usr/bin/python", "train.py"),
    *("-m", "-c", "-u", "-W", "-", "--", "torch.distributed.run", "torch.distributed.launch"),
    *("--nnodes", "--nnodes=2", "--node_rank=0", "--node-rank", "--standalone", "--nnodes_x=1"),
    *("--nproc-per-node", "--nproc_per_node=2", "--rdzv-endpoint", "host:1", "-r", "3", "x.py"),
    *("sh", "bash -c", "", " ", "accelerate", "launch", "--lr", "0.1", "-x.py", "/a/train.py"),
]


def some_words(dice: random.Random) -> list[str]:
    start = dice.choice(
        (["torchrun"], ["python"], ["python3", "-u"], ["python", "-m", "torch.distributed.run"], [])
    )
    return [*start, *dice.choices(WORDS, k=dice.randint(0, 9))]


def some_spec(dice: random.Random) -> Object:
    """A random spec around a random command."""

    def maybe(fields: dict[str, Any], chance: float) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if dice.random() < chance}

    main = {
        "args": some_words(dice),
        "launcher": dice.choice(("torchrun", "python", "mpi")),
        "maxReplicas": dice.randint(1, 3),
        "processesPerWorker": dice.choice((1, 2, "auto")),
        "gpusPerWorker": dice.randint(0, 2),
        "suspend": dice.random() < 0.3,
    }
    own = {
        "command": some_words(dice),
        "args": some_words(dice),
        "processesPerWorker": dice.choice((1, 2, "auto")),
        "maxReplicas": dice.randint(1, 2),
    }
    groups = [{"name": "spot", "replicas": dice.randint(0, 1), **maybe(own, 0.4)}]
    command = some_words(dice) or ["torchrun"]
    several = {"extraWorkerGroups": groups} if dice.random() < 0.3 else {}
    return {
        "command": command,
        "replicas": dice.randint(0, 2),
        **maybe(main, 0.25),
        **several,
    }


def says_the_model(job: Object) -> str:
    try:
        accepted_by_model(job)
    except ValidationError as error:
        return "\n".join(map(str, explain_errors(error)))
    return ""


def test_model_and_api_server_give_the_same_verdict_on_random_commands(dry: Jobs) -> None:
    dice = random.Random(SEED)
    refused = 0
    for _ in range(CASES):
        made = build_job(some_spec(dice))
        server, model = dry.complaint(made), says_the_model(made)
        # Only the model finds --standalone behind a wrapper.
        in_wrapper = "--standalone" in str(made) and all(FIXED in x for x in model.splitlines())
        assert bool(server) == bool(model) or in_wrapper, f"{made}\n{server}\n{model}"
        refused += bool(server)
    assert CASES // 10 < refused < CASES * 9 // 10, "a mixture"


# --- a stored job that a newer version rejects ----------------------------------------------------


STORED: dict[str, Object] = {
    "script-alone": {"command": ["python", "train.py"]},
    "fixed-size": {"command": ["torchrun", "--nnodes=2", "train.py"]},
    "one-entry": {"command": ["torchrun train.py"]},
    "quantity": {"resources": {"limits": {"cpu": "4x"}}},
}


def test_stored_jobs_stay_writable(
    jobs: Jobs, apiserver: ControlPlane, subtests: pytest.Subtests
) -> None:
    """The operator writes its status, a controller its finalizers, the user suspends and repairs it."""
    definition = apiserver.get(DEFINITION)
    older = copy.deepcopy(definition)
    older["spec"] = yaml.safe_load(CRD.read_text())["spec"]
    schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del schema["x-kubernetes-validations"]
    schema["properties"]["resources"] = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    }
    bad = [build_job(spec, name) for name, spec in STORED.items()]
    put(apiserver, older)
    eventually(lambda: not any(map(jobs.complaint, bad)), "the older definition is in force")
    for each in bad:
        jobs.create(each)
    put(apiserver, definition)
    new = [build_job(spec, f"new-{name}") for name, spec in STORED.items()]
    eventually(lambda: all(map(jobs.complaint, new)), "the newer definition is in force")
    for name in STORED:
        with subtests.test(name):
            path = f"{jobs.path}/{name}"
            apiserver.send("PATCH", f"{path}/status", {"status": {"state": "Running"}})
            metadata = {"finalizers": ["a.b/c"], "labels": {"a": "b"}}
            apiserver.send("PATCH", path, {"metadata": metadata})
            apiserver.send("PATCH", path, {"metadata": {"finalizers": None}})
            apiserver.send("PATCH", path, {"spec": {"suspend": True}})
            apiserver.send("PATCH", f"{path}/status", {"status": {"state": "Suspended"}})
            repaired = {"command": ["torchrun", "train.py"], "resources": None, "suspend": False}
            apiserver.send("PATCH", path, {"spec": repaired})


def put(server: ControlPlane, definition: Object) -> None:
    """Replace the definition, whatever its version is."""
    current = server.get(DEFINITION)["metadata"]["resourceVersion"]
    metadata = {**definition["metadata"], "resourceVersion": current}
    server.send("PUT", DEFINITION, {**definition, "metadata": metadata})
