"""The definition of a job: from arguments, from a file, or from a cluster."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ddpjob.errors import InvalidJobError, reading_file
from ddpjob_operator.api import jobfile
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.cli.files import job_files


class Definition(NamedTuple):
    """A valid job, its text as a job file, and the folder where its command runs locally."""

    job: DDPJob
    text: str
    folder: Path


def from_arguments(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> Definition:
    """Return the job with the fields that are not None; raise InvalidJobError."""
    data = {"metadata": without_none(metadata), "spec": without_none(spec)}
    try:
        job = jobfile.from_data(data)
    except jobfile.JobFileError as error:
        raise InvalidJobError(str(error)) from error
    for warning in jobfile.warnings(job):
        warnings.warn(warning, stacklevel=3)  # at the call of `Job`
    return Definition(job, _spell(job, data["metadata"]), Path())


def from_file(path: Path) -> Definition:
    """Return the only job of a file; raise InvalidJobError."""
    with reading_file():
        found = job_files.load_text(path)
    return Definition(found.job, found.text, path.parent)


def from_object(found: Mapping[str, Any]) -> Definition:
    """Return the job of an object on a cluster."""
    data = {field: found[field] for field in ("metadata", "spec")}
    job = DDPJob.model_validate(data, by_alias=True, by_name=False)
    kept = ("name", "namespace", "labels", "annotations")
    return Definition(
        job, _spell(job, {k: v for k, v in found["metadata"].items() if k in kept}), Path()
    )


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def _spell(job: DDPJob, metadata: Mapping[str, Any]) -> str:
    """Return the fields that were given, as the text of a job file."""
    fields = {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "metadata": dict(metadata),
        "spec": job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
    }
    return str(yaml.safe_dump(fields, sort_keys=False))
