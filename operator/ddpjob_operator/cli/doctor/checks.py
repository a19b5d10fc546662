"""The checks of the installation: CRD, operator, rights.

Pure: observed → findings. `node_checks` has those of nodes and images.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ddpjob_operator.api.constants import API_VERSION, GROUP
from ddpjob_operator.api.crd import build_crd
from ddpjob_operator.cli.doctor.observed import (
    Denied,
    Finding,
    Object,
    Observed,
    Right,
    State,
)
from ddpjob_operator.cli.doctor.rights import USER
from ddpjob_protocol.text import some

OLDEST = (1, 30)
UPGRADE = (
    "helm upgrade ddpjob-operator charts/ddpjob-operator --namespace ddpjob-system "
    "--reset-then-reuse-values (docs/install.md)"
)
INSTALL = (
    "helm install ddpjob-operator charts/ddpjob-operator --namespace ddpjob-system "
    "--create-namespace (docs/install.md)"
)
SHOWN = 5  # names in one message
READS = {"get", "list", "watch"}


def check_kubernetes(observed: Observed) -> Iterator[Finding]:
    """Yield a finding about the version of the cluster."""
    match = re.match(r"v?(\d+)\.(\d+)", observed.kubernetes)
    version = (int(match[1]), int(match[2])) if match else OLDEST
    if version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        message = f"Kubernetes {observed.kubernetes} is older than {oldest}, which ddpjob needs"
        yield Finding("kubernetes", State.FAIL, message, "upgrade the cluster")
    else:
        yield Finding("kubernetes", State.OK, f"the API server runs {observed.kubernetes}")


def check_crd(observed: Observed) -> Iterator[Finding]:
    """Yield a finding about the definition of DDPJobs."""
    if not observed.served:
        message = f"{API_VERSION} is not served: the CRD of DDPJobs is not installed"
        yield Finding("crd", State.FAIL, message, INSTALL)
        return
    if not isinstance(observed.crd, dict):
        reason = observed.crd.reason if observed.crd else "the CRD is being created or deleted"
        message = f"DDPJobs are served; their fields were not compared: {reason}"
        yield Finding("crd", State.WARN, message, "ask an administrator to run ddpjob doctor")
        return
    here, there = _fields(build_crd()), _fields(observed.crd)
    lacks, has = sorted(here - there), sorted(there - here)
    if not lacks and not has:
        yield Finding("crd", State.OK, f"{API_VERSION} has the fields that this ddpjob knows")
        return
    parts = [f"it lacks {some(lacks, SHOWN)}"] if lacks else []
    parts += [f"it has {some(has, SHOWN)}, which this ddpjob does not know"] if has else []
    message = f"the CRD is of another version than ddpjob {observed.own_version}: "
    remedy = UPGRADE if lacks else "install the ddpjob that belongs to the operator"
    yield Finding("crd", State.WARN, message + "; ".join(parts), remedy)


def check_operator(observed: Observed) -> Iterator[Finding]:
    """Yield findings about the deployment of the operator."""
    found = observed.deployments
    if isinstance(found, Denied):
        message = f"the operator was not checked: {found.reason}"
        yield Finding("operator", State.WARN, message, "ask an administrator to run ddpjob doctor")
        return
    if not found:
        message = "there is no deployment of the operator, so nothing runs the jobs"
        yield Finding("operator", State.FAIL, message, INSTALL)
        return
    watching = [each for each in found if _watches(each, observed.namespace)]
    if not watching:
        names = ", ".join(sorted({name for each in found for name in watched(each)}))
        message = f"no operator watches namespace {observed.namespace}; they watch {names}"
        remedy = f"add {observed.namespace} to watchNamespaces, or use -n NAMESPACE"
        yield Finding("operator", State.FAIL, message, remedy)
    if len(watching) > 1:
        names = ", ".join(map(_full_name, watching))
        message = f"{len(watching)} operators watch namespace {observed.namespace}: {names}"
        remedy = "uninstall all but one: two operators both create the workers of a job"
        yield Finding("operator", State.FAIL, message, remedy)
    for each in watching:
        yield from _check_deployment(each, observed)


def _check_deployment(deployment: Object, observed: Observed) -> Iterator[Finding]:
    name, namespace = _full_name(deployment), deployment["metadata"]["namespace"]
    if not (deployment.get("status") or {}).get("readyReplicas"):
        reasons = [] if isinstance(observed.operator_pods, Denied) else observed.operator_pods
        waits = next(filter(None, map(_waiting, reasons)), "")
        message = f"{name} is not ready{': ' if waits else ''}{waits}"
        remedy = (
            f"kubectl -n {namespace} describe deployment {deployment['metadata']['name']}; "
            "docs/install.md has the causes"
        )
        yield Finding("operator", State.FAIL, message, remedy)
        return
    labels = deployment["metadata"].get("labels") or {}
    version = labels.get("app.kubernetes.io/version", observed.own_version)
    if version != observed.own_version:
        message = f"{name} is ready, with version {version}; this ddpjob has {observed.own_version}"
        yield Finding("operator", State.WARN, message, f"use equal versions: {UPGRADE}")
    else:
        yield Finding("operator", State.OK, f"{name} is ready, version {version}")


def check_user_rights(observed: Observed) -> Iterator[Finding]:
    """Yield a finding for each group of commands that the user may not run, or one if all."""
    missing = {
        commands: [right for right in rights if not observed.user_rights.get(right, False)]
        for commands, rights in USER.items()
    }
    where = f"namespace {observed.namespace}"
    if not any(missing.values()):
        yield Finding("your rights", State.OK, f"all commands are allowed in {where}")
    for commands, rights in missing.items():
        if rights:
            reads = any(right.group == GROUP and right.verb in ("get", "list") for right in rights)
            role = "ddpjob-viewer" if {right.verb for right in rights} <= READS else "ddpjob-editor"
            message = f"{commands}: you lack {', '.join(map(str, rights))} in {where}"
            remedy = f"an administrator can bind the cluster role {role} to you (docs/install.md)"
            yield Finding("your rights", State.FAIL if reads else State.WARN, message, remedy)


def check_operator_rights(observed: Observed) -> Iterator[Finding]:
    """Yield a finding about the rights of the operator's account."""
    found = observed.operator_rights
    if found is None:
        return
    if isinstance(found, Denied):
        message = f"the rights of the operator were not checked: {found.reason}"
        remedy = "ask an administrator to run ddpjob doctor"
        yield Finding("operator rights", State.WARN, message, remedy)
        return
    yield _judge_rights(found, observed.namespace)


def _judge_rights(found: Mapping[Right, bool], namespace: str) -> Finding:
    missing = [str(right) for right, allowed in found.items() if not allowed]
    if missing:
        message = f"the operator lacks {some(missing, SHOWN)} in namespace {namespace}"
        remedy = f"install with rbac.create=true: {UPGRADE}"
        return Finding("operator rights", State.FAIL, message, remedy)
    message = f"the operator has all {len(found)} rights in namespace {namespace}"
    return Finding("operator rights", State.OK, message)


def watched(deployment: Object) -> tuple[str, ...]:
    """Return the namespaces that an operator watches; none means all."""
    return tuple(word.partition("=")[2] for word in _args(deployment) if _is_namespace(word))


def agent_image(deployment: Object) -> str:
    """Return the agent's image in the options of an operator, or an empty text."""
    flag = "--agent-image="
    return next((w.removeprefix(flag) for w in _args(deployment) if w.startswith(flag)), "")


def account(deployment: Object) -> str:
    """Return the user name of an operator's service account."""
    name = deployment["spec"]["template"]["spec"].get("serviceAccountName") or "default"
    return f"system:serviceaccount:{deployment['metadata']['namespace']}:{name}"


def _watches(deployment: Object, namespace: str) -> bool:
    return namespace in (watched(deployment) or (namespace,))


def _args(deployment: Object) -> list[str]:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return [str(word) for word in containers[0].get("args") or ()]


def _is_namespace(word: str) -> bool:
    return word.startswith("--namespace=")


def _full_name(deployment: Object) -> str:
    metadata = deployment["metadata"]
    return f"deployment {metadata['namespace']}/{metadata['name']}"


def _waiting(pod: Object) -> str:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        state = status.get("state") or {}
        if waiting := state.get("waiting"):
            return f"{waiting.get('reason', '')}: {waiting.get('message', '')}".strip(": ")
    return ""


def _fields(crd: Object) -> set[str]:
    """Return the paths of all fields of the version that this ddpjob uses."""
    wanted = API_VERSION.partition("/")[2]
    versions = [each for each in crd["spec"]["versions"] if each["name"] == wanted]
    schemas = [((each.get("schema") or {}).get("openAPIV3Schema")) or {} for each in versions]
    return {path for schema in schemas for path in _paths(schema, "")}


def _paths(schema: Object, path: str) -> Iterator[str]:
    inner = schema.get("items") if isinstance(schema.get("items"), dict) else schema
    for name, each in ((inner or {}).get("properties") or {}).items():
        yield f"{path}{name}"
        yield from _paths(each, f"{path}{name}.")
