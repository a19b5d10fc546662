"""Parses the text of a job file into a DDPJob, or reports each fault with its line and its remedy.

May not: open a file; the caller passes the text.
"""

from ddpjob_operator.api.jobfile.fault import Fault, Severity
from ddpjob_operator.api.jobfile.parsing import (
    JobFileError,
    ParsedJob,
    from_data,
    other_kind,
    parse,
    read,
    warnings,
)

__all__ = [
    "Fault",
    "JobFileError",
    "ParsedJob",
    "Severity",
    "from_data",
    "other_kind",
    "parse",
    "read",
    "warnings",
]
