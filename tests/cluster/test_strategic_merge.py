"""A real API server merges pod templates as the operator does, and has the same merge keys."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cluster.control_plane import ROOT, ControlPlane
from ddpjob_operator.api.spec.pod.pod_template import (
    CONTAINER_FIELDS,
    OTHER_CONTAINER_FIELDS,
    OTHER_POD_FIELDS,
    POD_FIELDS,
)
from ddpjob_operator.api.spec.pod.strategic_merge import MERGE_KEYS, merge, without_nulls
from support.merge_cases import CASES, ORIGINAL, Case
from support.rawpods import make_cluster_job, rendezvous_manifest, worker_manifest

PAGE = ROOT / "docs" / "pods.md"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
PATH = "/api/v1/namespaces/default/podtemplates"
CORE = "io.k8s.api.core.v1"
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
Object = dict[str, Any]


def pod_template(template: Object, name: str = "merged") -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": name},
        "template": template,
    }


@pytest.fixture(scope="module")
def original(apiserver: ControlPlane) -> Iterator[str]:
    """The path of a stored template."""
    apiserver.send("POST", PATH, pod_template(ORIGINAL, "original"))
    yield f"{PATH}/original"
    apiserver.send("DELETE", f"{PATH}/original")


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_kubectl_patch_and_the_operator_agree(
    apiserver: ControlPlane, original: str, case: Case
) -> None:
    query = "?dryRun=All&fieldValidation=Strict"
    patched = apiserver.send("PATCH", original + query, {"template": case.patch}, STRATEGIC)
    merged = without_nulls(merge(ORIGINAL, case.patch))
    ours = apiserver.send("POST", PATH + query, pod_template(merged))  # with the same defaults
    assert in_order(ours["template"]) == in_order(patched["template"])


def in_order(value: Any, field: str = "") -> Any:
    """Return the value with its merged lists in the order of their keys."""
    if isinstance(value, dict):
        return {name: in_order(each, name) for name, each in value.items()}
    if not isinstance(value, list):
        return value
    entries = [in_order(each) for each in value]
    key = MERGE_KEYS.get(field)
    return sorted(entries, key=lambda entry: entry[key]) if key else entries


def test_the_pods_of_the_page_are_accepted(apiserver: ControlPlane) -> None:
    """With the priority that an administrator gives to the class."""
    [block] = re.findall(r"```yaml\n(spec:\n  image.*?)```", PAGE.read_text(), re.DOTALL)
    spec = yaml.safe_load(block)["spec"]
    job = make_cluster_job(**spec)
    job = job.model_copy(
        update={"metadata": job.metadata.model_copy(update={"namespace": "default"})}
    )
    group = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 7}
    apiserver.send("POST", CLASSES, {**group, "metadata": {"name": "training"}})
    for pod in (worker_manifest(job), rendezvous_manifest(job)):
        query = "?dryRun=All&fieldValidation=Strict"
        stored = apiserver.send("POST", "/api/v1/namespaces/default/pods" + query, pod)
        assert stored["spec"]["priority"] == 7
        assert stored["metadata"]["labels"] == pod["metadata"]["labels"]
    apiserver.send("DELETE", f"{CLASSES}/training")


# --- the definition of a pod ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def schemas(apiserver: ControlPlane) -> Object:
    found: Object = apiserver.get("/openapi/v3/api/v1")["components"]["schemas"]
    return found


def test_the_merge_keys_are_those_of_the_api_server(schemas: Object) -> None:
    keys: defaultdict[str, set[str | None]] = defaultdict(set)
    for name, field in fields_of(schemas, f"{CORE}.PodSpec", set()):
        if field.get("type") == "array":
            keys[name].add(field.get("x-kubernetes-patch-merge-key"))
    merged = {name: found for name, found in keys.items() if found != {None}}
    del merged["ownerReferences"]  # in the metadata of a volume claim; no user sets it
    assert merged == {name: {key} for name, key in MERGE_KEYS.items()}


def fields_of(schemas: Object, name: str, seen: set[str]) -> Iterator[tuple[str, Object]]:
    """Yield the fields of a type, and of all types in it."""
    if name in seen:
        return
    seen.add(name)
    for field, schema in schemas[name].get("properties", {}).items():
        yield field, schema
        for inner in (schema, schema.get("items", {}), schema.get("additionalProperties", {})):
            refs = [inner, *inner.get("allOf", ())] if isinstance(inner, dict) else []
            for each in refs:
                if "$ref" in each:
                    yield from fields_of(schemas, each["$ref"].rpartition("/")[2], seen)


def test_the_fields_of_a_pod_are_known(schemas: Object) -> None:
    pod = set(schemas[f"{CORE}.PodSpec"]["properties"])
    assert pod == POD_FIELDS | OTHER_POD_FIELDS
    container = set(schemas[f"{CORE}.Container"]["properties"])
    assert container == CONTAINER_FIELDS | OTHER_CONTAINER_FIELDS
