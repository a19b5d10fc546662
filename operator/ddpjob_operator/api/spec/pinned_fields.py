"""The fields that make the pods of a job: a change would not reach pods that exist.

They may change until the first membership, because pods that never trained are replaced, and while
the job is suspended. Only the API server knows the job before the change, so these rules have no
check in Python.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from pydantic.alias_generators import to_snake

from ddpjob_operator.api import cel
from ddpjob_operator.api.base import Model
from ddpjob_operator.api.constants import ConditionType
from ddpjob_operator.api.rule import Rule

WHILE_IT_RUNS = (
    "while the job has workers; suspend the job first (suspend: true) until its state is Suspended, "
    "or delete it and create it again: the job resumes from snapshot.storage or snapshot.uri"
)
# Fields that are read only at a worker's creation. All other changes reach a running job.
PINNED_IN_GROUPS = (
    "image",
    "command",
    "args",
    "env",
    "resources",
    "template",
    "gpusPerWorker",
    "processesPerWorker",
)
PINNED = (
    *PINNED_IN_GROUPS,
    "gpuResource",
    "launcher",
    "sagemaker",
    "network",
    "scheduling",
    "rendezvous",
    "snapshot",
    "elastic.orphanSeconds",
    "elastic.stuckSeconds",
    "elastic.warmStart",
    "elastic.warmImports",
)
STATE = "oldSelf.?status.?state.orValue('')"
HAS_NO_WORKERS = f"({cel.paused('oldSelf.spec')} && {STATE} == '{ConditionType.SUSPENDED}')"
NEVER_TRAINED = (
    "(!oldSelf.?status.?membership.hasValue() && "
    f"!({STATE} in ['{ConditionType.COMPLETE}', '{ConditionType.FAILED}']))"
)
MAY_CHANGE = f"{HAS_NO_WORKERS} || {NEVER_TRAINED}"
REVISION_LENGTH = 10


def pinned_rules(spec: type[Model]) -> Iterator[Rule]:
    """Yield the rules; `spec` has the defaults of the fields."""
    for path in PINNED:
        same = _same("self.spec", "oldSelf.spec", path, _default(spec, path))
        yield Rule(
            field=f"spec.{path}",
            message=f"cannot be changed {WHILE_IT_RUNS}",
            cel=f"{same} || {MAY_CHANGE}",
        )
    same = " && ".join(_same("g", "o", field) for field in PINNED_IN_GROUPS)
    new, old = f"self.spec.{cel.GROUPS}", f"oldSelf.spec.{cel.GROUPS}"
    kept = f"{new}.all(g, {old}.exists(o, g.name == o.name && {same}))"
    both = f"has({new}) && has({old}) && size({new}) == size({old}) && {kept}"
    none = f"size({cel.groups('self.spec')}) + size({cel.groups('oldSelf.spec')}) == 0"
    yield Rule(
        field=f"spec.{cel.GROUPS}",
        message=f"only replicas, minReplicas and maxReplicas can be changed {WHILE_IT_RUNS}",
        cel=f"({none}) || ({both}) || {MAY_CHANGE}",
    )


def revision(spec: Model) -> str:
    """Return a hash of the fields that make pods; explicit defaults and the order do not count."""
    given = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    groups = {
        group["name"]: {name: group[name] for name in PINNED_IN_GROUPS if name in group}
        for group in given.get(cel.GROUPS, ())
    }
    content = json.dumps([[_value(given, path) for path in PINNED], groups], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:REVISION_LENGTH]


def _value(given: dict[str, Any], path: str) -> Any:
    first, _, rest = path.partition(".")
    value = given.get(first)
    return _value(value or {}, rest) if rest else value


def _same(new: str, old: str, path: str, default: str | None = None) -> str:
    """Return CEL for an unchanged field; an explicit default equals an absent field."""
    has = [" && ".join(f"has({e}.{p})" for p in _prefixes(path)) for e in (new, old)]
    if default:
        new, old = (f"({h} ? {e}.{path} : {default})" for h, e in zip(has, (new, old), strict=True))
        return f"{new} == {old}"
    first, second = f"{new}.{path}", f"{old}.{path}"
    if path == "processesPerWorker":  # a number or `auto`, which CEL treats as text of any length
        first, second = (f"(type({e}) == int ? int({e}) : 0)" for e in (first, second))
    return f"(({has[0]}) == ({has[1]}) && (!({has[0]}) || {first} == {second}))"


def _prefixes(path: str) -> Iterator[str]:
    parts = path.split(".")
    return (".".join(parts[: n + 1]) for n in range(len(parts)))


def _default(spec: type[Model], path: str) -> str | None:
    """Return a text default of a spec field as a CEL literal, or None."""
    first, *rest = map(to_snake, path.split("."))
    value = spec.model_fields[first].default
    for name in rest:
        value = getattr(value, name, None)
    return f"'{value}'" if isinstance(value, str) else None
