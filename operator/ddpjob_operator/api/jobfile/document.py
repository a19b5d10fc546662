"""Turns the text of a job file into a YAML tree with lines, and the tree into data.

May not: know a field of a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from ddpjob_operator.api.jobfile.fault import Fault
from ddpjob_operator.api.problem import Path, Problem


class InvalidTextError(ValueError):
    """The error for a text that is not one YAML mapping."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class _Loader(yaml.SafeLoader):
    """A YAML loader that keeps dates as text, because no field of a job is a date."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def compose(text: str) -> yaml.MappingNode:
    """Return the tree of the only document of a text; raise InvalidTextError if there is none."""
    try:
        nodes = list(yaml.compose_all(text, Loader=_Loader))
    except yaml.YAMLError as error:
        raise InvalidTextError(_syntax(error)) from None
    except RecursionError:
        raise InvalidTextError(Fault("the file is nested too deeply")) from None
    nodes = [node for node in nodes if node.tag != "tag:yaml.org,2002:null"]
    if not nodes:
        raise InvalidTextError(Fault("the file is empty; it must hold one DDPJob"))
    if len(nodes) > 1:
        line = nodes[1].start_mark.line + 1
        count = f"the file holds {len(nodes)} documents; give each job a file of its own"
        raise InvalidTextError(Fault(count, line=line))
    if not isinstance(nodes[0], yaml.MappingNode):
        kind = "a list" if isinstance(nodes[0], yaml.SequenceNode) else "a single value"
        what = (
            f"the file holds {kind}; it must hold one DDPJob, "
            "which begins with apiVersion, kind, metadata and spec"
        )
        raise InvalidTextError(Fault(what, line=nodes[0].start_mark.line + 1))
    return nodes[0]


def construct(root: yaml.MappingNode) -> dict[str, Any]:
    """Return the data of a tree."""
    try:
        data: dict[str, Any] = _Loader("").construct_document(root)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidTextError(_syntax(error)) from None
    return data


def _syntax(error: Exception) -> Fault:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return Fault(f"the file is not valid YAML: {str(error).splitlines()[0]}")
    mark, what = error.problem_mark, error.problem or "not valid YAML"
    if "'\\t'" in what:
        what = "a tab stands where YAML wants spaces"
    elif error.context:
        what = f"{what} ({error.context} at line {(error.context_mark or mark).line + 1})"
    return Fault(what, line=mark.line + 1, column=mark.column + 1)


def find_repeated(node: yaml.Node, at: Path, seen: set[int]) -> Iterator[Problem]:
    """Yield a problem for each field that is given twice."""
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
            yield from find_repeated(value, path, seen)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield from find_repeated(item, (*at, i), seen)


def line_of(root: yaml.Node, path: Path) -> int:
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
