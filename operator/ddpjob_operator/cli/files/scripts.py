"""Finds the scripts of a job that are not on this machine, or that its user may not read.

May not: import the local back end, which `ddpjob validate` does not need.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ddpjob_operator.api.commands.script_path import script_path
from ddpjob_operator.api.spec import DDPJob


def find_missing_beside(job: DDPJob, file: Path) -> Iterator[str]:
    """Yield a warning for each script that is not beside the file, unless images have them."""
    if not any(group.image for group in job.spec.groups()):
        for missing in find_missing(job, file.parent.resolve()):
            yield f"{missing}; correct the command, or pass --workdir to run --local"


def find_missing(job: DDPJob, workdir: Path) -> Iterator[str]:
    """Yield the failure for each script that cannot be read in the working directory."""
    for group in job.spec.groups():
        script = script_path(group.command)
        if not script or os.access(workdir / script, os.R_OK):
            continue
        where = "" if Path(script).is_absolute() else f", looked in {workdir}"
        if os.access(workdir / script, os.F_OK):
            what = f"you may not read the script '{script}'"
        else:
            what = f"there is no script '{script}'"
        yield f"spec.command: {what} (group {group.name}{where})"
