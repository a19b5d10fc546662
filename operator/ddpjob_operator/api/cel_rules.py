"""The rules of a job's fields for the API server: in CEL, generated into the CRD.

These rules reject the same jobs as the models, with the same messages, as far as CEL can read a
job (a template is opaque to CEL). tests/cluster compares both. Only this module forbids changes
of fields while a job has workers, because such a change would not reach them.
May not: know the format of a CRD.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from pydantic.alias_generators import to_snake

from ddpjob_operator.api import constants
from ddpjob_operator.api.constants import ConditionType
from ddpjob_operator.api.fields import (
    ABOVE,
    CONTROL,
    DNS_LABEL,
    ENV_NAME,
    ENV_PREFIX,
    JOB_NAME,
    MAX_NAME,
    SNAPSHOT_URI,
    WHOLE_FOLDER,
)
from ddpjob_operator.api.sagemaker import (
    LAUNCHER_GIVEN,
    LAUNCHERS,
    NO_ENTRY_POINT,
    ONE_ENTRY_POINT,
    PROPRIETARY,
    TEMPLATE_GIVEN,
)
from ddpjob_operator.api.spec import (
    BESIDE_MAIN_TEMPLATE,
    INSTEAD_OF_TEMPLATE,
    MPIRUN_STARTS_ALL,
    NOT_BELOW,
    NOT_YET,
    DDPJobSpec,
)
from ddpjob_protocol.environment import TORCHRUN_MODULES

Rule = dict[str, str]
Placed = tuple[str, Rule]  # path of the rule in the schema; `*` is each entry of a list

GROUPS = "extraWorkerGroups"
SPEC, GROUP = "spec", f"spec.{GROUPS}.*"
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
    "snapshot",
    "elastic.orphanSeconds",
    "elastic.warmStart",
    "elastic.warmImports",
)


def build_rules() -> Iterator[Placed]:
    """Yield all rules, each with its path in the schema."""
    yield from _names()
    yield from _files()
    yield from _values()
    yield from _sizes()
    yield from _sources()
    yield from _snapshot()
    yield from _launcher()
    yield from _sagemaker()
    yield from _not_yet()
    yield from _pinned()


def rule(cel: str, message: str, *values: str, field: str = "") -> Rule:
    """Return a rule; CEL `values` replace `%s` in the message; errors point to `field`."""
    found = {"rule": cel, "fieldPath": field, "message": message}
    if values:
        found["messageExpression"] = f"{json.dumps(message)}.format([{', '.join(values)}])"
        del found["message"]
    return {key: value for key, value in found.items() if value}


# --- one value -----------------------------------------------------------------------------------


def _names() -> Iterator[Placed]:
    text = (
        "'%s' is not a valid name of a job; begin with a lower-case letter, continue with lower-case "
        f"letters, digits and '-', with a letter or digit last, {MAX_NAME} at most"
    )
    name = "self.metadata.name"
    yield "", rule(_matches(name, JOB_NAME), text, name, field=".metadata.name")
    text = (
        "'%s' is not a valid name; use lower-case letters, digits and '-', "
        f"with a letter or digit first and last, {MAX_NAME} at most"
    )
    yield f"{GROUP}.name", rule(_matches("self", DNS_LABEL), text, "self")
    text = f"'{constants.MAIN_GROUP}' is the main group's name; choose another one"
    yield f"{GROUP}.name", rule(f"self != '{constants.MAIN_GROUP}'", text)
    groups, most = _groups("self.spec"), constants.MAX_NAMES
    text = (
        f"is too long: with the longest name of a group it has more than {most} characters; "
        f"shorten it to {most} together"
    )
    lengths = f"({groups}.map(g, size(g.name)) + [{len(constants.MAIN_GROUP)}])"
    cel = f"{lengths}.all(length, size({name}) + length <= {most})"
    yield "", rule(cel, text, field=".metadata.name")


def _files() -> Iterator[Placed]:
    each, texts = f"{SPEC}.snapshot.files.*", f"{SPEC}.snapshot"
    text = "has a character that does not print; remove that"
    yield each, rule(f"!{_finds('self', CONTROL)}", text)
    text = "'%s' leads out with '..'; write the path without"
    yield each, rule(f"!{_finds('self', ABOVE)}", text, "self")
    text = "'%s' stands for all that is there; name what the script saves to"
    cel = f"!{_finds('self', WHOLE_FOLDER)} || {_finds('self', ABOVE)}"
    yield each, rule(cel, text, "self")
    once = "self.files.exists_one(b, a == b)"
    cel = f"!has(self.files) || self.files.all(a, {once})"
    first = f"self.files.filter(a, !{once})[0]"
    text = "'%s' is given more than once; keep one"
    yield texts, rule(cel, text, first, field=".files")


def _values() -> Iterator[Placed]:
    invalid = "'%s' is not a valid name of an environment variable"
    reserved = "'%s' is set by ddpjob; choose a name that does not begin so"
    whole = "must be a whole number of at least 1, or auto, not %s"
    for at in (SPEC, GROUP):
        yield f"{at}.env.*.name", rule(_matches("self", ENV_NAME), invalid, "self")
        yield f"{at}.env.*.name", rule(f"!self.startsWith('{ENV_PREFIX}')", reserved, "self")
        cel = "type(self) == int ? self >= 1 : self == 'auto'"
        yield f"{at}.processesPerWorker", rule(cel, whole, "self")


# --- several fields ------------------------------------------------------------------------------


def _sizes() -> Iterator[Placed]:
    above = "is %s, above maxReplicas (%s); lower it or raise maxReplicas"
    below = "is %s, below minReplicas (%s); raise it or lower minReplicas"
    paused, size, most = _paused("self"), "self.replicas", "self.maxReplicas"
    for at, absent in ((SPEC, f"({size} == 0 ? 0 : 1)"), (GROUP, "0")):
        least = f"(has(self.minReplicas) ? self.minReplicas : {absent})"
        ordered = f"(!has({most}) || {least} <= {most})"
        yield at, rule(ordered, above, least, most, field=".minReplicas")
        fits = f"!has({most}) || {size} <= {most} || {least} > {most}"
        yield at, rule(fits, above, size, most, field=".replicas")
        if at == SPEC:
            enough = f"{size} >= {least} || !{ordered} || {paused}"
            yield at, rule(enough, below, size, least, field=".replicas")
    # A rule of a group cannot read the fields that pause the job.
    least = "(has(g.minReplicas) ? g.minReplicas : 0)"
    enough = f"g.replicas >= {least} || (has(g.maxReplicas) && {least} > g.maxReplicas)"
    groups = _groups("self")
    small = f"{groups}.filter(g, !({enough}))"
    values = (f"{small}.map(g, {value})[0]" for value in ("g.name", "g.replicas", least))
    cel = f"{paused} || {groups}.all(g, {enough})"
    yield SPEC, rule(cel, f"replicas of group '%s' {below}", *values, field=f".{GROUPS}")


def _sources() -> Iterator[Placed]:
    text = "is missing; give what each worker runs, for example [torchrun, train.py]"
    given = "has(self.template) || (has(self.command) && size(self.command) > 0)"
    yield SPEC, rule(given, text, field=".command") | {"reason": "FieldValueRequired"}
    text = "is missing; give the image that the workers run"  # only jobs on a cluster need an image
    given = "has(self.template) || has(self.image)"
    yield SPEC, rule(given, text, field=".image") | {"reason": "FieldValueRequired"}
    text = "cannot be combined with template; move it into the template's container"
    for at in (SPEC, GROUP):
        for field in INSTEAD_OF_TEMPLATE:
            empty = "" if field in ("image", "resources") else f" || size(self.{field}) == 0"
            cel = f"!has(self.template) || !has(self.{field}){empty}"
            yield at, rule(cel, text, field=f".{field}")
    given = " || ".join(
        f"(has(g.{field}) && size(g.{field}) > 0)" if field != "resources" else "has(g.resources)"
        for field in INSTEAD_OF_TEMPLATE
    )
    cel = f"!has(self.template) || {_groups('self')}.all(g, has(g.template) || !({given}))"
    yield SPEC, rule(cel, f"one of them {BESIDE_MAIN_TEMPLATE}", field=f".{GROUPS}")
    text = "is given, and a limit of %s, too; remove one of the two"
    resource = f"(has(self.gpuResource) ? self.gpuResource : {_default('gpuResource')})"
    limits = "has(@.resources) && has(@.resources.limits)"
    once = f"!has(@.gpusPerWorker) || !({limits} && {resource} in @.resources.limits)"
    yield SPEC, rule(once.replace("@", "self"), text, resource, field=".gpusPerWorker")
    cel = f"{_groups('self')}.all(g, {once.replace('@', 'g')})"
    yield SPEC, rule(cel, f"gpusPerWorker of a group {text}", resource, field=f".{GROUPS}")


def _snapshot() -> Iterator[Placed]:
    at = f"{SPEC}.snapshot"
    text = "'%s' is no bucket with a prefix; give one as in s3://bucket/jobs/digits (s3, gs or az)"
    yield f"{at}.uri", rule(_matches("self", SNAPSHOT_URI), text, "self")
    text = "is given, and snapshot.storage, too; remove one of the two"
    yield at, rule("!has(self.uri) || !has(self.storage)", text, field=".uri")


def _launcher() -> Iterator[Placed]:
    command, first = "self.command", "self.command[0]"
    program = f"{first} == 'torchrun' || {first}.endsWith('/torchrun')"
    modules = ", ".join(f"'{name}'" for name in TORCHRUN_MODULES)
    module = f"size({command}) > 2 && {command}[1] == '-m' && {command}[2] in [{modules}]"
    there = f"has({command}) && size({command}) > 0"
    for name, text in NOT_BELOW.items():
        named = f"has(self.launcher) && self.launcher == '{name}'"
        cel = f"!({named} && {there} && ({program} || ({module})))"
        yield SPEC, rule(cel, text, field=".launcher")
    sagemaker = "has(self.sagemaker)"
    mpi = f"!{sagemaker} && has(self.launcher) && self.launcher == 'mpi'"
    for named, never in ((mpi, MPIRUN_STARTS_ALL), (sagemaker, ONE_ENTRY_POINT)):
        for field in ("command", "args"):
            cel = f"!({named} && {_groups('self')}.exists(g, has(g.{field})))"
            yield SPEC, rule(cel, f"a group's {field} {never}", field=f".{GROUPS}")


def _sagemaker() -> Iterator[Placed]:
    for value, text in PROPRIETARY.items():
        cel = f"!has(self.distribution) || self.distribution != '{value}'"
        yield f"{SPEC}.sagemaker", rule(cel, text, field=".distribution")
    there = "has(self.sagemaker)"
    yield SPEC, rule(f"!{there} || !has(self.template)", TEMPLATE_GIVEN, field=".sagemaker")
    command = "has(self.command) && size(self.command) > 0"
    script = "self.command[0].endsWith('.py')"
    yield SPEC, rule(f"!({there} && {command}) || {script}", NO_ENTRY_POINT, field=".command")
    mpi = "has(self.sagemaker.distribution) && self.sagemaker.distribution == 'mpi'"
    torchrun = "has(self.sagemaker.distribution) && self.sagemaker.distribution in [" + (
        ", ".join(f"'{name}'" for name, launcher in LAUNCHERS.items() if launcher == "torchrun")
    )
    same = f"self.launcher == ({mpi} ? 'mpi' : {torchrun}] ? 'torchrun' : 'python')"
    cel = f"!{there} || !has(self.launcher) || self.launcher == 'torchrun' || {same}"
    yield SPEC, rule(cel, LAUNCHER_GIVEN, field=".launcher")


def _not_yet() -> Iterator[Placed]:
    for field in NOT_YET:
        text = "is not supported by this version; remove it"
        yield SPEC, rule(f"!has(self.{field})", text, field=f".{field}")


# --- before and after ----------------------------------------------------------------------------


def _pinned() -> Iterator[Placed]:
    noticed = f"oldSelf.?status.?state.orValue('') == '{ConditionType.SUSPENDED}'"
    free = f"{_paused('oldSelf.spec')} && {noticed}"
    for path in PINNED:
        cel = f"{_same('self.spec', 'oldSelf.spec', path, _default(path))} || ({free})"
        yield "", rule(cel, f"cannot be changed {WHILE_IT_RUNS}", field=f".{SPEC}.{path}")
    same = " && ".join(_same("g", "o", field) for field in PINNED_IN_GROUPS)
    new, old = f"self.spec.{GROUPS}", f"oldSelf.spec.{GROUPS}"
    kept = f"{new}.all(g, {old}.exists(o, g.name == o.name && {same}))"
    both = f"has({new}) && has({old}) && size({new}) == size({old}) && {kept}"
    none = f"size({_groups('self.spec')}) + size({_groups('oldSelf.spec')}) == 0"
    cel = f"({none}) || ({both}) || ({free})"
    text = f"only replicas, minReplicas and maxReplicas can be changed {WHILE_IT_RUNS}"
    yield "", rule(cel, text, field=f".{SPEC}.{GROUPS}")


# --- pieces of CEL -------------------------------------------------------------------------------


def _groups(spec: str) -> str:
    return f"(has({spec}.{GROUPS}) ? {spec}.{GROUPS} : [])"


def _paused(spec: str) -> str:
    none = f"{spec}.replicas == 0 && {_groups(spec)}.all(g, g.replicas == 0)"
    return f"((has({spec}.suspend) && {spec}.suspend) || ({none}))"


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


def _matches(value: str, pattern: re.Pattern[str]) -> str:
    return f"{value}.matches('^{pattern.pattern}$')"


def _finds(value: str, pattern: str) -> str:
    return f"{value}.matches(r'{pattern}')"


def _default(path: str) -> str | None:
    """Return a text default of a spec field as a CEL literal, or None."""
    first, *rest = map(to_snake, path.split("."))
    value = DDPJobSpec.model_fields[first].default
    for name in rest:
        value = getattr(value, name, None)
    return f"'{value}'" if isinstance(value, str) else None
