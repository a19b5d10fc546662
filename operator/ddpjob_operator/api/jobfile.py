"""Parses the text of a job file into a DDPJob, or reports one line for each problem.

May not: open a file; the caller passes the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from ddpjob_operator.api import constants
from ddpjob_operator.api.errors import explain_errors
from ddpjob_operator.api.job_warnings import find_warnings
from ddpjob_operator.api.problem import Path, Problem
from ddpjob_operator.api.spec import DDPJob

__all__ = ["JobFileError", "from_data", "parse", "warnings"]


class JobFileError(ValueError):
    """The error for an invalid job; the message has one line for each problem."""


def parse(text: str) -> DDPJob:
    """Return the job that the text describes, without its status, which is of another run.

    Raise JobFileError if the text is not a valid job.
    """
    root = _compose(text)
    found = list(_repeated(root, (), set()))
    data = None if found else _construct(root)
    found += _envelope(data) if data is not None else ()
    if not found and data is not None:
        data.pop("status", None)
        try:
            return DDPJob.model_validate(data, by_alias=True, by_name=False)
        except ValidationError as error:
            found += explain_errors(error)
    lines = sorted({(_line(root, problem.path), str(problem)) for problem in found})
    raise JobFileError("\n".join(f"line {line}: {what}" for line, what in lines))


def from_data(data: Mapping[str, Any]) -> DDPJob:
    """Return the job of a mapping, whose fields may be in snake_case; raise JobFileError."""
    try:
        return DDPJob.model_validate(data, by_alias=True, by_name=True)
    except ValidationError as error:
        raise JobFileError("\n".join(map(str, explain_errors(error)))) from error


def warnings(job: DDPJob) -> Iterator[str]:
    """Yield warnings about valid settings that are seldom intended."""
    return (warning.message for warning in find_warnings(job))


# --- from text to data ---------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """A YAML loader that keeps dates as text, because no field of a job is a date."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _compose(text: str) -> yaml.MappingNode:
    try:
        nodes = list(yaml.compose_all(text, Loader=_Loader))
    except yaml.YAMLError as error:
        raise JobFileError(_syntax(error)) from None
    except RecursionError:
        raise JobFileError("the file is nested too deeply") from None
    nodes = [node for node in nodes if node.tag != "tag:yaml.org,2002:null"]
    if not nodes:
        raise JobFileError("the file is empty; it must hold one DDPJob")
    if len(nodes) > 1:
        line = nodes[1].start_mark.line + 1
        raise JobFileError(
            f"line {line}: the file holds {len(nodes)} documents; give each job a file of its own"
        )
    if not isinstance(nodes[0], yaml.MappingNode):
        kind = "a list" if isinstance(nodes[0], yaml.SequenceNode) else "a single value"
        raise JobFileError(
            f"line {nodes[0].start_mark.line + 1}: the file holds {kind}; it must hold one DDPJob, "
            "which begins with apiVersion, kind, metadata and spec"
        )
    return nodes[0]


def _construct(root: yaml.MappingNode) -> dict[str, Any]:
    try:
        data: dict[str, Any] = _Loader("").construct_document(root)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise JobFileError(_syntax(error)) from None
    return data


def _syntax(error: Exception) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"the file is not valid YAML: {str(error).splitlines()[0]}"
    mark, what = error.problem_mark, error.problem or "not valid YAML"
    if "'\\t'" in what:
        what = "a tab stands where YAML wants spaces"
    elif error.context:
        what = f"{what} ({error.context} at line {(error.context_mark or mark).line + 1})"
    return f"line {mark.line + 1}, column {mark.column + 1}: {what}"


# --- problems of files only -----------------------------------------------------------------------


def _envelope(data: dict[str, Any]) -> Iterator[Problem]:
    for field, wanted in (("apiVersion", constants.API_VERSION), ("kind", constants.KIND)):
        if field not in data:
            yield Problem((field,), f"is missing; add {field}: {wanted}")
        elif data[field] != wanted:
            yield Problem((field,), f"must be {wanted}, not {data[field]!r}")


def _repeated(node: yaml.Node, at: Path, seen: set[int]) -> Iterator[Problem]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            path = (*at, str(key.value))
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name in first and name != "<<":
                lines = f"lines {first[name]} and {line}"
                yield Problem(path, f"is given twice, {lines}; remove one of them")
            if name is not None:
                first.setdefault(name, line)
            yield from _repeated(value, path, seen)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield from _repeated(item, (*at, i), seen)


def _line(root: yaml.Node, path: Path) -> int:
    """Return the line of the path, or of its nearest ancestor in the file."""
    node, line = root, root.start_mark.line
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = [(k, v) for k, v in node.value if k.value == part]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            found = [(v, v) for v in node.value[part : part + 1]]
        else:
            found = []
        if not found:
            break
        line, node = found[-1][0].start_mark.line, found[-1][1]
    return line + 1
