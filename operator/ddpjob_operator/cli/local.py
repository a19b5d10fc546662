"""`ddpjob run --local`: runs a job on this machine.

May not: hold policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.files.job_files import load
from ddpjob_operator.cli.preflight import check_before_start, find_gpus
from ddpjob_operator.local.backend import LocalBackend
from ddpjob_operator.local.chaos import GRAMMAR, ChaosError, ChaosEvent, parse_chaos
from ddpjob_operator.local.devices.demand import describe_use
from ddpjob_operator.local.devices.discovery import Devices
from ddpjob_operator.local.output.receiver import OutputReceiver
from ddpjob_operator.local.output.screen import Screen, open_screen
from ddpjob_operator.local.output.summary import describe_failure, worker_of
from ddpjob_operator.local.output.view import LogMode, OutputView
from ddpjob_operator.local.record.live_page import LivePage
from ddpjob_operator.local.record.timeline import Timeline
from ddpjob_operator.local.saved.advice import NAMES_SHOWN, RunAdvice
from ddpjob_operator.local.saved.claims import FileClaims, FilesInUseError
from ddpjob_operator.local.saved.own_files import OwnFiles
from ddpjob_operator.local.simulated.processes import CannotStartError
from ddpjob_operator.local.simulated.rendezvous_process import PortInUseError
from ddpjob_operator.local.state_dir import AlreadyRunningError, JobStateDir, StateDirError
from ddpjob_operator.terminal import print_error
from ddpjob_protocol.text import plural, some

SHOWN = {
    LogMode.RANK0: "rank 0, and stderr of all ranks",
    LogMode.ALL: "all ranks",
    LogMode.NONE: "nothing of the ranks",
}

JobFile = Annotated[Path, typer.Argument(help="A DDPJob as YAML.", show_default=False)]


def run(
    file: JobFile,
    local: Annotated[bool, typer.Option("--local", help="Run on this machine.")] = False,
    chaos: Annotated[str, typer.Option(help=f"Break things: {GRAMMAR}")] = "",
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Simulated nodes; default: one for each worker.")
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for the state of runs; default: .ddpjob beside the job file."),
    ] = None,
    workdir: Annotated[
        Path | None, typer.Option(help="Working directory of the command; default: the job file's.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the rendezvous service.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start from nothing; move what is saved aside.")
    ] = False,
    no_gpus: Annotated[
        bool, typer.Option("--no-gpus", help="Run on CPUs, whatever the job asks for.")
    ] = False,
    share_gpus: Annotated[
        bool, typer.Option("--share-gpus", help="Let several workers use one GPU.")
    ] = False,
    logs: Annotated[
        LogMode,
        typer.Option(help="Show the output of rank 0, with stderr of all ranks; of all; or none."),
    ] = LogMode.RANK0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Show the run as a page on 127.0.0.1.")
    ] = False,
    web_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of that page; implies --web.")
    ] = None,
) -> None:
    """Run a job until it ends; Ctrl-C stops it, and the next run resumes from its snapshot."""
    job = load(file)
    if not local:
        message = (
            f"run needs --local: ddpjob run --local {file}; on a cluster: ddpjob apply -f {file}"
        )
        raise CommandError(ExitCode.INVALID, message)
    folder = check_before_start(job, file, workdir)
    try:
        events = parse_chaos(chaos)
    except ChaosError as error:
        raise CommandError(ExitCode.INVALID, str(error)) from error
    if fresh and job.spec.snapshot.uri is not None:
        message = (
            f"--fresh cannot move the snapshots in {job.spec.snapshot.uri}; use another prefix"
        )
        raise CommandError(ExitCode.INVALID, message)
    wanted = sum(group.replicas for group in job.spec.groups())
    count = wanted if nodes is None else nodes
    devices = find_gpus(job, file, count, use=not no_gpus, share=share_gpus)
    claims = FileClaims()
    state = _locked_state(job, state_dir or file.parent / ".ddpjob", folder, claims)
    resumed = _begin(state, fresh=fresh)
    view = OutputView(job.metadata.name, LogMode.NONE if quiet else logs)
    screen = open_screen(quiet=quiet)
    size = f"{plural(wanted, 'worker')}, {plural(count, 'node')}"
    screen.print(f"job {job.metadata.name}: {size}, state in {state.path}")
    screen.print(f"logs: {state.logs}/WORKER.log; here: {SHOWN[logs]}")
    if fresh:
        _move_own_files(job, state, folder, screen)
    advice = RunAdvice(job, state, folder)
    if line := describe_use(job, devices):
        screen.print(line)
    if resumed:
        screen.print("resuming from the last snapshot; --fresh starts from the beginning")
    page_port = (web_port or 0) if web or web_port else None
    try:
        with _page(state.path, page_port, screen):
            code = asyncio.run(_run(job, state, folder, count, port, events, devices, screen, view))
    except PortInUseError as error:
        raise CommandError(ExitCode.PORT_IN_USE, str(error)) from error
    except CannotStartError as error:
        raise CommandError(ExitCode.INVALID, str(error)) from error
    finally:
        state.unlock()
        claims.release()
    if code is ExitCode.INTERRUPTED:
        again = shlex.join(["ddpjob", *(a for a in sys.argv[1:] if a != "--fresh")])
        screen.print_result(advice.after_interruption(again))
    elif code is ExitCode.OK and (warning := advice.after_completion()):
        screen.print_result(warning)
    raise typer.Exit(code)


def _locked_state(job: DDPJob, root: Path, workdir: Path, claims: FileClaims) -> JobStateDir:
    """Return the job's folder, locked for this run, as are the script's own files."""
    state = JobStateDir(root, job.metadata.namespace, job.metadata.name)
    try:
        state.lock()
        claims.take(job.spec.snapshot.files, workdir)
    except (AlreadyRunningError, FilesInUseError) as error:
        raise CommandError(ExitCode.ALREADY_RUNNING, str(error)) from error
    except StateDirError as error:
        raise CommandError(ExitCode.INVALID, str(error)) from error
    return state


def _begin(state: JobStateDir, *, fresh: bool) -> bool:
    """Prepare the job's folder; return whether the run resumes an earlier one."""
    try:
        return state.begin(fresh=fresh)
    except StateDirError as error:
        raise CommandError(ExitCode.INVALID, str(error)) from error


@contextlib.contextmanager
def _page(folder: Path, port: int | None, screen: Screen) -> Iterator[None]:
    """Serve the page of the run meanwhile, unless there is no port."""
    if port is None:
        yield
        return
    with contextlib.closing(LivePage(folder, port)) as page:
        screen.print(f"page of the run: {page.url}")
        yield


def _move_own_files(job: DDPJob, state: JobStateDir, folder: Path, screen: Screen) -> None:
    """Move the files of `snapshot.files` out of the script's reach; print where they are."""
    files = OwnFiles(job.spec.snapshot.files, folder)
    names = some(files.found(), NAMES_SHOWN)
    try:
        if target := files.move_aside(state.path.with_name(f"{state.path.name}.files")):
            screen.print(f"--fresh: moved {names} to {target}")
    except OSError as error:
        message = f"--fresh: cannot move {error.filename}: {error.strerror}; move it yourself"
        raise CommandError(ExitCode.INVALID, message) from error
    if not job.spec.snapshot.files and job.spec.snapshot.every_steps is None:
        screen.print(
            "--fresh: a file that the script itself saves stays; name it in snapshot.files, or move"
            " it yourself"
        )


async def _run(
    job: DDPJob,
    state: JobStateDir,
    workdir: Path,
    nodes: int,
    port: int | None,
    chaos: list[ChaosEvent],
    devices: Devices,
    screen: Screen,
    view: OutputView,
) -> ExitCode:
    timeline = Timeline(screen, state.path / "timeline.jsonl", screen)
    output = None if view.mode is LogMode.NONE else OutputReceiver(view, screen.show)
    backend = LocalBackend(
        job,
        state,
        timeline,
        workdir=workdir,
        nodes=nodes,
        port=port,
        chaos=chaos,
        devices=devices,
        output=output,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:
            loop.add_signal_handler(number, backend.stop)
    try:
        status = await backend.run()
    finally:
        screen.close()
    if status.completion_time is None:
        return ExitCode.INTERRUPTED
    screen.quiet = False
    return _print_end(status, backend, timeline, view)


def _print_end(
    status: DDPJobStatus,
    backend: LocalBackend,
    timeline: Timeline,
    view: OutputView,
) -> ExitCode:
    if status.state == "Complete":
        metrics = status.progress.metrics if status.progress else {}
        facts = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        timeline.line("Complete", facts)
        return ExitCode.OK
    condition = next(c for c in status.conditions if c.type == "Failed")
    failure = backend.last_failure
    timeline.line(
        "Failed", f"{condition.reason}: {describe_failure(condition.message, failure, view)}"
    )
    worker = worker_of(failure, view)
    print_error(f"logs: {backend.logs / f'{worker}.log' if worker else backend.logs}")
    return ExitCode.JOB_FAILED
