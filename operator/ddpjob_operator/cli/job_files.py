"""Reads job files for the commands, and checks them for `ddpjob validate`."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ddpjob_operator.api import jobfile
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.preflight import warn_of_missing_scripts

STDIN = "-"
_SEPARATOR = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_NOTHING = re.compile(r"(\s|#.*$|^\.\.\.$)*", re.MULTILINE)


class JobText(NamedTuple):
    """A valid job, and its text in the file."""

    job: DDPJob
    text: str


def validate(
    file: Annotated[Path, typer.Argument(help="A DDPJob as YAML.", show_default=False)],
) -> None:
    """Check a job file; print each fault with its place and its remedy."""
    job = load(file)
    if str(file) != STDIN:
        warn_of_missing_scripts(job, file)
    groups = ", ".join(f"{g.name}: {g.replicas} x {g.processes}" for g in job.spec.groups())
    print(f"{file}: DDPJob {job.metadata.namespace}/{job.metadata.name} is valid ({groups})")


def load(file: Path) -> DDPJob:
    """Return the only job of a file and print warnings; raise CommandError if it is invalid."""
    return load_text(file).job


def load_text(file: Path) -> JobText:
    """Return the only job of a file and its text, as `load`."""
    text = read_text(file)
    return JobText(_parse(file, text), text)


def load_all(file: Path) -> list[JobText]:
    """Return all jobs of a file, or of stdin for `-`; raise CommandError if one is invalid."""
    documents = list(_documents(read_text(file)))
    if not documents:
        raise CommandError(ExitCode.INVALID, f"{_name(file)}: the file is empty; write a DDPJob")
    return [JobText(_parse(file, text), text) for text in documents]


def read_text(file: Path) -> str:
    """Return the text of a file, or of stdin for `-`; raise CommandError if it cannot be read."""
    try:
        data = sys.stdin.buffer.read() if str(file) == STDIN else file.read_bytes()
        return data.decode()
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}; give the path of a job file"
        raise CommandError(ExitCode.INVALID, message) from error
    except UnicodeDecodeError as error:
        message = f"{_name(file)} is not UTF-8 text (byte {error.start + 1}); save it as UTF-8"
        raise CommandError(ExitCode.INVALID, message) from error


def _parse(file: Path, text: str) -> DDPJob:
    try:
        job = jobfile.parse(text)
    except jobfile.JobFileError as error:
        lines = "\n".join(f"{_name(file)}: {line}" for line in str(error).splitlines())
        raise CommandError(ExitCode.INVALID, lines) from error
    for warning in jobfile.warnings(job):
        print(f"{_name(file)}: warning: {warning}", file=sys.stderr)
    return job


def _documents(text: str) -> Iterator[str]:
    """Yield the YAML documents that have content; each keeps its line numbers."""
    starts = [0, *(found.end() for found in _SEPARATOR.finditer(text)), len(text) + 3]
    for start, end in itertools.pairwise(starts):
        document = text[start : end - 3]
        if not _NOTHING.fullmatch(document):
            yield "\n" * text.count("\n", 0, start) + document


def _name(file: Path) -> str:
    return "stdin" if str(file) == STDIN else str(file)
