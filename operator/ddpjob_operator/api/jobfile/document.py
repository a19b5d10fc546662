"""Turns the text of a file into YAML trees with lines, and a tree into data, or names the fault.

The data are those of JSON, because the API server takes no others. A tree has a bounded depth, no
loop and a bounded number of values, also if each alias is replaced by what it stands for: so no
later step can take more time or memory than the file deserves.
May not: know a field of a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml
from yaml.constructor import ConstructorError

from ddpjob_operator.api.constants import MAX_DEPTH
from ddpjob_operator.api.jobfile.fault import Fault
from ddpjob_operator.api.problem import Path, Problem

MAX_VALUES = 100_000  # an API server takes objects of 1.5 MB
MAX_BITS = 1024  # of an integer; Python writes no text of a much longer one
MAX_SHOWN = 40  # letters of a value
TOO_DEEP = "the file is nested too deeply"
TOO_MANY = (
    f"there are more than {MAX_VALUES} values, each alias (*name) counted as all that it stands for; "
    "shorten the file"
)
LOOP = "an alias (*name) stands inside of what it stands for; remove it"
TAG = "tag:yaml.org,2002:"
TYPES = {
    "null": "null",
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "seq": "a list",
    "map": "a mapping",
}


class InvalidTextError(ValueError):
    """The error for a text that cannot be read as YAML, or holds something else than wanted."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class _Loader(yaml.SafeLoader):
    """A YAML loader of JSON's types, so dates stay text; a wrong value is a YAMLError."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node; PyYAML's own errors for odd scalars are of many kinds."""
        try:
            value = super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            kind = TYPES.get(node.tag.removeprefix(TAG), node.tag)
            what = f"{str(node.value)[:MAX_SHOWN]!r} is not {kind}"
            raise ConstructorError(None, None, what, node.start_mark) from error
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            what = "an integer has too many digits; put it in quotes if it is text"
            raise ConstructorError(None, None, what, node.start_mark)
        return value


_Loader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(TAG) in TYPES
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def compose(text: str) -> yaml.MappingNode:
    """Return the tree of the only document of a text; raise InvalidTextError if there is none."""
    nodes = compose_all(text)
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


def compose_all(text: str) -> list[yaml.Node]:
    """Return the tree of each document of a text that holds something; raise InvalidTextError."""
    try:
        nodes = list(yaml.compose_all(text, Loader=_Loader))
    except (yaml.YAMLError, OverflowError, ValueError) as error:
        raise InvalidTextError(_syntax(error)) from None
    except RecursionError:
        raise InvalidTextError(Fault(TOO_DEEP)) from None
    for node in nodes:
        _measure(node, {})
    return [node for node in nodes if node.tag != f"{TAG}null"]


class _Extent(NamedTuple):
    depth: int
    values: int


def _measure(node: yaml.Node, known: dict[int, _Extent | None]) -> _Extent:
    """Return the extent of a tree with each alias replaced; raise InvalidTextError."""
    line = node.start_mark.line + 1
    if id(node) in known:
        extent = known[id(node)]
        if extent is None:
            raise InvalidTextError(Fault(LOOP, line=line))
        return extent
    known[id(node)] = None
    inner = [_measure(each, known) for each in _children(node)]
    depth = 1 + max((each.depth for each in inner), default=0)
    extent = _Extent(depth, 1 + sum(each.values for each in inner))
    if extent.depth > MAX_DEPTH:
        raise InvalidTextError(Fault(TOO_DEEP, line=line))
    if extent.values > MAX_VALUES:
        raise InvalidTextError(Fault(TOO_MANY, line=line))
    known[id(node)] = extent
    return extent


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def construct(root: yaml.Node) -> Any:
    """Return the data of a tree; raise InvalidTextError."""
    try:
        return _Loader("").construct_document(root)
    except yaml.YAMLError as error:
        raise InvalidTextError(_syntax(error)) from None


def _syntax(error: Exception) -> Fault:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return Fault(f"the file is not valid YAML: {' '.join(str(error).splitlines()[:1])}")
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
