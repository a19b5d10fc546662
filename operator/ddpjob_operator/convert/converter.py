"""Converts the documents of a file, and writes DDPJobs with comments about what they lack."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import yaml

from ddpjob_operator.api.jobfile.document import InvalidTextError, compose_all, construct
from ddpjob_operator.convert import pytorch_job, train_job
from ddpjob_operator.convert.fields import ConvertError, Fields, Note, Object

CONVERTERS: dict[tuple[str, str], Callable[[Object, list[Note]], Object]] = {
    ("kubeflow.org", "PyTorchJob"): pytorch_job.convert,
    ("trainer.kubeflow.org", "TrainJob"): train_job.convert,
}
WIDTH = 96


class Converted(NamedTuple):
    """A DDPJob, and the fields of its source that it lacks."""

    source: str
    job: Object
    notes: tuple[Note, ...]

    def to_yaml(self) -> str:
        """Return the job as YAML, with its notes as comments."""
        body = yaml.dump(self.job, Dumper=_Dumper, sort_keys=False, width=WIDTH, allow_unicode=True)
        return "\n".join([*self._comments(), body])

    def _comments(self) -> Iterator[str]:
        yield f"# From {self.source}, by ddpjob convert."
        if self.notes:
            yield "# Check these fields: they are not carried over, or not as they were."
        for path, reason in self.notes:
            yield from textwrap.wrap(
                f"{path}: {reason}", WIDTH, initial_indent="# - ", subsequent_indent="#   ",
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip


def convert(text: str) -> tuple[list[Converted], list[str]]:
    """Return the jobs of a file, and the names of its other objects; raise ConvertError."""
    jobs, others = [], []
    for document in _documents(text):
        group = str(document.get("apiVersion", "")).partition("/")[0]
        kind, metadata = str(document.get("kind", "")), document.get("metadata")
        name = f"{kind} {metadata.get('name', '') if isinstance(metadata, dict) else ''}".strip()
        found = CONVERTERS.get((group, kind))
        if found is None:
            others.append(name or "an object without kind")
            continue
        notes: list[Note] = []
        try:
            job = found(document, notes)
        except ConvertError as error:
            raise ConvertError(f"{name}: {error}") from error
        jobs.append(Converted(name, job, tuple(notes)))
    if not jobs:
        kinds = " or ".join(f"{kind} ({group})" for group, kind in CONVERTERS)
        present = ", ".join(others) or "nothing"
        raise ConvertError(f"the file has no {kinds}, but {present}; give a file with such a job")
    return jobs, others


def _documents(text: str) -> Iterator[Object]:
    try:
        documents = [construct(root) for root in compose_all(text)]
    except InvalidTextError as error:
        raise ConvertError(str(error)) from error
    for document in documents:
        if isinstance(document, dict) and document.get("kind") == "List":
            items = Fields(document, "", []).take_list("items")
            yield from (each for each in items if isinstance(each, dict))
        elif isinstance(document, dict):
            yield document
        else:
            raise ConvertError(
                "the file holds a document that is not a mapping; give a job as YAML"
            )


class _Dumper(yaml.SafeDumper):
    """A YAML dumper without aliases; text of several lines is a block."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: the same value twice is written twice."""
        del data
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
