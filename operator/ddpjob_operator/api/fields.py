"""The smaller parts of a job's spec, each with its field types, bounds and defaults.

The bounds are generous; the API server needs them to see that checking a job is cheap.

May not: compare one part with another; that is `api`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import AfterValidator, AllowInfNan, BeforeValidator, Field, Strict

from ddpjob_operator.api.base import Model
from ddpjob_protocol import environment

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
JOB_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # a Service is named after the job
ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
# In paths of files; these stand in the API server's rules, too.
CONTROL = r"[\x00-\x1f\x7f]"
ABOVE = r"(^|/)[.][.](/|$)"
WHOLE_FOLDER = r"^[./]+$"
SNAPSHOT_URI = re.compile(environment.SNAPSHOT_URI)
ENV_PREFIX = "DDPJOB_"  # of the variables that the agent and the trainer library read
MAX_NAME = 63
MAX_ENV_NAME = 200  # with 253, checking them all would be too dear for the API server
MAX_INTEGER = 2**31 - 1  # what clients in every language can read
MAX_REPLICAS = 10_000
MAX_GROUPS = 16
MAX_LIST = 1000
MAX_TEXT = 1024
MAX_FILES = 16  # that all go into one variable
MAX_ARGUMENT = 131_071  # characters of one argument or variable, as Linux has it


def _dns_label(name: str) -> str:
    if not DNS_LABEL.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(
            f"'{name}' is not a valid name; use lower-case letters, digits and '-', "
            f"with a letter or digit first and last, {MAX_NAME} at most"
        )
    return name


def _job_name(name: str) -> str:
    if not JOB_NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(
            f"'{name}' is not a valid name of a job; begin with a lower-case letter, go on with "
            f"lower-case letters, digits and '-', with a letter or digit last, {MAX_NAME} at most"
        )
    return name


def _env_name(name: str) -> str:
    if not ENV_NAME.fullmatch(name) or len(name) > MAX_ENV_NAME:
        raise ValueError(f"'{name}' is not a valid name of an environment variable")
    if name.startswith(ENV_PREFIX):
        raise ValueError(f"'{name}' is set by ddpjob; choose a name that does not begin so")
    return name


def _file(path: str) -> str:
    if re.search(CONTROL, path):
        raise ValueError(f"{path!r} has a character that does not print; remove that")
    if re.search(ABOVE, path):
        raise ValueError(f"'{path}' leads out with '..'; write the path without")
    if re.search(WHOLE_FOLDER, path):
        raise ValueError(f"'{path}' stands for all that is there; name what the script saves to")
    return path


def _each_once(files: tuple[str, ...]) -> tuple[str, ...]:
    twice = [path for path, count in Counter(files).items() if count > 1]
    if twice:
        raise ValueError(f"'{twice[0]}' is given more than once; keep one")
    return files


def _uri(text: str) -> str:
    if not SNAPSHOT_URI.fullmatch(text):
        raise ValueError(
            f"'{text}' is no bucket with a prefix; give one as in s3://bucket/jobs/digits "
            "(s3, gs or az)"
        )
    return text


def _processes(value: object) -> object:
    if value == "auto" or (type(value) is int and value >= 1):
        return value
    raise ValueError(f"must be a whole number of at least 1, or auto, not {value!r}")


Text = Annotated[str, MinLen(1), MaxLen(MAX_TEXT)]
Argument = Annotated[str, MaxLen(MAX_ARGUMENT)]
Command = Annotated[tuple[Argument, ...], MaxLen(MAX_LIST)]
Count = Annotated[int, Strict(), Ge(0), Le(MAX_INTEGER)]
Positive = Annotated[int, Strict(), Ge(1), Le(MAX_INTEGER)]
Replicas = Annotated[int, Strict(), Ge(0), Le(MAX_REPLICAS)]
Seconds = Annotated[float, Strict(), AllowInfNan(False), Ge(0), Le(MAX_INTEGER)]
OrphanSeconds = Annotated[Seconds, Ge(5)]  # several heartbeats
HeartbeatSeconds = Annotated[Seconds, Ge(2)]  # they come once a second
Flag = Annotated[bool, Strict()]
# How long a name may be is said in words by its check, and to the API server by its schema.
DnsLabel = Annotated[
    str, AfterValidator(_dns_label), Field(json_schema_extra={"maxLength": MAX_NAME})
]
JobName = Annotated[str, AfterValidator(_job_name)]
EnvName = Annotated[
    str, AfterValidator(_env_name), Field(json_schema_extra={"maxLength": MAX_ENV_NAME})
]
FilePath = Annotated[Text, AfterValidator(_file)]
Processes = Annotated[int | Literal["auto"], BeforeValidator(_processes)]


class EnvVar(Model):
    """One environment variable of the user's processes."""

    name: EnvName = Field(description="Name of the variable.")
    value: Argument = Field(default="", description="Its value, as text.")
    value_from: dict[str, Any] | None = Field(
        default=None, description="Source of the value, as in a pod."
    )


def _distinct(env: tuple[EnvVar, ...]) -> tuple[EnvVar, ...]:
    twice = [name for name, count in Counter(entry.name for entry in env).items() if count > 1]
    if twice:
        raise ValueError(f"'{twice[0]}' is given more than once; keep one")
    return env


Env = Annotated[tuple[EnvVar, ...], MaxLen(MAX_LIST), AfterValidator(_distinct)]


class Resources(Model):
    """Requests and limits of the trainer container, as in a pod."""

    limits: dict[str, int | float | str] | None = Field(
        default=None, description="The most a worker may use."
    )
    requests: dict[str, int | float | str] | None = Field(
        default=None, description="What a node must have free for a worker."
    )


class Elastic(Model):
    """When the set of workers that train together may change."""

    join_policy: Literal["Auto", "Immediate", "Never"] = Field(
        default="Auto",
        description="When a new worker is let in: Auto at the cheapest moment, Immediate at once, "
        "Never only at a change that happens anyway.",
    )
    startup_wait_seconds: Seconds = Field(
        default=300, description="How long the first start waits for all workers."
    )
    settle_seconds: Seconds = Field(
        default=3, description="How long no further worker must have come before a start."
    )
    min_seconds_between_joins: Seconds = Field(
        default=300, description="Joins of a job without snapshots are at least so far apart."
    )
    max_join_wait_seconds: Seconds = Field(
        default=900, description="A new worker never waits longer than this."
    )
    orphan_seconds: OrphanSeconds = Field(
        default=60,
        description="A worker that cannot reach the job's service for so long stops. At least 5.",
    )
    heartbeat_seconds: HeartbeatSeconds | None = Field(
        default=None,
        description="A worker that is silent for so long is lost. At least 2. Absent: 10, and 3 "
        "where processes stay.",
    )
    warm_start: Flag = Field(
        default=True,
        description="Whether torchrun and its processes are forked from one that has imported "
        "torch, which restarts them faster.",
    )
    warm_imports: Annotated[tuple[Text, ...], MaxLen(MAX_FILES)] = Field(
        default=(),
        description="Modules that a warm start has imported in advance, beside torch, such as "
        "transformers.trainer. Their import may start no thread and open no GPU.",
    )


class SnapshotSpec(Model):
    """Where the training state is kept, and how often it is saved."""

    storage: dict[str, Any] | None = Field(
        default=None, description="Volume that keeps the snapshots, as in a pod."
    )
    uri: Annotated[Text, AfterValidator(_uri)] | None = Field(
        default=None,
        description="Bucket that keeps the snapshots instead: s3://bucket/prefix, gs:// or az://. "
        "Credentials come from the workers' environment.",
    )
    every_steps: Positive | None = Field(
        default=None, description="Steps between two snapshots. Absent: as the script says."
    )
    keep: Positive | None = Field(
        default=None, description="How many snapshots stay. Absent: as the script says."
    )
    files: Annotated[tuple[FilePath, ...], MaxLen(MAX_FILES), AfterValidator(_each_once)] = Field(
        default=(),
        description="Files that a script without ddpjob_trainer saves its state to: the newest "
        "whole copy is kept, and given to every worker. Paths, patterns (ckpt/*.pt), or "
        "directories for all files in them; relative ones belong to the working directory.",
    )


class MaxRestarts(Model):
    """How many restarts a job may have before it fails, by what made them necessary."""

    application: Count = Field(default=3, description="Restarts because a process failed.")
    infrastructure: Count | None = Field(
        default=None, description="Restarts because a worker was lost. Absent: any number."
    )


class FailurePolicy(Model):
    """What a failure may cost before the job is given up."""

    max_restarts: MaxRestarts = Field(default=MaxRestarts(), description="Budgets of restarts.")
    backoff_seconds: Seconds = Field(
        default=5, description="Pause before the first restart; doubles with each further one."
    )


class Network(Model):
    """How the processes reach each other."""

    interface: Text | None = Field(
        default=None, description="Network interface for NCCL and gloo. Absent: they choose."
    )
    nccl_debug: Literal["VERSION", "WARN", "INFO", "ABORT", "TRACE"] | None = Field(
        default=None, description="How much NCCL writes to the log."
    )


class Scheduling(Model):
    """Where workers are placed."""

    topology_key: Text | None = Field(
        default=None, description="Label of nodes that workers should share."
    )
    gang: dict[str, Any] | None = Field(
        default=None, description="Gang scheduling of the minimum of workers."
    )
    priority_class_name: Text | None = Field(
        default=None, description="Priority class of the workers."
    )
