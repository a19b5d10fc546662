"""Processes that the kernel killed because memory ran out, by the files of a cgroup."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from agent.membership.views import membership
from ddpjob_agent.output.capture import OutputCapture
from ddpjob_agent.worker.decisions.orders import AgentState, Run
from ddpjob_agent.worker.ends.end_report import EndReport
from ddpjob_agent.worker.ends.memory_kills import MemoryKills, explain_memory
from ddpjob_agent.worker.settings import AgentSettings
from ddpjob_protocol.messages.agent import Failure

LIMIT = "out of memory: the memory limit of 2.15 GB is used up; raise it, or make the job need less"
NODE = (
    "out of memory: the memory of the node ran out; give the worker a memory request that it fits"
    " in, or make the job need less"
)
V2 = ("0::{path}\n", "", "memory.events", "memory.max")
V1 = (
    "5:cpu,cpuacct:{path}\n4:memory:{path}\n",
    "memory/",
    "memory.oom_control",
    "memory.limit_in_bytes",
)


class Cgroup:
    """The files of a cgroup; `path` is that of the process, and the files may be at the top."""

    def __init__(self, folder: Path, version: tuple[str, str, str, str], path: str) -> None:
        form, top, counter, limit = version
        self.root, self.proc = folder / "cgroup", folder / "proc"
        self.proc.mkdir()
        (self.proc / "cgroup").write_text(form.format(path=path))
        where = self.root / top / ("" if path == "/somewhere/else" else path.lstrip("/"))
        where.mkdir(parents=True)
        self.counter, self.limit = where / counter, where / limit
        self.kills(0)
        self.limit.write_text(f"{2 << 30}\n")

    def kills(self, count: int) -> None:
        lines = ("low 0", "oom 7", f"oom_kill {count}", "oom_group_kill 9")
        self.counter.write_text("\n".join(lines) + "\n")

    def read(self) -> MemoryKills:
        return MemoryKills(str(self.root), str(self.proc))


@pytest.mark.parametrize("version", [V2, V1], ids=["v2", "v1"])
@pytest.mark.parametrize("path", ["/", "/pods/a", "/somewhere/else"])
def test_a_kill_is_news_once_with_limit_and_remedy(
    tmp_path: Path, version: tuple[str, str, str, str], path: str
) -> None:
    cgroup = Cgroup(tmp_path, version, path)
    cgroup.kills(3)
    memory = cgroup.read()
    assert memory.news() == "", "those before the agent are of others"
    cgroup.kills(4)
    assert memory.news() == LIMIT
    assert memory.news() == ""


@pytest.mark.parametrize("limit", ["max", str((1 << 63) - 4096), "", "-1", "much"])
def test_without_a_limit_the_node_ran_out(tmp_path: Path, limit: str) -> None:
    cgroup = Cgroup(tmp_path, V2, "/")
    memory = cgroup.read()
    cgroup.kills(1)
    cgroup.limit.write_text(limit)
    assert memory.news() == NODE


@pytest.mark.parametrize("content", [None, "", "oom_kill", "oom_kill many", "oom_kill -1", "\xff"])
def test_a_counter_that_cannot_be_read_names_nothing(tmp_path: Path, content: str | None) -> None:
    cgroup = Cgroup(tmp_path, V2, "/")
    memory = cgroup.read()
    if content is None:
        cgroup.counter.unlink()
    else:
        cgroup.counter.write_text(content, encoding="latin-1")
    assert memory.news() == ""


def test_without_cgroups_nothing_is_named(tmp_path: Path) -> None:
    assert MemoryKills(str(tmp_path), str(tmp_path / "proc")).news() == ""


@pytest.mark.parametrize(
    ("summary", "code", "problem", "named"),
    [
        pytest.param("rank 1 (w) was killed by SIGKILL", -9, LIMIT, True, id="killed"),
        pytest.param("the command of w ended with exit code 137", 137, LIMIT, True, id="in_a_shell"),
        pytest.param(
            "rank 0 (w): RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ",
            1, LIMIT, True, id="a_worker_of_a_data_loader",
        ),
        pytest.param("rank 1 (w) was killed by SIGKILL", -9, "", False, id="killed_by_a_person"),
        pytest.param("rank 0 (w): ValueError: bad", 1, LIMIT, False, id="another_failure"),
        pytest.param("rank 1 (w) was killed by SIGSEGV", -11, LIMIT, False, id="another_signal"),
    ],
)  # fmt: skip
def test_a_kill_has_the_reason_of_a_pod_without_memory(
    summary: str, code: int, problem: str, *, named: bool
) -> None:
    failure = explain_memory(Failure(1.0, summary, exit_code=code), problem)
    assert failure.summary == (f"{summary}; {LIMIT}" if named else summary)
    assert failure.reason == ("OutOfMemory" if named else "")


SETTINGS = AgentSettings(
    "a", 1, "h", 1, "", "", 1, 1, 1, fork_server_enabled=False, termination_log="", program=()
)


class Sent:
    """The messages of an agent to its service."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)


def test_the_report_of_an_end_has_the_kills_since_the_last_end(tmp_path: Path) -> None:
    cgroup, sent, current = Cgroup(tmp_path, V2, "/"), Sent(), membership("a", "b")
    state = AgentState(current.members[0], membership=current)
    output = OutputCapture()
    ends = EndReport(SETTINGS, state, cast("Any", sent), cast("Any", None), output, cgroup.read())
    reasons = []
    for kills, is_wanted in ((1, True), (1, True), (2, False), (2, True)):
        cgroup.kills(kills)
        run = Run(current)
        state.wanted = run if is_wanted else None
        ends.on_exit(run, -9, str(tmp_path), is_silent=False)
        reasons.append([each["failure"]["reason"] for each in sent.messages])
        sent.messages.clear()
    assert reasons == [["OutOfMemory"], [""], [], [""]]
