"""`ddpjob validate`: checks job files and prints each fault with its line and its remedy.

May not: decide what is valid; `api.jobfile` does that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ddpjob_operator.api import constants, jobfile
from ddpjob_operator.api.jobfile import Fault, ParsedJob, Severity
from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.files import job_files
from ddpjob_operator.cli.files.scripts import find_missing_beside
from ddpjob_operator.terminal import print_error

SUFFIXES = (".yaml", ".yml", ".json")


class Backend(StrEnum):
    """A back end that is to run the jobs."""

    CLUSTER = "cluster"
    LOCAL = "local"


class Output(StrEnum):
    """A format of the result."""

    TEXT = "text"
    JSON = "json"


Files = Annotated[
    list[Path] | None,
    typer.Argument(help="Job files or folders; - is stdin.", show_default=False),
]
Named = Annotated[
    list[Path] | None,
    typer.Option("--filename", "-f", help="The same, as for kubectl.", show_default=False),
]


def validate(
    files: Files = None,
    filename: Named = None,
    backend: Annotated[
        Backend | None,
        typer.Option("--for", help="Check for this back end.", show_default="either"),
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="Format.")] = Output.TEXT,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Check job files; print each fault with its line and its remedy."""
    paths = [*(files or ()), *(filename or ())]
    if not paths:
        message = "no file is given; give job files, folders or - for stdin"
        raise CommandError(ExitCode.INVALID, message)
    report = Report(quiet=quiet, is_json=output is Output.JSON)
    for path, is_given in _expand(paths):
        report.add(path, backend, is_given=is_given)
    raise typer.Exit(report.finish())


class Report:
    """The result for all files."""

    def __init__(self, *, quiet: bool, is_json: bool) -> None:
        self._quiet = quiet
        self._is_json = is_json
        self._jobs: list[dict[str, Any]] = []
        self._faults: list[dict[str, Any]] = []

    def add(self, path: Path, backend: Backend | None, *, is_given: bool) -> None:
        """Check the documents of a file; skip a file of a folder if it has no apiVersion."""
        name = job_files.display_name(path)
        try:
            documents = list(job_files.read_documents(path))
        except CommandError as error:
            self._fault(name, Fault(str(error)), prefix="")
            return
        if is_given and not documents:
            self._fault(name, Fault("the file is empty; write a DDPJob"))
        for text in documents:
            if kind := jobfile.other_kind(text):
                self._note(f"{name}: skipped a {kind}; only a {constants.KIND} is checked")
            elif is_given or "apiVersion" in text:
                self._check(path, text, backend)

    def _check(self, path: Path, text: str, backend: Backend | None) -> None:
        name = job_files.display_name(path)
        try:
            parsed = jobfile.read(text)
        except jobfile.JobFileError as error:
            self._faults_of(name, error.faults)
            return
        faults = [*_find_faults(parsed, backend), *_find_missing_files(parsed, path, backend)]
        self._faults_of(name, faults)
        if all(fault.severity is Severity.WARNING for fault in faults):
            self._valid(name, parsed)

    def _faults_of(self, name: str, faults: Sequence[Fault]) -> None:
        for fault in faults:
            self._fault(name, fault)

    def _fault(self, name: str, fault: Fault, prefix: str | None = None) -> None:
        is_error = fault.severity is Severity.ERROR
        self._faults.append(
            {
                "file": name,
                "line": fault.line or None,
                "path": fault.path or None,
                "message": fault.what,
                "remedy": fault.remedy or None,
                "severity": fault.severity.value,
            }
        )
        if self._is_json:
            return
        before = f"{name}: " if prefix is None else prefix
        if is_error:
            print_error(f"{before}{fault}")
        elif not self._quiet:
            print(f"{before}warning: {fault}", file=sys.stderr)

    def _valid(self, name: str, parsed: ParsedJob) -> None:
        job = parsed.job
        groups = [
            {"name": each.name, "replicas": each.replicas, "processes": each.processes}
            for each in job.spec.groups()
        ]
        namespace, own = job.metadata.namespace, job.metadata.name
        self._jobs.append({"file": name, "namespace": namespace, "name": own, "groups": groups})
        if not (self._quiet or self._is_json):
            sizes = ", ".join("{name}: {replicas} x {processes}".format(**each) for each in groups)
            print(f"{name}: DDPJob {namespace}/{own} is valid ({sizes})")

    def _note(self, text: str) -> None:
        if not (self._quiet or self._is_json):
            print(text, file=sys.stderr)

    def finish(self) -> ExitCode:
        """Print what is left; return the exit code."""
        errors = [fault for fault in self._faults if fault["severity"] == Severity.ERROR.value]
        if not self._jobs and not errors:
            self._fault("", Fault("no file has a DDPJob; give a file with one"), prefix="")
            errors = self._faults[-1:]
        if self._is_json:
            result = {"valid": not errors, "jobs": self._jobs, "problems": self._faults}
            print(json.dumps(result, indent=2, ensure_ascii=False))
        return ExitCode.INVALID if errors else ExitCode.OK


def _find_faults(parsed: ParsedJob, backend: Backend | None) -> Iterator[Fault]:
    yield from parsed.find_warnings()
    if backend is Backend.LOCAL:
        yield from parsed.find_local_faults()
    else:
        is_sure = backend is Backend.CLUSTER
        yield from parsed.find_cluster_faults(Severity.ERROR if is_sure else Severity.WARNING)


def _find_missing_files(parsed: ParsedJob, path: Path, backend: Backend | None) -> Iterator[Fault]:
    """Yield a warning for each script that is not beside a job file for this machine."""
    if backend is not Backend.CLUSTER and str(path) != job_files.STDIN:
        for message in find_missing_beside(parsed.job, path):
            where, _, what = message.partition(": ")
            yield Fault(what, path=where, severity=Severity.WARNING)


def _expand(paths: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield each file, and whether it was named; a folder stands for the files in it."""
    for path in paths:
        if not path.is_dir():
            yield path, True
            continue
        for inner in sorted(path.rglob("*")):
            is_hidden = any(part.startswith(".") for part in inner.relative_to(path).parts)
            if inner.suffix in SUFFIXES and inner.is_file() and not is_hidden:
                yield inner, False
