"""What agent, rendezvous service and the user's processes say to each other.

The one module that operator, agent and trainer library share: names of environment variables, exit
codes, and the JSON shapes that travel. What the service tells the operator is in `control`.
Standard library only; it opens no file and no socket.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

Message = dict[str, Any]  # JSON; "type" says which

PROTOCOL = 2  # raised when an older peer could misread a newer one

# Set in a worker pod by who creates it, read by the agent.
ENV_WORKER = "DDPJOB_WORKER"  # name of the worker, unique within the job
ENV_PROCESSES = "DDPJOB_PROCESSES"  # how many processes this worker contributes
ENV_SERVICE = "DDPJOB_SERVICE"  # host:port of the rendezvous service
ENV_TOKEN = "DDPJOB_TOKEN"  # secret of the job; never reaches the user's processes
ENV_ADDRESS = "DDPJOB_ADDRESS"  # the address under which other workers reach this one
ENV_ORPHAN_SECONDS = "DDPJOB_ORPHAN_SECONDS"  # without the service for so long: stop the processes
ENV_GRACE_SECONDS = "DDPJOB_GRACE_SECONDS"  # from SIGTERM to SIGKILL
ENV_LAUNCHER = "DDPJOB_LAUNCHER"  # what the command is started by: see Launcher
ENV_SAGEMAKER = "DDPJOB_SAGEMAKER"  # "1": the command is told of the hosts as SageMaker does it
ENV_WARM_START = "DDPJOB_WARM_START"  # "0": torchrun is never forked from a parent that knows torch
ENV_WARM_PARENT = "DDPJOB_WARM_PARENT"  # descriptor and process id of a parent that knows torch
ENV_WARM_IMPORTS = "DDPJOB_WARM_IMPORTS"  # modules that are imported in advance, beside torch
ENV_TERMINATION_LOG = "DDPJOB_TERMINATION_LOG"  # file that takes the last word

# Set by who creates the worker, or by the agent, for the user's processes.
ENV_JOB = "DDPJOB_JOB"  # namespace/name
ENV_JOB_UID = "DDPJOB_JOB_UID"  # marks every process of the job
ENV_MEMBERSHIP = "DDPJOB_MEMBERSHIP"  # identity of the membership, "epoch.boot.n"
ENV_REPORT_SOCKET = "DDPJOB_REPORT_SOCKET"  # Unix datagram socket that takes reports
ENV_STEPS = (
    "DDPJOB_STEPS"  # file: steps that each local rank has done, STEPS_BYTES little-endian each
)
ENV_GROUP_SOCKET = "DDPJOB_GROUP_SOCKET"  # Unix stream socket that tells of memberships, see Place
ENV_FIRST_RANK = "DDPJOB_FIRST_RANK"  # of this worker's processes, where a script starts its own
ENV_WORLD_SIZE = "DDPJOB_WORLD_SIZE"  # processes over all workers, there
ENV_LIVE = "DDPJOB_LIVE"  # "1": these processes stay when the membership changes
ENV_LEFT_STATE = "DDPJOB_LEFT_STATE"  # file, without ".LOCAL_RANK": left by who was stuck
ENV_STORE = "DDPJOB_STORE"  # host:port of the current membership's c10d store
ENV_SNAPSHOT_DIR = "DDPJOB_SNAPSHOT_DIR"
ENV_SNAPSHOT_URI = "DDPJOB_SNAPSHOT_URI"  # an object store; snapshots go there instead
ENV_SNAPSHOT_EVERY = "DDPJOB_SNAPSHOT_EVERY"  # steps between snapshots
ENV_SNAPSHOT_KEEP = "DDPJOB_SNAPSHOT_KEEP"  # how many snapshots stay
ENV_SNAPSHOT_FILES = "DDPJOB_SNAPSHOT_FILES"  # JSON list: what an unchanged script saves to

# Scheme, bucket and prefix of it; without anything that a regular expression of CEL cannot say.
SNAPSHOT_URI = "(s3|gs|az)://([a-zA-Z0-9][-._a-zA-Z0-9]*)((?:/[^/?#% ]+)*)/?"

GRACE_SECONDS = 45  # unless the user's pod says otherwise

STEPS_BYTES = 8
REPORT_SOCKET, GROUP_SOCKET = "report.sock", "group.sock"  # in the agent's folder

TOKEN_HEADER = "X-DDPJob-Token"  # not Authorization: the API server's proxy removes that one


class Exit(enum.IntEnum):
    """Exit codes of the agent and of the rendezvous service, documented in docs/exit-codes.md."""

    OK = 0
    FAILED = 1  # the job failed; the reason is in the termination message
    USAGE = 2  # a variable or flag is missing or wrong
    PORT_IN_USE = 3
    REFUSED = 4  # the service refused the token or the protocol
    STOPPED = 143  # SIGTERM


class Launcher(str, enum.Enum):
    """What starts the processes of a worker."""

    TORCHRUN = "torchrun"  # the command runs it, and it reads what it is not told from PET_*
    PYTHON = "python"  # the command is the process, or starts its own
    MPI = "mpi"  # the command runs mpirun, at the first worker only

    def __str__(self) -> str:
        return self.value


class Cause(str, enum.Enum):
    """Why a membership was formed; exactly one each, the gravest of what happened."""

    STARTED = "started"
    LOST = "lost"
    FAILED = "failed"
    LEFT = "left"
    JOINED = "joined"

    def __str__(self) -> str:
        return self.value


class MembershipId(NamedTuple):
    """Orders all memberships of a job: who holds a lower one has been overtaken."""

    epoch: int  # counts rendezvous pods
    boot: int  # counts starts of that pod's container
    n: int  # counts memberships, over all epochs

    def __str__(self) -> str:
        return f"{self.epoch}.{self.boot}.{self.n}"

    @classmethod
    def parse(cls, text: str) -> MembershipId:
        """Inverse of str()."""
        epoch, boot, n = text.split(".")
        return cls(int(epoch), int(boot), int(n))


@dataclasses.dataclass(frozen=True)
class Member:
    """One worker in a membership: a pod with its process count."""

    worker: str
    incarnation: str  # new for every agent process
    address: str
    processes: int


@dataclasses.dataclass(frozen=True)
class Membership:
    """The ordered workers of one round; order gives ranks, survivors first."""

    id: MembershipId
    members: tuple[Member, ...]
    cause: Cause
    detail: str  # which workers came and went, for people
    failures: int = 0  # application failures so far: survives the service, because agents keep it
    losses: int = 0  # memberships formed because a worker was lost
    after: int | None = (
        None  # the last step that the membership before does; None: all stop at once
    )
    snapshot_step: int | None = None  # the newest snapshot when it was formed
    repeated_steps: int = 0  # steps that were done again by then

    def stops_at_once(self, before: MembershipId) -> bool:
        """Whether who is in `before` leaves it now, and not after the step that was agreed.

        That was agreed by the members of the membership just before this one.
        """
        return self.after is None or before.n + 1 < self.id.n

    @property
    def world_size(self) -> int:
        """Processes over all members."""
        return sum(member.processes for member in self.members)

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return {**dataclasses.asdict(self), "id": str(self.id), "cause": self.cause.value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Membership:
        """Inverse of to_json()."""
        return cls(
            id=MembershipId.parse(data["id"]),
            members=tuple(Member(**member) for member in data["members"]),
            cause=Cause(data["cause"]),
            detail=data["detail"],
            failures=data["failures"],
            losses=data["losses"],
            after=data["after"],
            snapshot_step=data["snapshot_step"],
            repeated_steps=data.get("repeated_steps", 0),
        )


@dataclasses.dataclass(frozen=True)
class Place:
    """What an agent tells its live processes, one JSON line each; the newest one counts.

    They answer with `Answer`s. A membership of None: wait in memory for the next one.
    """

    membership: Membership | None = None  # to be in
    first_rank: int = 0  # in it, of this worker's processes
    leave: bool = False  # this worker goes: end after step `after`, or at once
    after: int | None = None
    save: bool = False  # nobody goes on: the first rank saves the state before it waits or leaves
    asked: bool = False  # promise a step, and begin no later one before the next word

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return {
            **dataclasses.asdict(self),
            "membership": self.membership and self.membership.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Place:
        """Inverse of to_json()."""
        held = data["membership"]
        return cls(**{**data, "membership": Membership.from_json(held) if held else None})


LEAVE_STATE = {"leave_state": True}  # said instead of a Place to a process that is given up


class Answer(str, enum.Enum):
    """What a live process says to its agent: {"answer": …, "local_rank": …} and what is named."""

    LIVE = "live"  # it was started for one membership only, and asks to be started to stay
    HELLO = "hello"  # ready to be in a membership
    PROMISE = "promise"  # "step": the last one that it begins before the next word
    BROKEN = "broken"  # "membership", "why": its connections broke
    AT = "at"  # "where": how far it is on its way out of a broken membership
    ARRIVED = "arrived"  # "membership": out of every other one, about to be in this one, if any
    ENTERED = "entered"  # "membership": in it
    STOPS = "stops"  # "membership": started for that one; can be told after which step to stop
    STOPPED = "stopped"  # it has stopped there, and its state is saved
    FINISHED = "finished"  # all steps are done; it changes no more
    LEFT = "left"  # "step": asked to LEAVE_STATE, it did; None: it could not


@dataclasses.dataclass(frozen=True)
class Failure:
    """How a worker's command ended badly, told in the words of the process that failed first."""

    at: float  # seconds since the epoch, on the clock of the failing node
    summary: str  # one line
    traceback: str = ""  # of the first failing rank, if it left one
    rank: int | None = None
    exit_code: int | None = None
    consequential: bool = False  # looks like the echo of another process's death
    permanent: bool = False  # trying again cannot help: the command does not exist

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Failure:
        """Inverse of to_json()."""
        return cls(**data)


class Event(str, enum.Enum):
    """What the user's processes tell their agent: one JSON datagram each, with their membership."""

    STEP = "step"  # {"event": "step", "step": 12, "total": 900, "metrics": {"loss": 0.3}}
    # {"event": "saved", "step": 12}; where directories are not shared also "place": 3, "places": 4;
    # "skipped": 2, if so many were left out since the one before; "trouble": a text, as long as
    # something makes saving worse than it could be
    SAVED = "saved"
    # {"event": "resumed", "step": 12}; 0 when there was no snapshot. "loaded": true, if it is not
    # from memory that training goes on.
    RESUMED = "resumed"
    # Of every process, once a second: {"event": "alive", "rank": 3, "step": 12, "where": "a.py:7"}
    ALIVE = "alive"
