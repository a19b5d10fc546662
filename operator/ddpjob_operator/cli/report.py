"""`ddpjob report`: the page of a run, from the folder of a local run or from a job on a cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.jobs import jobs_api
from ddpjob_operator.cli.jobs.access import Context, Kubeconfig, Namespace, connect
from ddpjob_operator.report.page import report_page
from ddpjob_operator.report.run import Run

Target = Annotated[
    str,
    typer.Argument(metavar="DIR|JOB", help="Folder of a local run, or a job.", show_default=False),
]


def report(
    target: Target,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", help="File of the page; - is stdout.", show_default="NAME.html"
        ),
    ] = "",
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Write one HTML page about a run."""
    if Path(target).is_dir():
        run = _local(Path(target))
    elif "/" in target or target.startswith("."):
        message = f"there is no folder {target}; give the folder of a run, or the name of a job"
        raise CommandError(ExitCode.INVALID, message)
    else:
        run = _of_cluster(target, namespace, context, kubeconfig)
    page = report_page(run)
    if output == "-":
        print(page, end="")
        return
    file = Path(output or f"{Path(run.name).name or 'run'}.html")
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        message = f"cannot write {file}: {error.strerror}; choose another file with -o"
        raise CommandError(ExitCode.INVALID, message) from error
    print(file)


def _local(folder: Path) -> Run:
    from ddpjob_operator.local.record.run_files import (  # noqa: PLC0415 - not for a job on a cluster
        find_runs,
        read_run,
    )

    found = find_runs(folder)
    if len(found) != 1:
        names = "".join(f"\n  ddpjob report {each}" for each in found)
        reason = (
            f"has {len(found)} runs; choose one:{names}"
            if found
            else (
                "has no run; give the folder that `ddpjob run --local` prints, .ddpjob/NAMESPACE/NAME"
            )
        )
        raise CommandError(ExitCode.INVALID, f"{folder} {reason}")
    try:
        return read_run(found[0])
    except (OSError, ValueError) as error:
        message = f"cannot read the run in {found[0]}: {error}"
        raise CommandError(ExitCode.INVALID, message) from error


def _of_cluster(
    name: str, namespace: str | None, context: str | None, kubeconfig: str | None
) -> Run:
    from ddpjob_operator.report.from_job import run_of_job  # noqa: PLC0415 - loads the models

    cluster = connect(namespace, context, kubeconfig)
    job = jobs_api.read(cluster, name)
    try:
        return run_of_job(job, time.time())
    except ValueError as error:
        message = f"the status of {name} cannot be read: {error}; is ddpjob as new as the operator?"
        raise CommandError(ExitCode.INVALID, message) from error
