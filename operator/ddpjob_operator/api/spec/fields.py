"""The smaller parts of a job's spec, each with its field types, bounds and defaults.

The bounds are generous. The API server needs them to estimate the cost of its checks.

May not: compare one part with another; `rules` does that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import AllowInfNan, Field, SkipValidation, Strict
from pydantic.alias_generators import to_snake

from ddpjob_operator.api import cel
from ddpjob_operator.api.base import Model
from ddpjob_operator.api.rule import ITSELF, Rule
from ddpjob_operator.api.spec.pod.free_form import FreeForm
from ddpjob_protocol import environment
from ddpjob_protocol.environment import STUCK_SECONDS

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
# Patterns for paths of files.
CONTROL = r"[\x00-\x1f\x7f]"
ABOVE = r"(^|/)[.][.](/|$)"
WHOLE_FOLDER = r"^[./]+$"
SPACE = r"[ \t\r\n]"
SNAPSHOT_URI = re.compile(environment.SNAPSHOT_URI)
ENV_PREFIX = "DDPJOB_"  # prefix of the variables for the agent and the trainer library
GPU_RESOURCE = "nvidia.com/gpu"
MAX_NAME = 63
MAX_ENV_NAME = 200  # with 253, the API server rejects the rules as too expensive
MAX_INTEGER = 2**31 - 1  # int32, which clients in every language can read
MAX_REPLICAS = 10_000
MAX_GROUPS = 16
MAX_LIST = 1000
MAX_TEXT = 1024
MAX_FILES = 16  # all paths share one environment variable
MAX_ARGUMENT = 131_071  # characters of an argument or variable; the limit of Linux


def _first_twice(values: Iterable[str]) -> str:
    return next((value for value, count in Counter(values).items() if count > 1), "")


NAME = Rule(
    message="'%s' is not a valid name; use lower-case letters, digits and '-', "
    f"with a letter or digit first and last, {MAX_NAME} at most",
    values=(ITSELF,),
    check=lambda name: DNS_LABEL.fullmatch(name) and len(name) <= MAX_NAME,
    cel=cel.matches("self", DNS_LABEL),
)
VARIABLE_NAME = Rule(
    message="'%s' is not a valid name of an environment variable",
    values=(ITSELF,),
    check=lambda name: ENV_NAME.fullmatch(name) and len(name) <= MAX_ENV_NAME,
    cel=cel.matches("self", ENV_NAME),
)
NOT_RESERVED = Rule(
    message="'%s' is set by ddpjob; choose a name that does not begin so",
    values=(ITSELF,),
    check=lambda name: not name.startswith(ENV_PREFIX),
    cel=f"!self.startsWith('{ENV_PREFIX}')",
)
VARIABLES_ONCE = Rule(  # in the CRD, the name is the key of the list
    message="'%s' is given more than once; keep one",
    values=((lambda env: _first_twice(entry.name for entry in env), ""),),
    check=lambda env: not _first_twice(entry.name for entry in env),
)
PRINTABLE = Rule(
    message="has a character that does not print; remove that",
    check=lambda path: not re.search(CONTROL, path),
    cel=f"!{cel.finds('self', CONTROL)}",
)
NOT_ABOVE = Rule(
    message="'%s' has '..'; write a path below the script's folder, without '..'",
    values=(ITSELF,),
    check=lambda path: not re.search(ABOVE, path),
    cel=f"!{cel.finds('self', ABOVE)}",
)
NOT_WHOLE_FOLDER = Rule(
    message="'%s' matches every file; name the files that the script saves",
    values=(ITSELF,),
    check=lambda path: not re.search(WHOLE_FOLDER, path) or re.search(ABOVE, path),
    cel=f"!{cel.finds('self', WHOLE_FOLDER)} || {cel.finds('self', ABOVE)}",
)
FILES_ONCE = Rule(
    message="'%s' is given more than once; keep one",
    values=((_first_twice, "self.filter(a, !self.exists_one(b, a == b))[0]"),),
    check=lambda files: not _first_twice(files),
    cel="self.all(a, self.exists_one(b, a == b))",
)
BUCKET = Rule(
    message="'%s' is not a bucket with a prefix; write one such as s3://bucket/jobs/digits (s3, gs or az)",
    values=(ITSELF,),
    check=SNAPSHOT_URI.fullmatch,
    cel=cel.matches("self", SNAPSHOT_URI),
)
NO_SPACE = Rule(
    message="has a space or a line break; remove it",
    check=lambda text: not re.search(SPACE, text),
    cel=f"!{cel.finds('self', SPACE)}",
)
PROCESSES = Rule(
    message="must be a whole number of at least 1, or auto (one for each GPU), not %s",
    values=((repr, """(type(self) == int ? "%s" : "'%s'").format([self])"""),),
    check=lambda value: value == "auto" or (type(value) is int and value >= 1),
    cel="type(self) == int ? self >= 1 : self == 'auto'",
)


Text = Annotated[str, MinLen(1), MaxLen(MAX_TEXT)]
Image = Annotated[Text, NO_SPACE]
Argument = Annotated[str, MaxLen(MAX_ARGUMENT)]
Command = Annotated[tuple[Argument, ...], MaxLen(MAX_LIST)]
Count = Annotated[int, Strict(), Ge(0), Le(MAX_INTEGER)]
Positive = Annotated[int, Strict(), Ge(1), Le(MAX_INTEGER)]
Replicas = Annotated[int, Strict(), Ge(0), Le(MAX_REPLICAS)]
Seconds = Annotated[float, Strict(), AllowInfNan(False), Ge(0), Le(MAX_INTEGER)]
OrphanSeconds = Annotated[Seconds, Ge(5)]  # seconds; several heartbeats
StuckSeconds = Annotated[Seconds, Ge(5)]  # seconds; processes report their positions each second
HeartbeatSeconds = Annotated[Seconds, Ge(2)]  # seconds; the interval of heartbeats is 1 s
Flag = Annotated[bool, Strict()]
# The rule explains the limit of a name's length; the schema states the limit.
DnsLabel = Annotated[str, NAME, Field(json_schema_extra={"maxLength": MAX_NAME})]
EnvName = Annotated[
    str, VARIABLE_NAME, NOT_RESERVED, Field(json_schema_extra={"maxLength": MAX_ENV_NAME})
]
FilePath = Annotated[Text, PRINTABLE, NOT_ABOVE, NOT_WHOLE_FOLDER]
Processes = Annotated[int | Literal["auto"], SkipValidation, PROCESSES]


class EnvVar(Model):
    """One environment variable of the user's processes."""

    name: EnvName = Field(description="Name of the variable.")
    value: Argument = Field(default="", description="Value of the variable, as text.")
    value_from: FreeForm | None = Field(
        default=None, description="Source of the value, as in a pod."
    )


Env = Annotated[tuple[EnvVar, ...], MaxLen(MAX_LIST), VARIABLES_ONCE]


class Elastic(Model):
    """The rules for changes of the membership."""

    join_policy: Literal["Auto", "Immediate", "Never"] = Field(
        default="Auto",
        description="Time when a new worker joins. Auto: at the cheapest moment. Immediate: at once. "
        "Never: only at a change that has another cause.",
    )
    startup_wait_seconds: Seconds = Field(
        default=300, description="Seconds for which the first start waits for all workers."
    )
    settle_seconds: Seconds = Field(
        default=3, description="Seconds without a new worker before a start."
    )
    min_seconds_between_joins: Seconds = Field(
        default=300, description="Minimum seconds between joins of a job without snapshots."
    )
    max_join_wait_seconds: Seconds = Field(
        default=900, description="Maximum seconds for which a new worker waits to join."
    )
    orphan_seconds: OrphanSeconds = Field(
        default=60,
        description="Seconds after which a worker without a connection to the service stops. At least 5.",
    )
    stuck_seconds: StuckSeconds = Field(
        default=STUCK_SECONDS,
        description="Live mode: seconds without movement after which a process is killed that does "
        "not leave a step or a collective that a change has broken. At least 5.",
    )
    heartbeat_seconds: HeartbeatSeconds | None = Field(
        default=None,
        description="Seconds without a heartbeat after which a worker is lost. At least 2. Defaults "
        "to 10, or to 3 in live mode. A worker whose host acknowledges nothing is lost after 3 "
        "seconds, or after 0.6 in live mode. Without this field, a worker that does not answer "
        "while no step is done is lost after some 2.5 seconds, or 1.3 in live mode.",
    )
    warm_start: Flag = Field(
        default=True,
        description="If true, a fork server that has imported torch starts torchrun and its "
        "processes. Restarts are faster.",
    )
    warm_imports: Annotated[tuple[Text, ...], MaxLen(MAX_FILES)] = Field(
        default=(),
        description="Modules that the fork server imports besides torch, for example "
        "transformers.trainer. An import must not start a thread or open a GPU.",
    )


class SnapshotSpec(Model):
    """Storage of the training state, and the frequency of snapshots."""

    RULES = (
        Rule(
            field="uri",
            message="is given, and snapshot.storage, too; remove one of the two",
            check=lambda snapshot: snapshot.uri is None or snapshot.storage is None,
            cel="!has(self.uri) || !has(self.storage)",
        ),
    )

    storage: FreeForm | None = Field(
        default=None, description="Volume that keeps the snapshots, as in a pod."
    )
    uri: Annotated[Text, BUCKET] | None = Field(
        default=None,
        description="Bucket that keeps the snapshots, instead of storage: s3://bucket/prefix, gs:// or az://. "
        "Credentials come from the workers' environment.",
    )
    every_steps: Positive | None = Field(
        default=None, description="Steps between two snapshots. Defaults to the script's value."
    )
    keep: Positive | None = Field(
        default=None, description="Number of snapshots to keep. Defaults to the script's value."
    )
    files: Annotated[tuple[FilePath, ...], MaxLen(MAX_FILES), FILES_ONCE] = Field(
        default=(),
        description="Files in which a script without ddpjob_trainer saves its state. ddpjob keeps the "
        "newest complete replica and sends it to every worker. Use paths, patterns (ckpt/*.pt) or "
        "directories, which stand for all files in them. Relative paths start at the working directory.",
    )


class Network(Model):
    """Network settings of the processes."""

    interface: Text | None = Field(
        default=None,
        description="Network interface for NCCL and gloo. By default, NCCL and gloo choose.",
    )
    nccl_debug: Literal["VERSION", "WARN", "INFO", "ABORT", "TRACE"] | None = Field(
        default=None, description="Log level of NCCL."
    )


def _not_yet(field: str) -> Rule:
    return Rule(
        field=field,
        message="is not supported by this version; remove it",
        check=lambda part: getattr(part, to_snake(field)) is None,
        cel=f"!has(self.{field})",
    )


class Scheduling(Model):
    """Placement of the workers."""

    RULES = (_not_yet("topologyKey"), _not_yet("gang"))

    topology_key: Text | None = Field(
        default=None,
        description="Label of nodes that workers should share. Not supported yet: omit it.",
    )
    gang: FreeForm | None = Field(
        default=None,
        description="Gang scheduling of the minimum of workers. Not supported yet: omit it.",
    )
    priority_class_name: Text | None = Field(
        default=None,
        description="Priority class of the workers and of the rendezvous pod. A priorityClassName "
        "in template.spec overrides it.",
    )
