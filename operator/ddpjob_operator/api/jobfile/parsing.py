"""From the text of a job file to a job: every check that needs no other file and no cluster."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from ddpjob_operator.api import constants
from ddpjob_operator.api.cel import GROUPS
from ddpjob_operator.api.errors import explain_errors
from ddpjob_operator.api.file_metadata import FileMetadata
from ddpjob_operator.api.job_warnings import find_warnings
from ddpjob_operator.api.jobfile.document import (
    InvalidTextError,
    compose,
    construct,
    find_repeated,
    line_of,
)
from ddpjob_operator.api.jobfile.fault import Fault, Severity
from ddpjob_operator.api.jobfile.quantities import find_unquoted, quote
from ddpjob_operator.api.jobfile.template_fields import find_unknown
from ddpjob_operator.api.problem import Path, Problem, spell
from ddpjob_operator.api.spec import DDPJob

CONVERTIBLE = ("PyTorchJob", "TrainJob")  # kinds that `ddpjob convert` reads


class JobFileError(ValueError):
    """The error for an invalid job; the message has one line for each fault."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))


@dataclasses.dataclass(frozen=True)
class ParsedJob:
    """A valid job, its text, and the tree of its text."""

    job: DDPJob
    text: str
    root: yaml.MappingNode
    data: dict[str, Any]

    def find_warnings(self) -> Iterator[Fault]:
        """Yield warnings about valid settings that are seldom intended."""
        for warning in find_warnings(self.job):
            yield self._fault(warning.path, warning.message, Severity.WARNING)
        for problem in find_unknown(self.job):
            yield self._fault(problem.path, problem.message, Severity.WARNING)

    def find_cluster_faults(self, severity: Severity) -> Iterator[Fault]:
        """Yield what the API server rejects; a missing image has the given severity.

        `ddpjob apply` repairs quantities without quotes, so they are warnings.
        """
        if any(group.image is None for group in self.job.spec.groups()):
            only_local = "is missing, so the job runs with `ddpjob run --local` only"
            missing = "is missing; give the image that the workers run"
            message = only_local if severity is Severity.WARNING else missing
            yield self._fault(("spec", "image"), message, severity)
        for problem in find_unquoted(self.data):
            yield self._fault(problem.path, problem.message, Severity.WARNING)

    def find_local_faults(self) -> Iterator[Fault]:
        """Yield the fields that need a cluster."""
        spec = self.job.spec
        for i, group in enumerate((spec, *spec.extra_worker_groups)):
            path: Path = ("spec", GROUPS, i - 1) if i else ("spec",)
            for n, entry in enumerate(group.env):
                if entry.value_from is not None:
                    where = (*path, "env", n, "valueFrom")
                    yield self._fault(where, "needs a cluster; give value instead")

    def _fault(self, path: Path, message: str, severity: Severity = Severity.ERROR) -> Fault:
        return Fault(message, line_of(self.root, path), path=spell(path), severity=severity)

    def to_apply(self) -> str:
        """Return the text for the API server: the user's own, or one with quoted quantities."""
        if not any(find_unquoted(self.data)):
            return self.text
        return str(yaml.safe_dump(quote(self.data), sort_keys=False))


def parse(text: str) -> DDPJob:
    """Return the job that the text describes, without its status, which is of another run.

    Raise JobFileError if the text is not a valid job.
    """
    return read(text).job


def read(text: str) -> ParsedJob:
    """Return the job that the text describes, with its lines; raise JobFileError if it is invalid."""
    try:
        root = compose(text)
        found = list(find_repeated(root, (), set()))
        data = None if found else construct(root)
    except InvalidTextError as error:
        raise JobFileError([error.fault]) from None
    if data is not None:
        found += _envelope(data)
        found += _metadata(data)
        if not any(problem.path[:1] in (("kind",), ("apiVersion",)) for problem in found):
            data.pop("status", None)
            try:
                job = DDPJob.model_validate(data, by_alias=True, by_name=False)
            except ValidationError as error:
                found += explain_errors(error)
            else:
                if not found:
                    return ParsedJob(job, text, root, data)
    lines = sorted({(line_of(root, each.path), str(each), each) for each in found})
    raise JobFileError(Fault(each.message, line, path=spell(each.path)) for line, _, each in lines)


def from_data(data: Mapping[str, Any]) -> DDPJob:
    """Return the job of a mapping, whose fields may be in snake_case; raise JobFileError."""
    try:
        return DDPJob.model_validate(data, by_alias=True, by_name=True)
    except ValidationError as error:
        faults = (Fault(each.message, path=spell(each.path)) for each in explain_errors(error))
        raise JobFileError(faults) from error


def warnings(job: DDPJob) -> Iterator[str]:
    """Yield warnings about valid settings that are seldom intended."""
    yield from (warning.message for warning in find_warnings(job))
    yield from map(str, find_unknown(job))


def other_kind(text: str) -> str:
    """Return the kind of a document that describes no job; empty if it is a job, or invalid."""
    try:
        data = construct(compose(text))
    except InvalidTextError:
        return ""
    version, kind = data.get("apiVersion"), data.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return ""
    is_ours = version.startswith(f"{constants.GROUP}/") or _looks_like_ours(kind)
    return "" if is_ours or kind in CONVERTIBLE else kind


def _looks_like_ours(kind: str) -> bool:
    return bool(difflib.get_close_matches(kind.lower(), [constants.KIND.lower()], cutoff=0.8))


def _envelope(data: dict[str, Any]) -> Iterator[Problem]:
    kind = data.get("kind")
    if kind in CONVERTIBLE:
        yield Problem(
            ("kind",), f"is {kind}, not {constants.KIND}; convert it: ddpjob convert FILE"
        )
        return
    for field, wanted in (("apiVersion", constants.API_VERSION), ("kind", constants.KIND)):
        if field not in data:
            yield Problem((field,), f"is missing; add {field}: {wanted}")
        elif data[field] != wanted:
            yield Problem((field,), f"must be {wanted}, not {data[field]!r}")


def _metadata(data: dict[str, Any]) -> Iterator[Problem]:
    metadata = data.get("metadata")
    if isinstance(metadata, dict) and data.get("kind") == constants.KIND:
        try:
            FileMetadata.model_validate(metadata, by_alias=True, by_name=False)
        except ValidationError as error:
            yield from explain_errors(error, "metadata")
