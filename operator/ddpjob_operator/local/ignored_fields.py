"""Finds the fields of a job that act on a cluster only.

The command, its arguments and the environment of the container that trains act everywhere, whether
a short field or the template has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddpjob_operator.api.problem import Path, spell
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.spec.pod.pod_template import Template, trainer
from ddpjob_operator.api.spec.rendezvous_pod import RendezvousPod

# Fields of the container that trains that act here, or that a short field may have without a warning.
KNOWN = ("name", "image", "command", "args", "env", "resources")


def find_ignored_fields(job: DDPJob) -> Iterator[str]:
    """Yield the path of each field of a template, and of the job, that has no effect here."""
    spec = job.spec
    if spec.scheduling.priority_class_name is not None:
        yield "spec.scheduling.priorityClassName"
    if spec.rendezvous != RendezvousPod():
        yield "spec.rendezvous"
    if spec.failure_policy.avoid_nodes is not None:
        yield "spec.failurePolicy.avoidNodes"
    if spec.ttl_seconds_after_finished is not None:
        yield "spec.ttlSecondsAfterFinished"
    main, *extra = spec.groups()
    yield from _in_template(spec.template, main.template, ("spec", "template"))
    for i, (own, group) in enumerate(zip(spec.extra_worker_groups, extra, strict=True)):
        at = ("spec", "extraWorkerGroups", i, "template")
        yield from _in_template(own.template, group.template, at)


def _in_template(template: Template | None, merged: Template, at: Path) -> Iterator[str]:
    if template is None:
        return
    if template.get("metadata"):
        yield spell((*at, "metadata"))
    pod = template.get("spec")
    name = trainer(merged).get("name")
    for field, value in pod.items() if isinstance(pod, dict) else ():
        if field != "containers":
            yield spell((*at, "spec", field))
        for i, each in enumerate(value if field == "containers" else ()):
            yield from _in_container(each, name, (*at, "spec", field, i))


def _in_container(container: Any, trains: object, at: Path) -> Iterator[str]:
    if not isinstance(container, dict) or container.get("name") != trains:
        yield spell(at)
        return
    for field in container:
        if field not in KNOWN:
            yield spell((*at, field))
