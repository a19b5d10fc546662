"""The test pods: how they are built, and what their state proves.

Pure: the caller creates, reads and deletes the pods.
"""

from __future__ import annotations

from ddpjob_operator.api.constants import SERVICE_PORT
from ddpjob_operator.cli.doctor.node_checks import NOT_PULLED, PULL_REMEDY, statuses
from ddpjob_operator.cli.doctor.observed import Finding, Object, State

LABEL = "ddpjob.io/doctor"
LONGEST_SECONDS = 900  # then the cluster ends a test pod that is still there
USER = 65532
HAS_PYTHON = "import sys; sys.exit(sys.version_info < (3, 9))"
OLD_PYTHON = 1  # exit code of HAS_PYTHON
NO_CONNECTION, NO_CONNECTION_BACK = 10, 11
# Both listen. The second connects to the first, which connects back.
LISTEN = f"""
import socket, sys, time
def listen():
    six = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if six else socket.AF_INET
    return socket.create_server(("", {SERVICE_PORT}), family=family, dualstack_ipv6=six)
server = listen()
"""
FIRST = f"""{LISTEN}
while True:
    client, address = server.accept()
    with client:
        host = address[0].replace("::ffff:", "")
        try:
            socket.create_connection((host, {SERVICE_PORT}), 20).close()
        except OSError as error:
            client.sendall(str(error).encode())
"""
SECOND = f"""{LISTEN}
def connect(host):
    for attempt in range(10):
        try:
            return socket.create_connection((host, {SERVICE_PORT}), 10)
        except OSError as error:
            last = error
            time.sleep(1)
    print(last)
    sys.exit({NO_CONNECTION})
first = connect(sys.argv[1])
first.settimeout(60)
error = first.recv(1000).decode()
print(error)
sys.exit({NO_CONNECTION_BACK} if error else 0)
"""
BLOCKED = (
    "a network policy or a firewall between the nodes blocks TCP: workers need all ports of each "
    "other"
)


def build_image_pod(name: str, image: str) -> Object:
    """Return a pod that shows whether an image can be pulled and has python3."""
    return _build(name, image, ["python3", "-c", HAS_PYTHON], {})


def build_first_pod(name: str, image: str) -> Object:
    """Return the pod that waits for a connection."""
    return _build(name, image, ["python3", "-c", FIRST], {})


def build_second_pod(name: str, image: str, first: Object) -> Object:
    """Return the pod that connects to the first one, from another node."""
    address = (first.get("status") or {}).get("podIP", "")
    apart = {
        "labelSelector": {"matchLabels": dict(first["metadata"]["labels"])},
        "topologyKey": "kubernetes.io/hostname",
    }
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    return _build(name, image, ["python3", "-c", SECOND, address], {"affinity": rule})


def judge_start(pod: Object, image: str, check: str) -> Finding | None:
    """Return a finding if the image cannot be pulled or started, or None so far."""
    for status in statuses(pod):
        state = status.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        reason = str(waiting.get("reason") or ended.get("reason") or "")
        message = str(waiting.get("message") or ended.get("message") or "").strip()
        if reason in NOT_PULLED:
            text = f"{image} cannot be pulled: {message or reason}"
            return Finding(check, State.FAIL, text, PULL_REMEDY)
        starts = reason.endswith(("ContainerError", "ConfigError", "StartError", "CannotRun"))
        if starts:
            text = f"{image} was pulled, but python3 cannot start in it: {message or reason}"
            remedy = "add python3, 3.9 or newer: the agent runs in the image"
            return Finding(check, State.FAIL, text, remedy)
    return None


def judge_image(pod: Object, image: str) -> Finding | None:
    """Return the finding of a test pod for an image, or None while it is not decided."""
    if found := judge_start(pod, image, "image"):
        return found
    code = exit_of(pod)
    if code is None:
        return None
    if code == 0:
        return Finding("image", State.OK, f"{image} was pulled on {_node(pod)}, and has python3")
    message = f"{image} was pulled, but python3 ended with exit code {code}"
    if code == OLD_PYTHON:
        message = f"{image} was pulled, but its python3 is older than 3.9"
    return Finding("image", State.FAIL, message, "add python3, 3.9 or newer, to the image")


def judge_reach(first: Object, second: Object, image: str) -> Finding | None:
    """Return the finding of two test pods, or None while it is not decided."""
    if found := judge_start(second, image, "reach"):
        return found
    code, pair = exit_of(second), (_node(second), _node(first))
    if code is None:
        return None
    there, back = f"{pair[0]} to {pair[1]}", f"{pair[1]} to {pair[0]}"
    if code == 0:
        message = f"pods on {pair[0]} and {pair[1]} reach each other over TCP"
        return Finding("reach", State.OK, message)
    detail = f": {message_of(second)}" if message_of(second) else ""
    if code in (NO_CONNECTION, NO_CONNECTION_BACK):
        way = there if code == NO_CONNECTION else back
        message = f"no TCP connection from a pod on {way}, port {SERVICE_PORT}{detail}"
        return Finding("reach", State.FAIL, message, BLOCKED)
    message = f"the test pod on {pair[0]} ended with exit code {code}{detail}"
    return Finding("reach", State.FAIL, message, "give another image with python3 to --image")


def explain_pending(pod: Object) -> str:
    """Return the reason why no node takes a pod, or an empty text."""
    for each in (pod.get("status") or {}).get("conditions") or ():
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return str(each.get("message") or each.get("reason") or "no node was found")
    return ""


def exit_of(pod: Object) -> int | None:
    """Return the exit code of a test pod, or None before its end."""
    for status in statuses(pod):
        if ended := (status.get("state") or {}).get("terminated"):
            return int(ended["exitCode"])
    return None


def is_running(pod: Object) -> bool:
    """Return whether the container runs and the pod has an address."""
    states = [status.get("state") or {} for status in statuses(pod)]
    address = (pod.get("status") or {}).get("podIP")
    return bool(address) and any("running" in state for state in states)


def message_of(pod: Object) -> str:
    """Return the last output of a test pod that failed, in one line."""
    for status in statuses(pod):
        ended = (status.get("state") or {}).get("terminated") or {}
        if ended.get("message"):
            return str(ended["message"]).strip().splitlines()[-1]
    return ""


def _node(pod: Object) -> str:
    return str(pod["spec"].get("nodeName") or "no node")


def _build(name: str, image: str, command: list[str], more: Object) -> Object:
    amounts = {"cpu": "20m", "memory": "64Mi"}
    container = {
        "name": "doctor",
        "image": image,
        "command": command,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": amounts, "limits": {**amounts, "cpu": "500m"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LONGEST_SECONDS,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        **more,
    }
    metadata = {"name": name, "labels": {LABEL: name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
