"""The GPUs of a machine, as its tools list them, and the workers that share them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpjob_operator.api import jobfile
from ddpjob_operator.local.devices.demand import TooFewDevicesError, choose_devices, describe_use
from ddpjob_operator.local.devices.discovery import (
    Devices,
    find_devices,
    parse_nvidia,
    parse_rocm,
    parse_variable,
)
from ddpjob_operator.local.devices.pool import DevicePool
from support.driving import job_text

NVIDIA = "nvidia.com/gpu"
TWO_GPUS = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-1111-2222-3333-444444444444)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-8a1f0c3b-1111-2222-3333-444444444444)
"""
MIG = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-1111-2222-3333-444444444444)
  MIG 3g.20gb     Device  0: (UUID: MIG-c7384736-1111-2222-3333-444444444444)
  MIG 3g.20gb     Device  1: (UUID: MIG-a28ad590-1111-2222-3333-444444444444)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-8a1f0c3b-1111-2222-3333-444444444444)
"""
ROCM = """\
============================ ROCm System Management Interface ============================
GPU[0]\t\t: Device Name: \t\tAMD Instinct MI300X
GPU[0]\t\t: Device ID: \t\t0x74a1
GPU[1]\t\t: Device Name: \t\tAMD Instinct MI300X
"""


def machine(folder: Path, program: str, text: str, code: int = 0) -> dict[str, str]:
    """The environment of a machine with this program."""
    path = folder / program
    path.write_text(f"#!/bin/sh\ncat <<'EOF'\n{text}EOF\nexit {code}\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_devices_as_the_tools_list_them() -> None:
    assert parse_nvidia(TWO_GPUS) == ("0", "1")
    assert parse_nvidia("No devices found.\n") == ()
    with_mig = parse_nvidia(MIG)
    assert [name[:12] for name in with_mig] == ["MIG-c7384736", "MIG-a28ad590", "1"]
    assert parse_rocm(ROCM) == ("0", "1")


@pytest.mark.parametrize(
    ("value", "names"),
    [
        pytest.param("0,1", ("0", "1"), id="indices"),
        pytest.param(" 3 , 1 ", ("3", "1"), id="order_is_kept"),
        pytest.param("GPU-5d5b,MIG-GPU-8a1f/1/0", ("GPU-5d5b", "MIG-GPU-8a1f/1/0"), id="uuids"),
        pytest.param("0,-1,1", ("0",), id="the_driver_stops_at_an_invalid_one"),
        pytest.param("0,0", ("0",), id="twice_the_same"),
        pytest.param("", (), id="none"),
        pytest.param("NoDevFiles", (), id="none_in_words"),
    ],
)
def test_an_inherited_variable_limits_the_run(
    tmp_path: Path, value: str, names: tuple[str, ...]
) -> None:
    assert parse_variable(value) == names
    environment = {**machine(tmp_path, "nvidia-smi", TWO_GPUS), "CUDA_VISIBLE_DEVICES": value}
    found = find_devices(NVIDIA, environment)
    assert found.names == names
    assert found.environment(names[:1]) == {"CUDA_VISIBLE_DEVICES": "".join(names[:1])}


def test_devices_of_a_machine(tmp_path: Path) -> None:
    found = find_devices(NVIDIA, machine(tmp_path, "nvidia-smi", TWO_GPUS))
    assert found.names == ("0", "1")
    # Without this order, CUDA numbers the fastest device first.
    expected = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert found.environment(("1",)) == expected
    found = find_devices("amd.com/gpu", machine(tmp_path, "rocm-smi", ROCM))
    assert found.environment(("0", "1")) == {"HIP_VISIBLE_DEVICES": "0,1"}
    limited = {**machine(tmp_path, "rocm-smi", ROCM), "ROCR_VISIBLE_DEVICES": "1"}
    assert find_devices("amd.com/gpu", limited).environment(("1",)) == {"ROCR_VISIBLE_DEVICES": "1"}


def test_a_machine_without_devices(tmp_path: Path) -> None:
    nothing = find_devices(NVIDIA, {"PATH": str(tmp_path)})
    assert nothing.names == ()
    assert nothing.environment(()) == {}, "nothing to hide"
    assert nothing.source == "there is no nvidia-smi on the PATH"
    broken = find_devices(NVIDIA, machine(tmp_path, "nvidia-smi", "no driver\n", code=9))
    assert (broken.names, broken.environment(())) == ((), {})
    assert broken.source == "nvidia-smi -L failed with exit code 9: no driver"


def test_each_device_has_one_worker_until_it_is_released() -> None:
    pool = DevicePool(Devices(("a", "b", "c"), "VISIBLE"))
    assert pool.take("one", 2) == ""
    assert pool.take("two", 2) == "too few free GPUs: it needs 2, and 1 of 3 are free"
    assert pool.take("three", 1) == ""
    assert pool.environment("one") == {"VISIBLE": "a,b"}
    assert pool.environment("three") == {"VISIBLE": "c"}
    assert pool.environment("without") == {"VISIBLE": ""}
    pool.release("one")
    assert pool.take("two", 1) == ""
    assert pool.environment("two") == {"VISIBLE": "a"}, "the order of the machine"
    assert pool.free == ("b",)


def test_too_few_devices_are_reported_with_the_remedy() -> None:
    spot = "[{name: spot, replicas: 1, gpusPerWorker: 2}]"
    job = jobfile.parse(job_text("[torchrun, train.py]", gpusPerWorker=1, extraWorkerGroups=spot))
    two = {"CUDA_VISIBLE_DEVICES": "0,1"}
    with pytest.raises(TooFewDevicesError) as error:
        choose_devices(job, 4, two)
    assert str(error.value) == (
        "4 workers need 5 GPUs (gpusPerWorker), and there are 2 (CUDA_VISIBLE_DEVICES=0,1); lower "
        "gpusPerWorker or replicas, --nodes 1 so that the other workers wait, --share-gpus so that "
        "workers share GPUs, or pass --no-gpus to run on CPUs"
    )
    assert choose_devices(job, 1, two).names == ("0", "1"), "any worker fits"
    with pytest.raises(TooFewDevicesError, match="1 worker needs 2 GPUs"):
        choose_devices(job, 1, {"CUDA_VISIBLE_DEVICES": "0"})
    without = choose_devices(job, 4, two, use=False)
    assert without.environment(without.names) == {"CUDA_VISIBLE_DEVICES": ""}


def test_shared_devices_have_several_workers_each_of_which_is_a_host() -> None:
    job = jobfile.parse(job_text("[torchrun, train.py]", replicas=3, gpusPerWorker=2))
    devices = choose_devices(job, 3, {"CUDA_VISIBLE_DEVICES": "0,1,2"}, share=True)
    assert describe_use(job, devices) == "GPUs 0, 1, 2: 2 for each worker of worker, shared"
    pool = DevicePool(devices)
    assert [pool.take(worker, 2) for worker in "abc"] == ["", "", ""]
    found = {worker: pool.environment(worker) for worker in "abc"}
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found.values()] == ["0,1", "2,0", "1,2"]
    assert [each["NCCL_HOSTID"] for each in found.values()] == ["a", "b", "c"]
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    assert {each[name] for each in found.values() for name in names} == {"lo"}
    pool.release("a")
    assert pool.take("d", 1) == ""
    assert pool.environment("d")["CUDA_VISIBLE_DEVICES"] == "0", "which has one worker"
    with pytest.raises(TooFewDevicesError) as error:
        choose_devices(job, 3, {"CUDA_VISIBLE_DEVICES": "0"}, share=True)
    assert "--share-gpus" not in str(error.value), "a worker alone needs more"


def test_the_use_of_devices_is_one_line() -> None:
    devices = Devices(("0", "1"), "CUDA_VISIBLE_DEVICES")
    job = jobfile.parse(job_text("[torchrun, train.py]", replicas=2, gpusPerWorker=1))
    assert describe_use(job, devices) == "GPUs 0, 1: 1 for each worker of worker"
    job = jobfile.parse(job_text("[torchrun, train.py]"))
    assert describe_use(job, devices) == (
        "GPUs 0, 1 are not used: the job asks for none; to use them, set gpusPerWorker"
    )
    assert describe_use(job, Devices()) == ""
