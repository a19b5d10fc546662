"""`ddpjob run --local`: runs a job on this machine.

May not: hold policy.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.job_files import load
from ddpjob_operator.local.backend import LocalBackend
from ddpjob_operator.local.chaos import GRAMMAR, ChaosError, ChaosEvent, parse_chaos
from ddpjob_operator.local.environment import search_path
from ddpjob_operator.local.rendezvous_process import PortInUseError
from ddpjob_operator.local.state_dir import AlreadyRunningError, JobStateDir, StateDirError
from ddpjob_operator.local.timeline import Timeline

out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)

JobFile = Annotated[Path, typer.Argument(help="A DDPJob as YAML.", show_default=False)]


def run(
    file: JobFile,
    local: Annotated[bool, typer.Option("--local", help="Run on this machine.")] = False,
    chaos: Annotated[str, typer.Option(help=f"Break things: {GRAMMAR}")] = "",
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Simulated nodes; default: one for each worker.")
    ] = None,
    state_dir: Annotated[Path, typer.Option(help="Folder for the state of runs.")] = Path(
        ".ddpjob"
    ),
    workdir: Annotated[
        Path | None, typer.Option(help="Working directory of the command; default: the job file's.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the rendezvous service.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not resume from a snapshot.")] = False,
) -> None:
    """Run a job until it ends; Ctrl-C stops it, and the next run resumes from its snapshot."""
    job = load(file)
    if not local:
        message = f"only --local is there yet: ddpjob run --local {file}; on a cluster: ddpjob apply -f {file}"
        raise CommandError(ExitCode.INVALID, message)
    if problem := _explain_nothing_to_run(job) or _find_cluster_only_fields(job):
        raise CommandError(ExitCode.INVALID, f"{file}: {problem}")
    folder = (workdir or file.parent).resolve()
    if not folder.is_dir():
        message = f"--workdir: there is no folder {folder}; make it or correct the path"
        raise CommandError(ExitCode.INVALID, message)
    _check_command(job, folder)
    try:
        events = parse_chaos(chaos)
    except ChaosError as error:
        raise CommandError(ExitCode.INVALID, str(error)) from error
    if fresh and job.spec.snapshot.uri is not None:
        message = f"--fresh leaves what is in {job.spec.snapshot.uri} alone: give another prefix"
        raise CommandError(ExitCode.INVALID, message)
    state = JobStateDir(state_dir, job.metadata.namespace, job.metadata.name)
    try:
        state.lock()
    except AlreadyRunningError as error:
        raise CommandError(ExitCode.ALREADY_RUNNING, str(error)) from error
    except StateDirError as error:
        raise CommandError(ExitCode.INVALID, str(error)) from error
    resumed = state.begin(fresh=fresh)
    wanted = sum(group.replicas for group in job.spec.groups())
    count = wanted if nodes is None else nodes
    out.print(f"job {job.metadata.name}: {wanted} workers, {count} nodes, state in {state.path}")
    if resumed:
        out.print("resuming from the last snapshot; --fresh starts from the beginning")
    try:
        code = asyncio.run(_run(job, state, folder, count, port, events))
    except PortInUseError as error:
        raise CommandError(ExitCode.PORT_IN_USE, str(error)) from error
    finally:
        state.unlock()
    if code is ExitCode.INTERRUPTED:
        again = shlex.join(["ddpjob", *(a for a in sys.argv[1:] if a != "--fresh")])
        out.print(f"stopped; to resume from the last snapshot: {again}")
    raise typer.Exit(code)


async def _run(
    job: DDPJob,
    state: JobStateDir,
    workdir: Path,
    nodes: int,
    port: int | None,
    chaos: list[ChaosEvent],
) -> ExitCode:
    timeline = Timeline(out, state.path / "timeline.jsonl")
    backend = LocalBackend(
        job, state, timeline, workdir=workdir, nodes=nodes, port=port, chaos=chaos
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, backend.stop)
    status = await backend.run()
    if status.completion_time is None:
        return ExitCode.INTERRUPTED
    return _print_end(status, backend, timeline)


def _print_end(status: DDPJobStatus, backend: LocalBackend, timeline: Timeline) -> ExitCode:
    if status.state == "Complete":
        metrics = status.progress.metrics if status.progress else {}
        facts = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        timeline.line("Complete", facts)
        return ExitCode.OK
    condition = next(c for c in status.conditions if c.type == "Failed")
    timeline.line("Failed", f"{condition.reason}: {condition.message}")
    print(f"logs: {backend.logs}", file=sys.stderr)
    return ExitCode.JOB_FAILED


def _explain_nothing_to_run(job: DDPJob) -> str:
    if job.spec.suspend:
        return "spec.suspend is true, so there is nothing to run; set it to false"
    return "spec.replicas: is 0, and no other group has workers" if job.spec.paused else ""


def _find_cluster_only_fields(job: DDPJob) -> str:
    for group in job.spec.groups():
        if group.template is not None:
            return f"group {group.name} has a template, which needs a cluster; give command instead"
        for entry in group.env:
            if entry.value_from is not None:
                return f"env {entry.name} has valueFrom, which needs a cluster; give value instead"
    return ""


def _check_command(job: DDPJob, workdir: Path) -> None:
    for group in job.spec.groups():
        program = group.command[0]
        path = str(workdir / program) if "/" in program else program
        own = {entry.name: entry.value for entry in group.env}
        if shutil.which(path, path=own.get("PATH", search_path())) is None:
            message = (
                f"spec.command: there is no program '{program}' (group {group.name}, looked in"
                f" {workdir if '/' in program else 'PATH'}); install it or correct the command"
            )
            raise CommandError(ExitCode.INVALID, message)
