"""Finds the GPUs that a local run may use, without importing torch.

An inherited variable such as CUDA_VISIBLE_DEVICES limits the run to its devices. Without the
variable, the program of the vendor lists all devices of the machine.
May not: assign devices to workers.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping

LIST_SECONDS = 60.0  # a driver without persistence mode takes seconds to load
_ROCM_DEVICE = re.compile(r"^GPU\[(\d+)\]", re.MULTILINE)
_NVIDIA_LINE = re.compile(r"^GPU (?P<index>\d+): |^\s+MIG .*\(UUID: (?P<mig>MIG-[^)]+)\)")


@dataclasses.dataclass(frozen=True)
class Vendor:
    """A kind of GPU: its program, and the variables that limit a process to some devices."""

    variables: tuple[str, ...]  # the first one is set unless another one is inherited
    program: tuple[str, ...]
    parse: Callable[[str], tuple[str, ...]]
    order: Mapping[str, str]  # makes the libraries number devices as the program does


@dataclasses.dataclass(frozen=True)
class Devices:
    """The devices that a run may use; without a variable, the run sets none."""

    names: tuple[str, ...] = ()  # indices or UUIDs, as the variable expects them
    variable: str = ""
    order: Mapping[str, str] = dataclasses.field(default_factory=dict)
    source: str = ""  # for messages
    are_shared: bool = False  # a device may have several workers

    @property
    def variables(self) -> frozenset[str]:
        """Variables that the run sets for each worker."""
        return frozenset(filter(None, (self.variable, *self.order)))

    def environment(self, names: tuple[str, ...]) -> dict[str, str]:
        """Return the variables of a worker that uses these devices."""
        return {self.variable: ",".join(names), **self.order} if self.variable else {}


NO_DEVICES = Devices()


def parse_nvidia(text: str) -> tuple[str, ...]:
    """Return the devices in the output of `nvidia-smi -L`: indices, and UUIDs of MIG devices."""
    names: list[str] = []
    divided: set[str] = set()  # GPUs that are used as MIG devices only
    index = ""
    for line in map(_NVIDIA_LINE.match, text.splitlines()):
        if line is None:
            continue
        if line["mig"]:
            divided.add(index)
        index = line["index"] or index
        names.append(line["mig"] or index)
    return tuple(name for name in names if name not in divided)


def parse_rocm(text: str) -> tuple[str, ...]:
    """Return the indices in the output of `rocm-smi --showid`."""
    return tuple(dict.fromkeys(_ROCM_DEVICE.findall(text)))


def parse_variable(text: str) -> tuple[str, ...]:
    """Return the devices of a variable; like the driver, stop at the first invalid one."""
    names: list[str] = []
    for word in map(str.strip, text.split(",")):
        if not (word.isdigit() or re.fullmatch(r"(GPU|MIG)-[\w/-]+", word)):
            break
        names.append(word)
    return tuple(dict.fromkeys(names))


VENDORS = {  # by gpuResource
    "nvidia.com/gpu": Vendor(
        ("CUDA_VISIBLE_DEVICES",),
        ("nvidia-smi", "-L"),
        parse_nvidia,
        {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    ),
    # The indices of HIP are those of the devices that ROCR leaves visible.
    "amd.com/gpu": Vendor(
        ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), ("rocm-smi", "--showid"), parse_rocm, {}
    ),
}


def find_devices(resource: str, environment: Mapping[str, str]) -> Devices:
    """Return the devices of a resource such as nvidia.com/gpu that a run may use."""
    vendor = VENDORS.get(resource)
    if vendor is None:
        return Devices(source=f"{resource} is not known on one machine")
    for variable in vendor.variables:
        if variable in environment:
            value = environment[variable]
            return Devices(parse_variable(value), variable, source=f"{variable}={value}")
    output, problem = _output(vendor.program, environment)
    names = vendor.parse(output)
    variable = vendor.variables[0] if names else ""
    order = vendor.order if names else {}
    return Devices(names, variable, order, source=problem or shown(vendor.program))


def hide_devices(resource: str) -> Devices:
    """Return no devices, with a variable that hides those of the machine."""
    vendor = VENDORS.get(resource)
    return Devices(variable=vendor.variables[0] if vendor else "", source="--no-gpus")


def shown(program: tuple[str, ...]) -> str:
    """Return a command as people type it."""
    return " ".join(program)


def _output(program: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the output of a program, and its problem if there is one."""
    path = shutil.which(program[0], path=environment.get("PATH"))
    if path is None:
        return "", f"there is no {program[0]} on the PATH"
    try:
        done = subprocess.run(
            [path, *program[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIST_SECONDS,
            check=False,
            env=dict(environment),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{shown(program)} failed: {error}"
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        return "", f"{shown(program)} failed with exit code {done.returncode}: {words[0]}"
    return done.stdout, ""
