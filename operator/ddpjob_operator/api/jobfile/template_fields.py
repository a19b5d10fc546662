"""Finds the fields of a template that no pod of Kubernetes 1.34 has: most are typing errors.

A newer Kubernetes may have more fields, so they are no faults. The API server drops a field that it
does not know.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from ddpjob_operator.api.cel import GROUPS
from ddpjob_operator.api.errors.aliases import canonical
from ddpjob_operator.api.file_metadata import FileMetadata
from ddpjob_operator.api.problem import Path, Problem, spell
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.spec.pod import pod_template

METADATA = frozenset(each.alias or name for name, each in FileMetadata.model_fields.items())
POD = pod_template.POD_FIELDS | pod_template.OTHER_POD_FIELDS
CONTAINER = pod_template.CONTAINER_FIELDS | pod_template.OTHER_CONTAINER_FIELDS


def find_unknown(job: DDPJob) -> Iterator[Problem]:
    """Yield each unknown field in the templates of a job, with the remedy."""
    spec = job.spec
    yield from _of_template(spec.template, ("spec", "template"))
    for i, group in enumerate(spec.extra_worker_groups):
        yield from _of_template(group.template, ("spec", GROUPS, i, "template"))


def _of_template(template: Any, path: Path) -> Iterator[Problem]:
    above = (*path, "spec")
    pod = pod_template.at(template, "spec")
    yield from _of_object(pod_template.at(template, "metadata"), (*path, "metadata"), METADATA)
    yield from _of_object(pod, above, POD, CONTAINER, (*above, "containers"))
    for field in ("containers", "initContainers"):
        entries = pod_template.at(pod, field)
        for i, container in enumerate(entries if isinstance(entries, list) else ()):
            yield from _of_object(container, (*above, field, i), CONTAINER, POD, above)


def _of_object(
    given: Any,
    path: Path,
    known: frozenset[str],
    others: frozenset[str] = frozenset(),
    home: Path = (),
) -> Iterator[Problem]:
    """Yield the unknown fields of an object; the fields of `others` belong to `home`."""
    for field in map(str, given if isinstance(given, dict) else ()):
        if field not in known and not field.startswith("$"):
            yield Problem(
                (*path, field), f"unknown field '{field}'{_remedy(field, known, others, home)}"
            )


def _remedy(field: str, known: frozenset[str], others: frozenset[str], home: Path) -> str:
    key, names = canonical(field), {canonical(name): name for name in sorted(known)}
    elsewhere = {canonical(name): name for name in others}
    if key in elsewhere and key not in names:
        name = elsewhere[key]
        return f" here; it belongs to {spell(home)}" + ("" if name == field else f" as '{name}'")
    if near := difflib.get_close_matches(key, names, n=1, cutoff=0.7):
        return f"; did you mean '{names[near[0]]}'?"
    return " in Kubernetes 1.34; remove it, unless the cluster's is newer and has it"
