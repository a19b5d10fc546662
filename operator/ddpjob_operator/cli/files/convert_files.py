"""`ddpjob convert`: prints the DDPJobs for jobs of other operators.

May not: send a request, or write a file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ddpjob_operator.api import jobfile
from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.files.job_files import read_text
from ddpjob_operator.convert import converter
from ddpjob_operator.convert.fields import ConvertError


def convert(
    file: Annotated[
        Path,
        typer.Argument(help="PyTorchJobs or TrainJobs as YAML; - is stdin.", show_default=False),
    ],
) -> None:
    """Print DDPJobs for the PyTorchJobs and TrainJobs of a file."""
    try:
        jobs, others = converter.convert(read_text(file))
    except ConvertError as error:
        raise CommandError(ExitCode.INVALID, f"{file}: {error}") from error
    faults = []
    for i, each in enumerate(jobs):
        text = each.to_yaml()
        print(f"---\n{text}" if i else text, end="")
        name = each.job["metadata"]["name"]
        if each.notes:
            count = f"{len(each.notes)} fields need" if len(each.notes) > 1 else "1 field needs"
            print(f"{name}: {count} your attention; see the comments", file=sys.stderr)
        try:
            jobfile.parse(text)
        except jobfile.JobFileError as error:
            faults += [f"{name}: {line}" for line in str(error).splitlines()]
    for other in others:
        print(f"{other} is not a training job; apply it as before", file=sys.stderr)
    if faults:
        lines = "\n".join(faults)
        message = f"the result is not valid yet; correct it as ddpjob validate explains:\n{lines}"
        raise CommandError(ExitCode.INVALID, message)
