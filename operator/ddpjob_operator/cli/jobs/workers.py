"""Chooses the worker pods whose logs a user wants: by rank, by name, all, or the first failure.

A worker that is replaced is another pod with a higher incarnation; the newest pod counts. The
status has the ranks once they are known: torchrun assigns them while the processes start.
May not: send a request, or print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ddpjob_operator.api import constants
from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.jobs import text
from ddpjob_operator.cli.jobs.access import Object

TRAINER = "trainer"


class Wanted(NamedTuple):
    """The workers that a user wants; without any of these, the one that runs rank 0."""

    everyone: bool = False
    worker: str = ""
    rank: int | None = None

    @property
    def by_rank(self) -> bool:
        """True if the ranks decide which worker is wanted."""
        return not self.everyone and not self.worker


def worker_of_rank(job: Object, rank: int) -> str:
    """Return the worker that runs a rank, or an empty text if the status names none."""
    membership = _membership(job)
    firsts = membership.get("firstRanks") or ()
    if rank >= int(membership.get("worldSize") or 0):
        return ""
    found = [w for w, f in zip(membership["workers"], firsts, strict=False) if f <= rank]
    return str(found[-1]) if found else ""


def explain_rank(job: Object, rank: int) -> str:
    """Return the reason that no worker is known to run a rank, or an empty text if one is."""
    name, membership = job["metadata"]["name"], _membership(job)
    if worker_of_rank(job, rank):
        return ""
    if not membership:
        return f"{name} has no membership yet, so no worker has rank {rank}"
    if membership.get("firstRanks"):
        last = int(membership["worldSize"]) - 1
        return (
            f"{name} has no rank {rank} in membership {membership['id']}: its ranks are 0 to {last}"
        )
    return (
        f"the worker with rank {rank} is not known: no torchrun of membership {membership['id']} "
        f"has reported its ranks to the rendezvous service of {name}"
    )


def choose(
    job: Object, pods: Sequence[Object], wanted: Wanted, *, previous: bool = False
) -> list[Object]:
    """Return the pods whose logs are wanted: of each worker the newest, or the one before it.

    If the ranks are not known, the first worker of the membership stands for rank 0.
    """
    name = str(job["metadata"]["name"])
    groups: dict[str, list[Object]] = {}
    for pod in sorted(pods, key=_incarnation):
        groups.setdefault(worker_group(pod), []).append(pod)
    if not wanted.everyone:
        of_rank = worker_of_rank(job, wanted.rank or 0)
        if not of_rank and wanted.rank is None:
            of_rank = _first_member(job) or min(groups, default="")
        given = wanted.worker or of_rank
        full = given if given.startswith(f"{name}-") else f"{name}-{given}"
        exact = [pod for pod in pods if pod_name(pod) == full]
        if wanted.worker and exact and not previous:
            return exact
        groups = {key: found for key, found in groups.items() if key in (full, _group_of(full))}
    place = -2 if previous else -1
    return [found[place] for _, found in sorted(groups.items()) if len(found) >= -place]


def first_failure(job: Object, pods: Sequence[Object], events: Sequence[Object]) -> tuple[str, str]:
    """Return the first failure as text, and the name of its worker; raise CommandError if none."""
    name = job["metadata"]["name"]
    failure = text.conditions(job).get("Failed") or {}
    found = [str(failure["message"])] if failure.get("status") == "True" else []
    found += [e["message"] for e in events if e["reason"] in ("Restarted", "WorkerLost")]
    for each in found:
        for pod in pods:
            if pod_name(pod) in each:
                return each, pod_name(pod)
    ended = [(_ended_at(pod), pod_name(pod)) for pod in pods if _ended_at(pod)]
    if ended:
        return (found or [f"{min(ended)[1]} failed"])[0], min(ended)[1]
    if found:
        return found[0], ""
    raise CommandError(ExitCode.REJECTED, f"no worker of {name} has failed")


def explain_nothing(job: Object, pods: Sequence[Object], wanted: Wanted, *, previous: bool) -> str:
    """Return the reason that no pod was chosen."""
    name = job["metadata"]["name"]
    if previous:
        return (
            f"no earlier pod of this worker of {name} exists any more; its log was deleted with it"
        )
    if pods:
        names = ", ".join(map(pod_name, pods))
        worker = wanted.worker or f"with rank {wanted.rank or 0}"
        return f"{name} has no worker {worker} now; it has {names}"
    if text.state(job) not in text.ENDED:
        return f"{name} has no pods now, so there are no logs: {text.news(job)}"
    kept = job["spec"].get("keepPods", "Failed")
    return (
        f"no pods of {name} exist (state {text.state(job)}, keepPods: {kept}), so there are no "
        "logs; keepPods: All keeps the pods of a job that has ended"
    )


# --- parts of pods and jobs -----------------------------------------------------------------------


def workers_of(pods: Sequence[Object]) -> list[Object]:
    """Return the pods that are workers."""
    role = constants.LABEL_ROLE
    return [pod for pod in pods if pod["metadata"]["labels"].get(role) == constants.ROLE_WORKER]


def pod_name(pod: Object) -> str:
    """Return the name of a pod."""
    return str(pod["metadata"]["name"])


def worker_group(pod: Object) -> str:
    """Return a pod's name without its incarnation."""
    return _group_of(pod_name(pod))


def container(pod: Object) -> str:
    """Return the name of the container that trains."""
    names = [str(each["name"]) for each in pod["spec"]["containers"]]
    return TRAINER if TRAINER in names else names[0]


def is_started(pod: Object) -> bool:
    """Return whether the container that trains has started."""
    return bool(_container_state(pod).keys() & {"running", "terminated"})


def exit_of(pod: Object) -> int | None:
    """Return the exit code of the container that trains, or None while it runs."""
    ended = _container_state(pod).get("terminated")
    return None if ended is None else int(ended["exitCode"])


def formed(job: Object) -> str:
    """Return the time at which the membership was formed, or an empty text."""
    return str(_membership(job).get("since") or "")


def membership_id(job: Object) -> str:
    """Return the identity of the membership, or an empty text."""
    return str(_membership(job).get("id") or "")


def _membership(job: Object) -> Object:
    found: Object = (job.get("status") or {}).get("membership") or {}
    return found


def _first_member(job: Object) -> str:
    return str(next(iter(_membership(job).get("workers") or ()), ""))


def _group_of(name: str) -> str:
    return name.rpartition("-")[0]


def _incarnation(pod: Object) -> int:
    number = pod_name(pod).rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _container_state(pod: Object) -> Object:
    for each in (pod.get("status") or {}).get("containerStatuses") or ():
        if each["name"] == container(pod):
            state: Object = each.get("state") or {}
            return state
    return {}


def _ended_at(pod: Object) -> str:
    """Return the time when the container of a pod failed, or an empty text."""
    ended = _container_state(pod).get("terminated") or {}
    return str(ended.get("finishedAt") or "") if ended.get("exitCode") else ""
