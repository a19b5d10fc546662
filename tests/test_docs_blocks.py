"""The code on the pages: jobs are valid, commands exist, Python compiles and uses what exists."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
import pytest
import yaml

import ddpjob
import ddpjob_trainer
from ddpjob_operator.api import jobfile
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.cli.main import COMMANDS, load
from ddpjob_trainer.__main__ import _parser as snapshots_parser
from ddpjob_trainer.elastic.step import Step
from support.pages import Block, blocks, command_lines

BLOCKS = list(blocks())
FIELDS = {field.alias or name for name, field in DDPJobSpec.model_fields.items()}
# YAML that is not a job: page and first line -> what it is.
OTHER_YAML = {
    ("docs/guides/argo-cd.md", "data:"): "a ConfigMap of Argo CD",
    ("docs/guides/argo-cd.md", "spec:"): "an Application of Argo CD",
    ("docs/guides/argo-cd.md", "operatorKey:"): "values of the chart",
}


def ids(found: list[Block]) -> dict[str, Any]:
    return {"argvalues": found, "ids": [block.place for block in found]}


# Jobs


def yaml_blocks() -> list[Block]:
    return [
        block
        for block in BLOCKS
        if block.language == "yaml" and (block.page, block.text.splitlines()[0]) not in OTHER_YAML
    ]


@pytest.mark.parametrize("block", **ids(yaml_blocks()))
def test_yaml_is_a_valid_job_or_a_part_of_one(block: Block) -> None:
    for document in yaml.safe_load_all(block.text):
        if is_of_another_kind(document):
            continue
        read = jobfile.read(yaml.safe_dump(whole_job(document)))
        unknown = [str(fault) for fault in read.find_warnings() if "unknown field" in fault.message]
        assert not unknown


def is_of_another_kind(document: Any) -> bool:
    """Whether a document is an object that names its kind, and that kind is not ours."""
    return "kind" in document and "ddpjob.io" not in document.get("apiVersion", "ddpjob.io")


def whole_job(part: Any) -> dict[str, Any]:
    """The job that a part on a page belongs to: of spec, of metadata, or of the template's pod."""
    assert isinstance(part, dict)
    if part.get("kind") == "DDPJob":
        return part
    given = part if part.keys() <= {"spec", "metadata"} else {"spec": part}
    if given.get("spec", {}).keys() & {"securityContext", "containers"}:
        given = {"spec": {"template": given}}
    assert given.get("spec", {}).keys() <= FIELDS, "name what it is in OTHER_YAML"
    spec = {
        "image": "example:1",
        "command": ["torchrun", "train.py"],
        "replicas": 2,
        **given.get("spec", {}),
    }
    metadata = {"name": "page", **given.get("metadata", {})}
    return {
        "apiVersion": "ddpjob.io/v1alpha1",
        "kind": "DDPJob",
        "metadata": metadata,
        "spec": spec,
    }


def test_the_list_of_other_yaml_is_as_short_as_can_be() -> None:
    found = {(block.page, block.text.splitlines()[0]) for block in BLOCKS}
    assert found >= OTHER_YAML.keys()


# Commands

LINES = command_lines()


@pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())
def test_a_command_is_one_that_exists(line: str) -> None:
    words = shlex.split(line.replace("[", "").replace("]", ""))
    name, *arguments = ["1" if each in {"N", "PORT", "SECONDS"} else each for each in words]
    if name.startswith("-"):
        return
    if name.isupper():  # the place of a command: `ddpjob COMMAND -h`
        return
    assert name in COMMANDS
    if name == "snapshots":
        read_snapshots(arguments)
        return
    parse(name, load(name), arguments)


def read_snapshots(arguments: list[str]) -> None:
    if len(arguments) < 2:  # only its name, as in `ddpjob snapshots prune`
        arguments = [*arguments, "--help"]
    try:
        snapshots_parser().parse_args(arguments)
    except SystemExit as end:
        assert not end.code  # noqa: PT017 - of --help


def parse(name: str, command: Any, arguments: list[str]) -> None:
    """Read the arguments as the command does; a text such as `ddpjob top` needs no arguments."""
    if isinstance(command, click.Group) and arguments:
        parse(arguments[0], command.commands[arguments[0]], arguments[1:])
        return
    options = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)}
    if not any(each for each in arguments if each == "-" or not each.startswith("-")):
        assert {each.partition("=")[0] for each in arguments} <= options | {"-h", "--help"}
        return
    command.make_context(name, arguments)


# Python

PYTHON = [block for block in BLOCKS if block.language == "python"]
OBJECTS = {
    "loop": ddpjob_trainer.Loop,
    "step": Step,
    "snapshots": ddpjob_trainer.Snapshots,
    "batches": ddpjob_trainer.ElasticBatchSampler,
    "stream": ddpjob_trainer.Stream,
    "loaded": ddpjob_trainer.Loaded,
    "job": ddpjob.Job,
}


def parsed(block: Block) -> ast.Module:
    return ast.parse(block.text, block.place)


@pytest.mark.parametrize("block", **ids(PYTHON))
def test_python_compiles_and_names_what_exists(block: Block) -> None:
    for node in ast.walk(parsed(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ddpjob"):
            module = __import__(node.module or "", fromlist=["x"])
            assert all(hasattr(module, alias.name) for alias in node.names)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            kind = OBJECTS.get(node.value.id)
            assert kind is None or has(kind, node.attr), f"{node.value.id}.{node.attr}"
        if isinstance(node, ast.Call):
            unknown = [word for word in keywords(node) if word not in parameters(node.func)]
            assert not unknown, f"{ast.unparse(node.func)}: {unknown}"


def has(kind: type, name: str) -> bool:
    """Whether objects of a class have an attribute, also one that its methods set."""
    return hasattr(kind, name) or any(
        re.search(rf"\bself\.{name}\b\s*[:=]|^    {name}:", inspect.getsource(each), re.MULTILINE)
        for each in kind.__mro__[:-1]
    )


def keywords(call: ast.Call) -> Iterator[str]:
    return (keyword.arg for keyword in call.keywords if keyword.arg is not None)


class _Any:
    def __contains__(self, name: object) -> bool:
        return True


def parameters(function: ast.expr) -> Any:
    """The names of a function's parameters; any name if it is not one of ours."""
    found: Any = None
    if isinstance(function, ast.Name):
        found = getattr(ddpjob_trainer, function.id, None) or getattr(ddpjob, function.id, None)
    elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        found = getattr(OBJECTS.get(function.value.id), function.attr, None)
    if found is None:
        return _Any()
    given = inspect.signature(found).parameters
    takes_more = any(each.kind is each.VAR_KEYWORD for each in given.values())
    return _Any() if takes_more else given


def test_the_pages_have_blocks() -> None:
    assert len(yaml_blocks()) > 10
    assert len(LINES) > 60
    assert len(PYTHON) > 15
