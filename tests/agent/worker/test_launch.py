"""The environment of a command, for each launcher."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ddpjob_agent.worker.decisions.orders import Run
from ddpjob_agent.worker.launch import (
    STEPS_FILE,
    Command,
    LaunchContext,
    RunFactory,
    build_command,
)
from ddpjob_protocol.environment import STEPS_BYTES, Launcher
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId

FOUR = Member("job-worker-000-1", "x", "10.0.0.1", 4)
TWO = Member("job-spot-000-1", "y", "10.0.0.2", 2)
AGENT = ("python3", "/agent.pyz")
ONES = tuple(Member(f"job-worker-00{at}-1", "x", f"10.0.0.{at}", 1) for at in range(3))


def environment(
    members: tuple[Member, ...],
    at: int,
    launcher: Launcher,
    command: str = "torchrun train.py",
    logs: str = "/logs",
    **base: str,
) -> dict[str, str]:
    meeting = LaunchContext(members, members[at], "127.0.0.1:1234", 4000, "/sockets", logs)
    user = Command(command.split(), base)
    return dict(build_command(user, launcher, AGENT, meeting, {"OURS": "1"}).environment)


@pytest.mark.parametrize("launcher", Launcher)
def test_every_command_knows_the_nodes(launcher: Launcher, tmp_path: Path) -> None:
    found = environment((FOUR, TWO), 1, launcher, logs=str(tmp_path), DDPJOB_KEYS="/keys", MINE="2")
    wanted = {
        "NNODES": "2", "NODE_RANK": "1", "NPROC_PER_NODE": "2", "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4000", "OURS": "1", "MINE": "2",
    }  # fmt: skip
    assert {name: found.get(name) for name in wanted} == wanted
    assert "DDPJOB_KEYS" not in found


def test_torchrun_gets_all_settings_that_the_user_does_not_give() -> None:
    found = environment((FOUR, TWO), 0, Launcher.TORCHRUN, PET_LOG_DIR="/mine")
    flags = {name: value for name, value in found.items() if name.startswith("PET_")}
    assert flags == {
        "PET_NNODES": "2", "PET_NPROC_PER_NODE": "4", "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "127.0.0.1:1234", "PET_RDZV_ID": "ddpjob",
        "PET_RDZV_CONF": "is_host=0", "PET_LOCAL_ADDR": "10.0.0.1", "PET_MAX_RESTARTS": "0",
        "PET_LOG_DIR": "/mine",
    }  # fmt: skip
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & set(found), "torchrun says them"


@pytest.mark.parametrize(
    ("command", "base"),
    [
        ("torchrun --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT train.py", {}),
        ("torchrun --rdzv_endpoint host:29400 train.py", {}),
        ("torchrun --standalone train.py", {}),
        ("torchrun train.py", {"PET_RDZV_ENDPOINT": "host:29400"}),
    ],
    ids=["dashes", "underscores", "standalone", "variable"],
)
def test_a_store_of_the_users_own_has_a_host(command: str, base: dict[str, Any]) -> None:
    assert "PET_RDZV_CONF" not in environment(ONES, 0, Launcher.TORCHRUN, command, **base)


def test_a_script_that_starts_processes_counts_workers_and_can_count_processes() -> None:
    found = environment((FOUR, TWO), 1, Launcher.PYTHON)
    wanted = {"RANK": "1", "WORLD_SIZE": "2", "DDPJOB_FIRST_RANK": "4", "DDPJOB_WORLD_SIZE": "6"}
    assert {name: found.get(name) for name in wanted} == wanted
    assert not [name for name in found if name.startswith(("PET_", "LOCAL_"))]


def test_a_script_of_one_process_has_the_ranks_that_torchrun_would_give() -> None:
    found = environment(ONES, 2, Launcher.PYTHON)
    wanted = {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert {name: found.get(name) for name in wanted} == wanted


def test_mpirun_knows_all_slots_and_runs_at_the_first_worker(tmp_path: Path) -> None:
    store = "127.0.0.1:1234"
    commands = []
    for me in (FOUR, TWO):
        meeting = LaunchContext((FOUR, TWO), me, store, 4000, "/sockets", str(tmp_path))
        user = Command(["mpirun", "train"], {"PRTE_MCA_plm_ssh_no_tree_spawn": "mine"})
        commands.append(build_command(user, Launcher.MPI, AGENT, meeting, {}))
    first, other = commands
    assert [*first.argv] == [*AGENT, "mpi-lead", "--", "mpirun", "train"]
    assert [*other.argv] == [*AGENT, "mpi-follow"]
    hosts = Path(first.environment["PRTE_MCA_prte_default_hostfile"])
    assert hosts.read_text() == "job-worker-000-1 slots=4\njob-spot-000-1 slots=2\n"
    assert other.environment["DDPJOB_STORE"] == store
    assert first.environment["PRTE_MCA_plm_ssh_no_tree_spawn"] == "mine"
    assert not {"RANK", "WORLD_SIZE"} & set(first.environment), "each process asks MPI"


@pytest.mark.parametrize(
    ("command", "members", "at", "launcher", "base", "expected"),
    [
        pytest.param("./run.sh", (FOUR, TWO), 0, "torchrun", {}, True, id="several_workers"),
        pytest.param("./run.sh", (FOUR,), 0, "torchrun", {}, True, id="several_processes"),
        pytest.param("./run.sh", ONES[:1], 0, "torchrun", {}, False, id="one_process"),
        pytest.param("./run.sh", (FOUR, TWO), 1, "torchrun", {}, False, id="not_the_first"),
        pytest.param("./run.sh", (FOUR, TWO), 0, "python", {}, False, id="python"),
        pytest.param("./run.sh", (FOUR, TWO), 0, "mpi", {}, False, id="mpi"),
        pytest.param("./run.sh", None, 0, "torchrun", {}, False, id="live_processes"),
        pytest.param(
            "accelerate launch --main_process_ip $MASTER_ADDR", (FOUR, TWO), 0, "torchrun", {},
            False, id="own_addresses",
        ),
        pytest.param(
            "./run.sh", (FOUR, TWO), 0, "torchrun", {"PET_RDZV_ENDPOINT": "host:1"}, False,
            id="own_endpoint",
        ),
    ],
)  # fmt: skip
def test_one_worker_of_a_group_expects_torchrun(
    command: str,
    members: tuple[Member, ...] | None,
    at: int,
    launcher: str,
    base: dict[str, str],
    expected: bool,
) -> None:
    membership = members and Membership(MembershipId(1, 1, 1), members, Cause.STARTED, "")
    factory = RunFactory("/sockets", Command(command.split(), base), Launcher(launcher), AGENT)
    try:
        use = factory.expected_use(Run(membership or None), (members or (FOUR,))[at])
    finally:
        factory.port.close()
    assert (use is not None) == expected


def test_a_heartbeat_has_the_furthest_step_of_the_processes_and_its_age(tmp_path: Path) -> None:
    factory = RunFactory(str(tmp_path), Command(["train"], {}), Launcher.PYTHON, AGENT)
    factory.port.close()
    assert factory.step_facts() == {}, "no process has done a step"
    file = Path(factory.logs) / STEPS_FILE
    file.parent.mkdir()
    written = (7, 9, 2**64 - 1)  # the last one is not a number of steps
    file.write_bytes(b"".join(step.to_bytes(STEPS_BYTES, "little") for step in written))
    os.utime(file, (0, time.time() - 100))
    facts = factory.step_facts()
    assert facts["step"] == 9
    assert 100 <= facts["step_age"] < 1000
    os.utime(file, (0, time.time() + 1000))  # the clock was set back
    assert factory.step_facts()["step_age"] == 0
