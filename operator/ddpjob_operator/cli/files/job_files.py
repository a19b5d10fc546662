"""Reads job files for the commands that need a valid job."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ddpjob_operator.api import jobfile
from ddpjob_operator.api.jobfile import Fault, ParsedJob, Severity
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.cli.common import CommandError, ExitCode

STDIN = "-"
_SEPARATOR = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_NOTHING = re.compile(r"(\s|#.*$|^\.\.\.$)*", re.MULTILINE)


class JobText(NamedTuple):
    """A valid job, and its text for the API server."""

    job: DDPJob
    text: str


def load(file: Path) -> DDPJob:
    """Return the only job of a file and print warnings; raise CommandError if it is invalid."""
    return load_text(file).job


def load_text(file: Path) -> JobText:
    """Return the only job of a file and its text for the API server, as `load`."""
    text = read_text(file)
    documents = list(_documents(text))
    own = _skip_others(file, documents, "only a DDPJob is read")
    if len(own) == 1 < len(documents):
        [text] = own
    parsed = _parse(file, text)
    return JobText(parsed.job, parsed.to_apply())


def load_all(file: Path) -> list[JobText]:
    """Return all jobs of a file, or of stdin for `-`; raise CommandError if one is invalid.

    Each job must be fit for a cluster. Objects of other kinds are skipped with a note on stderr.
    """
    documents = list(read_documents(file))
    if not documents:
        message = f"{display_name(file)}: the file is empty; write a DDPJob"
        raise CommandError(ExitCode.INVALID, message)
    remedy = f"only a DDPJob is applied; apply the rest: kubectl apply -f {file}"
    found = [_parse(file, text) for text in _skip_others(file, documents, remedy)]
    for parsed in found:
        faults = list(parsed.find_cluster_faults(Severity.ERROR))
        if errors := [fault for fault in faults if fault.severity is Severity.ERROR]:
            raise CommandError(ExitCode.INVALID, _lines(file, errors))
    return [JobText(parsed.job, parsed.to_apply()) for parsed in found]


def read_documents(file: Path) -> Iterator[str]:
    """Yield the YAML documents of a file, or of stdin; each keeps its line numbers."""
    return _documents(read_text(file))


def display_name(file: Path) -> str:
    """Return the name of a file for messages."""
    return "stdin" if str(file) == STDIN else str(file)


def read_text(file: Path) -> str:
    """Return the text of a file, or of stdin for `-`; raise CommandError if it cannot be read."""
    try:
        data = sys.stdin.buffer.read() if str(file) == STDIN else file.read_bytes()
        return data.decode()
    except IsADirectoryError as error:
        inner = next(iter(sorted(file.glob("*.yaml"))), file / "job.yaml")
        message = f"cannot read {file}: it is a folder; give a file, for example {inner}"
        raise CommandError(ExitCode.INVALID, message) from error
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}; give the path of a job file"
        raise CommandError(ExitCode.INVALID, message) from error
    except UnicodeDecodeError as error:
        message = (
            f"{display_name(file)} is not UTF-8 text (byte {error.start + 1}); save it as UTF-8"
        )
        raise CommandError(ExitCode.INVALID, message) from error


def _skip_others(file: Path, documents: list[str], remedy: str) -> list[str]:
    """Return the documents that describe jobs and print the kinds of the others.

    Return all documents if none describes a job.
    """
    kinds = [jobfile.other_kind(text) for text in documents]
    own = [text for text, kind in zip(documents, kinds, strict=True) if not kind]
    if skipped := ", ".join(dict.fromkeys(filter(None, kinds))) if own else "":
        print(f"{display_name(file)}: skipped {skipped}; {remedy}", file=sys.stderr)
    return own or documents


def _parse(file: Path, text: str) -> ParsedJob:
    try:
        parsed = jobfile.read(text)
    except jobfile.JobFileError as error:
        raise CommandError(ExitCode.INVALID, _lines(file, error.faults)) from error
    for warning in parsed.find_warnings():
        print(f"{display_name(file)}: warning: {warning}", file=sys.stderr)
    return parsed


def _lines(file: Path, faults: Iterable[Fault]) -> str:
    return "\n".join(f"{display_name(file)}: {fault}" for fault in faults)


def _documents(text: str) -> Iterator[str]:
    """Yield the YAML documents that have content; each keeps its line numbers."""
    starts = [0, *(found.end() for found in _SEPARATOR.finditer(text)), len(text) + 3]
    for start, end in itertools.pairwise(starts):
        document = text[start : end - 3]
        if not _NOTHING.fullmatch(document):
            yield "\n" * text.count("\n", 0, start) + document
