"""SageMaker's conventions: the fields of a job, and the environment variables of its scripts.

The agent sets the variables about hosts (`ddpjob_agent.launchers.sagemaker`), because the hosts
change with the membership.

May not: know pods or volumes; the creator of a worker passes the path of the folders.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from annotated_types import MaxLen
from pydantic import Field

from ddpjob_operator.api import cel
from ddpjob_operator.api.base import Model
from ddpjob_operator.api.rule import Rule
from ddpjob_operator.api.spec.fields import Argument, DnsLabel
from ddpjob_operator.api.spec.pod.free_form import FreeForm

BASE = "/opt/ml"  # folder in a pod, as on SageMaker
MAX_CHANNELS = 20  # the limit of SageMaker
# Rejected values of `distribution`, with portable replacements.
PROPRIETARY = {
    "smddp": "is smddp, SageMaker's own library, which runs only there; torch_distributed does the "
    "same with DDP over NCCL or gloo: take out the import of smdistributed and the backend smddp",
    "smp": "is smp, SageMaker's own library, which runs only there; FSDP2 and tensor parallelism "
    "of torch do the same, with torch_distributed: see docs/bring-your-own.md",
}
LAUNCHERS = {"pytorchddp": "torchrun", "torch_distributed": "torchrun", "mpi": "mpi"}
STARTS = {
    "torchrun": ("torchrun",),
    "mpi": ("mpirun", "python3", "-m", "mpi4py"),
    "python": ("python3",),
}


class Channel(Model):
    """Data that every worker reads."""

    name: DnsLabel = Field(description="Name of the channel: its folder, and SM_CHANNEL_NAME.")
    volume: FreeForm = Field(description="Volume that holds it, as in a pod.")


def _replaced(value: str, message: str) -> Rule:
    return Rule(
        field="distribution",
        message=message,
        check=lambda sagemaker: sagemaker.distribution != value,
        cel=f"!{cel.is_one_of('self.distribution', value)}",
    )


class SageMaker(Model):
    """For scripts that were written for SageMaker: the command is the entry point."""

    RULES = tuple(_replaced(value, message) for value, message in PROPRIETARY.items())

    distribution: Literal["pytorchddp", "torch_distributed", "mpi", "smddp", "smp"] | None = Field(
        default=None,
        description="What starts the entry point: torchrun, for pytorchddp and torch_distributed; "
        "or mpirun. smddp and smp are refused. Without it, the entry point runs once in each worker.",
    )
    hyperparameters: dict[str, Argument] = Field(
        default={}, description="Arguments of the entry point, also in SM_HPS; all as text."
    )
    channels: Annotated[tuple[Channel, ...], MaxLen(MAX_CHANNELS)] = Field(
        default=(), description="Data, in SM_CHANNEL_NAME."
    )
    model: FreeForm | None = Field(
        default=None,
        description="Volume for the files in SM_MODEL_DIR, as in a pod. Without it, they are "
        "deleted with their pod.",
    )

    @property
    def launcher(self) -> str:
        """The launcher of the processes, as in `spec.launcher`."""
        return LAUNCHERS.get(self.distribution or "", "python")

    @property
    def arguments(self) -> tuple[str, ...]:
        """The hyperparameters as arguments of the entry point."""
        given = sorted(self.hyperparameters.items())
        return tuple(word for name, value in given for word in (_flag(name), value))

    def command(self, entry_point: Sequence[str]) -> tuple[str, ...]:
        """Return the command of a worker."""
        return (*STARTS[self.launcher], *entry_point, *self.arguments)

    def variables(self, entry_point: Sequence[str], gpus: int, base: str) -> dict[str, str]:
        """Return the SM_* variables without the hosts; `base` stands for /opt/ml."""
        values = {name: _value(text) for name, text in self.hyperparameters.items()}
        folders = {channel.name: f"{base}/input/data/{channel.name}" for channel in self.channels}
        script = entry_point[0] if entry_point else ""
        return {
            "SM_MODEL_DIR": f"{base}/model",
            "SM_INPUT_DIR": f"{base}/input",
            "SM_INPUT_CONFIG_DIR": f"{base}/input/config",
            "SM_OUTPUT_DIR": f"{base}/output",
            "SM_OUTPUT_DATA_DIR": f"{base}/output/data",
            "SM_CHANNELS": json.dumps(sorted(folders)),
            **{f"SM_CHANNEL_{name.upper()}": path for name, path in folders.items()},
            "SM_HPS": json.dumps(values, sort_keys=True),
            **{f"SM_HP_{name.upper()}": text for name, text in self.hyperparameters.items()},
            "SM_USER_ARGS": json.dumps(self.arguments),
            "SM_USER_ENTRY_POINT": script,
            "SM_MODULE_NAME": script.removesuffix(".py"),
            "SM_NUM_GPUS": str(gpus),
            "SM_LOG_LEVEL": "20",
        }


def _flag(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _value(text: str) -> Any:
    """Return the value of a JSON text, or the text itself, as SageMaker does."""
    try:
        return json.loads(text)
    except ValueError:
        return text
