"""Checks a job before it starts on this machine: its fields, its commands, its GPUs.

May not: start anything.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.files.scripts import find_missing
from ddpjob_operator.local.devices.demand import TooFewDevicesError, choose_devices
from ddpjob_operator.local.devices.discovery import Devices
from ddpjob_operator.local.ignored_fields import find_ignored_fields
from ddpjob_operator.local.simulated.environment import search_path


def check_before_start(job: DDPJob, file: Path, workdir: Path | None) -> Path:
    """Return the working directory of the commands; raise CommandError if the job cannot start."""
    if problem := _explain_nothing_to_run(job) or _find_cluster_only_fields(job):
        raise CommandError(ExitCode.INVALID, f"{file}: {problem}")
    for path in find_ignored_fields(job):
        print(f"{file}: warning: {path} has no effect on this machine", file=sys.stderr)
    folder = (workdir or file.parent).resolve()
    if not folder.is_dir():
        message = f"--workdir: there is no folder {folder}; make it or correct the path"
        raise CommandError(ExitCode.INVALID, message)
    if not os.access(folder, os.R_OK | os.X_OK):
        message = (
            f"--workdir: you may not enter the folder {folder}; correct its permissions, or choose"
            " another one"
        )
        raise CommandError(ExitCode.INVALID, message)
    _check_programs(job, folder)
    for missing in find_missing(job, folder):
        message = f"{missing}; correct the command, or pass --workdir"
        raise CommandError(ExitCode.INVALID, message)
    return folder


def find_gpus(job: DDPJob, file: Path, nodes: int, *, use: bool, share: bool) -> Devices:
    """Return the GPUs for a run on this number of nodes; raise CommandError if there are too few."""
    if share and job.spec.sagemaker:
        message = "--share-gpus cannot be used with spec.sagemaker, whose nodes have networks of their own"
        raise CommandError(ExitCode.INVALID, f"{file}: {message}; leave one of them out")
    try:
        return choose_devices(job, nodes, os.environ, use=use, share=share)
    except TooFewDevicesError as error:
        raise CommandError(ExitCode.INVALID, f"{file}: {error}") from error


def _explain_nothing_to_run(job: DDPJob) -> str:
    if job.spec.suspend:
        return "spec.suspend is true, so there is nothing to run; set it to false"
    return "spec.replicas: is 0, and no other group has workers" if job.spec.paused else ""


def _find_cluster_only_fields(job: DDPJob) -> str:
    for group in job.spec.groups():
        for entry in group.env:
            if entry.value_from is not None:
                return f"env {entry.name} has valueFrom, which needs a cluster; give value instead"
    return ""


def _check_programs(job: DDPJob, workdir: Path) -> None:
    for group in job.spec.groups():
        program = group.command[0]
        path = str(workdir / program) if "/" in program else program
        own = {entry.name: entry.value for entry in group.env}
        folders = own.get("PATH", search_path())
        if shutil.which(path, path=folders) is None:
            message = _explain_program(program, path, folders)
            raise CommandError(ExitCode.INVALID, f"spec.command: group {group.name}: {message}")


def _explain_program(program: str, path: str, folders: str) -> str:
    """Return why a program cannot be run, and what to do."""
    is_path = "/" in program
    places = (
        [os.path.normpath(path)]
        if is_path
        else [f"{each}/{program}" for each in folders.split(os.pathsep)]
    )
    found = next((each for each in places if os.access(each, os.F_OK)), None)
    if found is None:
        where = Path(path).parent if is_path else "PATH"
        return (
            f"there is no program '{program}', looked in {where}; install it or correct the command"
        )
    if Path(found).is_dir():
        return f"{found} is a folder; name a program in it"
    return (
        f"{found} is not executable; run `chmod +x {found}`, or name its interpreter first, for"
        f" example [bash, {program}]"
    )
