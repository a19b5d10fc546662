"""Reads a job as the API server has it, although another version of the operator may have written it.

Theory of operation. A fault in one field costs that field only.
- The status is read field by field, a list entry by entry. What cannot be read is kept, and
  written again until this version has a value of its own for that field. So no status is
  overwritten by a blank one.
- The spec is complete, or it has problems. A job that has trained or ended is read without the
  rules and without the fields that this version refuses, because it has to run to its end.

May not: change the meaning of a field that can be read.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ddpjob_operator.api.constants import ConditionType
from ddpjob_operator.api.errors import explain_errors
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.spec.job import WITHOUT_RULES, Metadata
from ddpjob_operator.api.status import DDPJobStatus

MAX_REFUSED = 50  # fields of one spec
ENDS = (ConditionType.COMPLETE, ConditionType.FAILED)


@dataclasses.dataclass(frozen=True)
class StoredJob:
    """A job as far as it can be read."""

    job: DDPJob | None  # None: the spec cannot be read
    status: DDPJobStatus
    unread: Mapping[str, Any]  # fields of the status, under their names in JSON
    problems: str  # of the spec; an empty text if this version accepts it

    def status_to_write(self, new: DDPJobStatus) -> dict[str, Any]:
        """Return the JSON of a status, with the fields that could not be read and have no new value."""
        return {**self.unread, **new.to_json()}

    @property
    def ended(self) -> bool:
        """True if the job has ended, also if its conditions cannot be read."""
        has_ended = any(c.type in ENDS and c.status == "True" for c in self.status.conditions)
        return has_ended or self.status.state in ENDS


class JobReader:
    """Reads jobs; a spec is validated only if it differs from the last valid one of its job."""

    def __init__(self) -> None:
        self._valid: dict[tuple[str, str], tuple[Mapping[str, Any], DDPJob]] = {}

    def read(self, raw: Mapping[str, Any]) -> StoredJob:
        """Read a job like `read_stored_job`."""
        metadata = raw["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        fixed = {name: value for name, value in raw.items() if name not in ("metadata", "status")}
        known = self._valid.get(key)
        if known is not None and known[0] == fixed:
            with contextlib.suppress(ValidationError):
                return _read_with_spec_of(known[1], raw)
        found = read_stored_job(raw)
        if found.job is not None and not found.problems:
            self._valid[key] = (fixed, found.job)
        return found

    def forget(self, key: tuple[str, str]) -> None:
        """Drop what is known of a job that no longer exists."""
        self._valid.pop(key, None)


def _read_with_spec_of(known: DDPJob, raw: Mapping[str, Any]) -> StoredJob:
    metadata = Metadata.model_validate(raw["metadata"], by_alias=True, by_name=False)
    status, unread = read_status(raw.get("status") or {})
    job = known.model_copy(update={"metadata": metadata, "status": status})
    return StoredJob(job, status, unread, "")


def read_stored_job(raw: Mapping[str, Any]) -> StoredJob:
    """Read a job; nothing in it raises an error, except metadata without a name."""
    status, unread = read_status(raw.get("status") or {})
    spec_only = {name: value for name, value in raw.items() if name != "status"}
    try:
        job = DDPJob.model_validate(spec_only, by_alias=True, by_name=False)
        problems = ""
    except ValidationError as error:
        problems = "; ".join(map(str, explain_errors(error)))
        found = StoredJob(None, status, unread, problems)
        started = status.membership is not None or "membership" in unread or found.ended
        lenient = _read_leniently(spec_only) if started else None
        if lenient is None:
            return found
        job = lenient
    return StoredJob(job.model_copy(update={"status": status}), status, unread, problems)


def read_status(raw: Mapping[str, Any]) -> tuple[DDPJobStatus, dict[str, Any]]:
    """Return the readable fields, and the others as they are stored."""
    try:
        return DDPJobStatus.model_validate(raw, by_alias=True, by_name=False), {}
    except ValidationError:
        pass
    fields: dict[str, Any] = {}
    unread: dict[str, Any] = {}
    for name, field in DDPJobStatus.model_fields.items():
        alias = field.alias or name
        if alias not in raw:
            continue
        value = raw[alias]
        entries = value if isinstance(value, list) else [value]
        parts = [_part(alias, [each] if isinstance(value, list) else each) for each in entries]
        refused = [each for each, part in zip(entries, parts, strict=True) if part is None]
        if refused:
            unread[alias] = refused if isinstance(value, list) else value
        found = [getattr(part, name) for part in parts if part is not None]
        if isinstance(value, list):
            fields[name] = tuple(entry for entries in found for entry in entries)
        elif found:
            fields[name] = found[0]
    return DDPJobStatus().model_copy(update=fields), unread


def _part(alias: str, value: Any) -> DDPJobStatus | None:
    try:
        return DDPJobStatus.model_validate({alias: value}, by_alias=True, by_name=False)
    except ValidationError:
        return None


def _read_leniently(raw: Mapping[str, Any]) -> DDPJob | None:
    """Read a job without rules and without the fields of the spec that are refused."""
    data: Any = raw
    for _ in range(MAX_REFUSED):
        try:
            return DDPJob.model_validate(
                data, by_alias=True, by_name=False, context={WITHOUT_RULES: True}
            )
        except ValidationError as error:
            before = data
            for details in error.errors():
                path = details["loc"]
                if len(path) > 1 and path[0] == "spec":
                    data = _without(data, path)
            if data is before:
                return None
    return None


def _without(data: Any, path: Sequence[str | int]) -> Any:
    """Return a copy without the value at a path, or the data themselves if there is none.

    What lies beside the path is shared: it may have any depth.
    """
    first, *rest = path
    inside = isinstance(data, dict) and first in data
    entry = isinstance(data, list) and isinstance(first, int) and first < len(data)
    if not inside and not entry:
        return data
    copied = data.copy()
    if not rest:
        del copied[first]
        return copied
    copied[first] = _without(data[first], rest)
    return data if copied[first] is data[first] else copied
