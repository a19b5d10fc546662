"""Parses pods, Services and NetworkPolicies of the API server into the values that a plan needs.

May not: call the API server, or decide anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.manifests.scheduling import kept_off
from ddpjob_operator.planner.observed import Phase, Rendezvous, Worker
from ddpjob_protocol.environment import ENV_KEYS
from ddpjob_protocol.exit_codes import Exit

UNSCHEDULABLE = "Unschedulable"
# Reasons of ended and waiting containers that are no problem.
_HARMLESS = ("", "Completed", "ContainerCreating", "PodInitializing")


@dataclasses.dataclass(frozen=True)
class Pod:
    """A pod of a job, reduced to the fields that the operator keeps in memory."""

    namespace: str
    name: str
    uid: str
    version: str  # resourceVersion
    job: str
    owner: str  # UID of the job that controls it
    role: str
    worker: Worker | None
    rendezvous: Rendezvous | None
    deleting: bool
    live: bool  # neither ended nor in deletion
    secret: str = ""  # Secret that it needs to start; empty once it has started

    @property
    def node(self) -> str:
        """Name of its node; empty without one."""
        part = self.worker or self.rendezvous
        return (part.node if part else None) or ""

    @property
    def key(self) -> str:
        """Fingerprint of the job's key from which its own are derived."""
        part = self.worker or self.rendezvous
        return part.key if part else ""


@dataclasses.dataclass(frozen=True)
class Child:
    """An object of a job of which only the existence counts: its Service, or its NetworkPolicy."""

    namespace: str
    name: str
    uid: str
    version: str
    job: str
    owner: str


def parse_child(raw: Mapping[str, Any]) -> Child:
    """Return the fields of a Service or NetworkPolicy that the operator needs."""
    metadata = raw["metadata"]
    return Child(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        job=(metadata.get("labels") or {}).get(constants.LABEL_JOB, ""),
        owner=controller(metadata),
    )


def parse_pod(raw: Mapping[str, Any]) -> Pod:
    """Return the fields of a pod that the operator needs."""
    metadata, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    labels = metadata.get("labels") or {}
    phase, deleting = _phase(status), metadata.get("deletionTimestamp") is not None
    own = _own_container(spec)
    reason, message = _problem(status, own)
    role = labels.get(constants.LABEL_ROLE, "")
    worker = rendezvous = None
    gates = tuple(each.get("name", "") for each in spec.get("schedulingGates") or ())
    if gates:
        message = f"held by the scheduling gates {', '.join(gates)}"
    if role == constants.ROLE_WORKER:
        agent_ended = _ended(status, own)
        worker = Worker(
            name=metadata["name"],
            group=labels.get(constants.LABEL_GROUP, ""),
            index=_number(labels.get(constants.LABEL_INDEX)),
            incarnation=_number(labels.get(constants.LABEL_INCARNATION)),
            phase=agent_ended or phase,
            node=spec.get("nodeName"),
            unschedulable=message if reason == UNSCHEDULABLE else None,
            unschedulable_since=_since(_condition(status, "PodScheduled")),
            deleting=deleting,
            reason=reason,
            message=message,
            revision=labels.get(constants.LABEL_REVISION, ""),
            gates=gates,
            exit_code=_exit_code(status, own),
            disrupted=_condition(status, "DisruptionTarget").get("status") == "True",
            placed_at=_since(_condition(status, "PodScheduled"), "True"),
            sandbox_ready=_holds(_condition(status, "PodReadyToStartContainers")),
            running_since=_running_since(status, own),
            sidecars_left=agent_ended is not None and phase in (Phase.PENDING, Phase.RUNNING),
            key=labels.get(constants.LABEL_KEY, ""),
            kept_off=kept_off(spec) if "affinity" in spec else (),
        )
    elif role == constants.ROLE_RENDEZVOUS:
        ready, placed = _condition(status, "Ready"), _condition(status, "PodScheduled")
        containers: Iterable[Mapping[str, Any]] = status.get("containerStatuses") or ()
        container = next((each for each in containers if each["name"] == own), {})
        created = metadata.get("creationTimestamp")
        term = _number(labels.get(constants.LABEL_TERM))
        rendezvous = Rendezvous(
            term,
            ready=ready.get("status") == "True",
            reason=reason,
            message=message,
            revision=labels.get(constants.LABEL_REVISION, ""),
            key=labels.get(constants.LABEL_KEY, ""),
            address=status.get("podIP", ""),
            node=spec.get("nodeName", ""),
            running="running" in (container.get("state") or {}),
            not_ready_since=_since(ready),
            unschedulable_since=_since(placed) if reason == UNSCHEDULABLE else None,
            restarts=container.get("restartCount", 0),
            created=datetime.fromisoformat(created) if created else None,
            superseded=_last_exit_code(container) == Exit.SUPERSEDED,
        )
    return Pod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        job=labels.get(constants.LABEL_JOB, ""),
        owner=controller(metadata),
        role=role,
        worker=worker,
        rendezvous=rendezvous,
        deleting=deleting,
        live=not deleting and phase in (Phase.PENDING, Phase.RUNNING),
        secret=_secret(spec) if phase is Phase.PENDING and not deleting else "",
    )


def controller(metadata: Mapping[str, Any]) -> str:
    """Return the UID of the object's controller, or an empty text."""
    owners = metadata.get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), "")


def _phase(status: Mapping[str, Any]) -> Phase:
    word = status.get("phase", "Pending")
    return (
        Phase(word) if word in tuple(Phase) else Phase.PENDING
    )  # Unknown: its node does not respond


def _ended(status: Mapping[str, Any], own: str) -> Phase | None:
    """Return the final phase of the agent's container; a sidecar may keep the pod running."""
    for container in status.get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if container["name"] == own and ended is not None:
            return Phase.FAILED if ended.get("exitCode") else Phase.SUCCEEDED
    return None


def _last_exit_code(container: Mapping[str, Any]) -> int | None:
    """Return the exit code with which the container ended last; None if it never ended."""
    states = (container.get("state") or {}, container.get("lastState") or {})
    ended = [each["terminated"] for each in states if "terminated" in each]
    return ended[0].get("exitCode") if ended else None


def _problem(status: Mapping[str, Any], own: str) -> tuple[str, str]:
    """Return the reason and message of the pod's most specific problem, or empty texts."""
    containers = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    containers.sort(key=lambda container: container["name"] != own)
    states = [_state(container) for container in containers]
    ended = [s["terminated"] for s in states if s.get("terminated", {}).get("exitCode")]
    waiting = [s["waiting"] for s in states if "waiting" in s]
    disrupted, placed = _condition(status, "DisruptionTarget"), _condition(status, "PodScheduled")
    whole = [status] if status.get("reason") else []  # such as Evicted
    whole += [disrupted] if disrupted.get("status") == "True" else []
    unplaced = [placed] if placed.get("status") == "False" else []
    for each in (*whole, *ended, *waiting, *unplaced):
        reason, message = each.get("reason", ""), each.get("message", "")
        if reason not in _HARMLESS or message:
            code = each.get("exitCode")
            return reason, (message or (f"exit code {code}" if code else "")).strip()
    return "", ""


def _exit_code(status: Mapping[str, Any], own: str) -> int | None:
    """Return the exit code of the agent's container, if it has ended."""
    for container in status.get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if container["name"] == own and ended is not None:
            code: int | None = ended.get("exitCode")
            return code
    return None


def _running_since(status: Mapping[str, Any], own: str) -> datetime | None:
    """Return the start of the agent's container, if it runs."""
    for container in status.get("containerStatuses") or ():
        begin = ((container.get("state") or {}).get("running") or {}).get("startedAt")
        if container["name"] == own and begin:
            return datetime.fromisoformat(begin)
    return None


def _state(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container's state, or its last state if the container is in a crash loop."""
    state = container.get("state") or {}
    looping = state.get("waiting", {}).get("reason") == "CrashLoopBackOff"
    return (looping and container.get("lastState")) or state


def _since(condition: Mapping[str, Any], status: str = "False") -> datetime | None:
    text = condition.get("lastTransitionTime")
    return datetime.fromisoformat(text) if text and condition.get("status") == status else None


def _holds(condition: Mapping[str, Any]) -> bool | None:
    return {"True": True, "False": False}.get(condition.get("status", ""))


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions: Iterable[Mapping[str, Any]] = status.get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def _own_container(spec: Mapping[str, Any]) -> str:
    """Return the name of the agent's container, or an empty text."""
    for container in spec.get("containers") or ():
        for entry in container.get("env") or ():
            if entry.get("name") == ENV_KEYS:
                return str(container["name"])
    return ""


def _secret(spec: Mapping[str, Any]) -> str:
    """Return the name of the Secret with the pod's keys, or an empty text."""
    for volume in spec.get("volumes") or ():
        if volume.get("name") == constants.KEYS_VOLUME:
            return str((volume.get("secret") or {}).get("secretName") or "")
    return ""


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
