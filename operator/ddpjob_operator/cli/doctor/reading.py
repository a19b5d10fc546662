"""Reads from the API server what the checks need; an answer that is denied is recorded as such."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from ddpjob_operator.api.constants import API_VERSION, GROUP, LABEL_JOB, PLURAL
from ddpjob_operator.cli.doctor.checks import account
from ddpjob_operator.cli.doctor.observed import Denied, Object, Objects, Observed, Right
from ddpjob_operator.cli.doctor.rights import OPERATOR, USER
from ddpjob_operator.cli.jobs.access import Cluster, RejectedError

CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}"
REVIEWS = "/apis/authorization.k8s.io/v1"
OPERATOR_LABEL = "app.kubernetes.io/name=ddpjob-operator"
ABSENT, FORBIDDEN = 404, 403


def observe(cluster: Cluster, operator_namespace: str) -> Observed:
    """Return all that the checks need; raise CommandError if the server gives no answer."""
    kubernetes = cluster.request("GET", "/version")["gitVersion"]
    served = _get(cluster, f"/apis/{API_VERSION}") is not None
    deployments = _list_operators(cluster, "apis/apps/v1", "deployments", operator_namespace)
    rights = {right: _may(cluster, right, "") for each in USER.values() for right in each}
    first = next(iter(() if isinstance(deployments, Denied) else deployments), None)
    return Observed(
        own_version=version("ddpjob"),
        kubernetes=kubernetes,
        namespace=cluster.namespace,
        served=served,
        crd=_get(cluster, CRD),
        deployments=deployments,
        operator_pods=_list_operators(cluster, "api/v1", "pods", operator_namespace),
        job_pods=_list(cluster, f"/api/v1/namespaces/{cluster.namespace}/pods", LABEL_JOB),
        nodes=_list(cluster, "/api/v1/nodes", ""),
        user_rights={right: bool(allowed) for right, allowed in rights.items()},
        operator_rights=None if first is None else _operator_rights(cluster, account(first)),
    )


def _operator_rights(cluster: Cluster, user: str) -> dict[Right, bool] | Denied:
    found: dict[Right, bool] = {}
    for right in OPERATOR:
        allowed = _may(cluster, right, user)
        if isinstance(allowed, Denied):
            return allowed
        found[right] = allowed
    return found


def _may(cluster: Cluster, right: Right, user: str) -> bool | Denied:
    """Return whether an account, or without one the user, has a right in the namespace."""
    resource, _, part = right.resource.partition("/")
    attributes = {
        "namespace": cluster.namespace,
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": part,
    }
    kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"
    spec: Object = {"resourceAttributes": attributes}
    if user:
        namespace = user.split(":")[2]
        groups = ["serviceaccounts", f"serviceaccounts:{namespace}", "authenticated"]
        spec |= {"user": user, "groups": [f"system:{group}" for group in groups]}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    try:
        answer = cluster.request("POST", f"{REVIEWS}/{kind.lower()}s", body=body)
    except RejectedError as error:
        if error.status == FORBIDDEN:
            return Denied(str(error))
        raise
    return bool(answer["status"]["allowed"])


def _list_operators(cluster: Cluster, api: str, kind: str, namespace: str) -> Objects:
    """Return objects of operators in all namespaces, or in one if the user may not see all."""
    found = _list(cluster, f"/{api}/{kind}", OPERATOR_LABEL)
    if isinstance(found, Denied):
        found = _list(cluster, f"/{api}/namespaces/{namespace}/{kind}", OPERATOR_LABEL)
    return found


def _list(cluster: Cluster, path: str, selector: str) -> Objects:
    query = {"labelSelector": selector} if selector else None
    found = _get(cluster, path, query)
    if isinstance(found, Denied):
        return found
    items: list[Object] = (found or {}).get("items") or []
    return items


def _get(cluster: Cluster, path: str, query: dict[str, str] | None = None) -> Any:
    """Return an object, Denied, or None if there is none."""
    try:
        return cluster.request("GET", path, query=query)
    except RejectedError as error:
        if error.status == ABSENT:
            return None
        if error.status == FORBIDDEN:
            return Denied(str(error))
        raise
