"""The checks of nodes and images. Pure: observed → findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpjob_operator.cli.doctor.observed import Denied, Finding, Object, Observed, State
from ddpjob_protocol.text import plural

BLOCKING = ("NoSchedule", "NoExecute")
OF_CONDITIONS = "node.kubernetes.io/"  # the cluster sets these while a node has a problem
NOT_PULLED = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")


def check_nodes(observed: Observed, gpu: str) -> Iterator[Finding]:
    """Yield findings about the nodes that can run workers, and about their GPUs."""
    nodes = observed.nodes
    if isinstance(nodes, Denied):
        message = f"the nodes were not checked: {nodes.reason}"
        yield Finding("nodes", State.WARN, message, "ask an administrator to run ddpjob doctor")
        return
    usable = [node for node in nodes if not explain_unusable(node)]
    problems = [f"{name(node)} {why}" for node in nodes if (why := explain_unusable(node))]
    detail = f" ({'; '.join(problems)})" if problems else ""
    message = f"{len(usable)} of {plural(len(nodes), 'node')} can run workers{detail}"
    if not usable:
        remedy = "add a node, or tolerate its taints in spec.template.spec.tolerations"
        yield Finding("nodes", State.FAIL, message, remedy)
    elif any("not ready" in problem for problem in problems):
        remedy = "kubectl describe node NODE has the reason"
        yield Finding("nodes", State.WARN, message, remedy)
    else:
        yield Finding("nodes", State.OK, message)
    yield from _check_gpus(nodes, gpu)


def _check_gpus(nodes: Sequence[Object], gpu: str) -> Iterator[Finding]:
    counts = {name(node): allocatable(node, gpu) for node in nodes}
    found = [node for node in nodes if counts[name(node)]]
    if not found:
        others = sorted({each for node in nodes for each in _amounts(node) if "gpu" in each})
        message = f"no node has {gpu}" + (f"; there is {', '.join(others)}" if others else "")
        remedy = "install the device plugin of the GPUs, or set gpuResource; jobs on CPUs run"
        yield Finding("gpus", State.WARN, message, remedy)
        return
    shown = ", ".join(f"{name(node)} {counts[name(node)]}" for node in found)
    message = f"{sum(counts.values())} {gpu} on {plural(len(found), 'node')}: {shown}"
    taints = sorted({taint for node in found for taint in _taints(node)})
    if taints:
        remedy = "tolerate them in spec.template.spec.tolerations of each job that needs GPUs"
        message += f". These nodes have taints: {', '.join(taints)}"
        yield Finding("gpus", State.WARN, message, remedy)
    else:
        yield Finding("gpus", State.OK, message)


def check_images(observed: Observed) -> Iterator[Finding]:
    """Yield findings about images that pods could not pull, or one if there are none."""
    groups = (observed.operator_pods, observed.job_pods)
    if any(isinstance(pods, Denied) for pods in groups):
        message = "the images of some pods were not checked: you lack list pods"
        yield Finding("images", State.WARN, message, "--image IMAGE checks one image")
    pods = [pod for found in groups if not isinstance(found, Denied) for pod in found]
    failed = {}
    pulled = set()
    for pod in pods:
        for status in statuses(pod):
            waiting = (status.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in NOT_PULLED:
                failed[status["image"]] = f"{pod['metadata']['name']}: {waiting.get('message', '')}"
            elif status.get("imageID"):
                pulled.add(str(status["image"]))
    for image, why in sorted(failed.items()):
        message = f"{image} cannot be pulled: {why}"
        yield Finding("images", State.FAIL, message, PULL_REMEDY)
    if pulled and not failed:
        message = f"pods have pulled {', '.join(sorted(pulled))}"
        yield Finding("images", State.OK, message)
    elif not pulled and not failed:
        message = "no pod of the operator or of a job shows whether images can be pulled"
        yield Finding("images", State.WARN, message, "--image IMAGE checks one image")


PULL_REMEDY = (
    "correct the name, or give the pods imagePullSecrets: in spec.template.spec of the job, or in "
    "the service account"
)


def explain_unusable(node: Object) -> str:
    """Return the reason why a pod without tolerations cannot run on a node, or an empty text."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    if not any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
        return "is not ready"
    if (node.get("spec") or {}).get("unschedulable"):
        return "is cordoned"
    taints = _taints(node)
    return f"has taints {', '.join(taints)}" if taints else ""


def allocatable(node: Object, resource: str) -> int:
    """Return the number of a resource that pods on a node may use."""
    value = str(_amounts(node).get(resource, 0))
    return int(value) if value.isdecimal() else 0


def name(node: Object) -> str:
    """Return the name of a node."""
    return str(node["metadata"]["name"])


def statuses(pod: Object) -> list[Object]:
    """Return the states of all containers of a pod, the init containers first."""
    status = pod.get("status") or {}
    kinds = ("initContainerStatuses", "containerStatuses")
    return [each for kind in kinds for each in status.get(kind) or ()]


def _amounts(node: Object) -> Object:
    found: Object = (node.get("status") or {}).get("allocatable") or {}
    return found


def _taints(node: Object) -> list[str]:
    taints = (node.get("spec") or {}).get("taints") or ()
    return [
        f"{each['key']}:{each['effect']}"
        for each in taints
        if each.get("effect") in BLOCKING and not each["key"].startswith(OF_CONDITIONS)
    ]
