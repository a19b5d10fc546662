"""The `ddpjob` command from its start to its end, whoever ends it, and what the next one finds."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import psutil
import pytest

from ddpjob_operator.cli.common import ExitCode
from support.command import RUN, Command, run_to_end, started, write_job

COMMAND = "[python3, train.py, end]"

# Goes on from the step that it finds in its snapshot folder; no torch, so that it is quick.
SCRIPT = """
    import json, os, pathlib, socket, sys, time
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    end = pathlib.Path(sys.argv[1])
    saved = pathlib.Path(os.environ["DDPJOB_SNAPSHOT_DIR"]) / "step"
    def report(**what):
        agent.sendto(json.dumps(what).encode(), os.environ["DDPJOB_REPORT_SOCKET"])
    step = int(saved.read_text()) if saved.exists() else 0
    report(event="resumed", step=step)
    while not end.exists():
        step += 1
        report(event="step", step=step, total=1000000)
        if step == 10:
            saved.write_text("10")
            report(event="saved", step=10)
        time.sleep(0.02)
"""


@pytest.fixture(autouse=True)
def job(tmp_path: Path) -> None:
    write_job(tmp_path, COMMAND, SCRIPT, replicas=2)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if is_alive(p)]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until_saved(command: Command) -> None:
    command.until(lambda: command.report.get("snapshot_step") == 10, "a snapshot")


def finish(folder: Path, command: Command) -> None:
    """Let a running job complete."""
    command.until_stepping()
    (folder / "end").touch()
    assert command.wait() == ExitCode.OK, command.output


def test_version_and_validate(tmp_path: Path) -> None:
    code, command = run_to_end(tmp_path, "version", executed=True)
    assert (code, command.output.split()[0]) == (ExitCode.OK, "ddpjob")
    code, command = run_to_end(tmp_path, "validate", "job.yaml")
    assert code == ExitCode.OK
    assert command.output == (
        "job.yaml: warning: line 4: spec.image: is missing, so the job runs with "
        "`ddpjob run --local` only\n"
        "job.yaml: DDPJob default/probe is valid (worker: 2 x 1)\n"
    )


def test_a_path_that_looks_like_markup_is_printed_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").rename(tmp_path / "[bold]:smile:.yaml")
    _, command = run_to_end(tmp_path, "validate", "[bold]:smile:.yaml")
    assert "\n[bold]:smile:.yaml: DDPJob default/probe is valid" in command.output


def test_flags_that_pin_the_job_are_warned_of(tmp_path: Path) -> None:
    write_job(tmp_path, "[sh, -c, torchrun --nnodes=2 train.py]")
    code, command = run_to_end(tmp_path, "validate", "job.yaml")
    assert code == ExitCode.OK
    assert (
        "job.yaml: warning: line 6: spec.command: worker: --nnodes=2 pins the number of workers; remove it"
        in command.output
    )


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, command = run_to_end(tmp_path, *RUN, "--port", str(port))
    assert code == ExitCode.PORT_IN_USE
    assert (
        f"port {port} is in use; stop the process there, choose another with --port, or omit "
        "--port to get a free one\n" in command.output
    )
    assert "Traceback" not in command.output


def test_second_run_of_the_same_job(tmp_path: Path) -> None:
    with started(tmp_path) as first:
        first.until_stepping()
        before = {process.pid for process in first.processes()}
        code, second = run_to_end_beside(tmp_path / "elsewhere", "../job.yaml")
        assert code == ExitCode.ALREADY_RUNNING
        assert second == (
            f"this job is already running here, as process {first.process.pid} in {first.state}; "
            "end that one first, or choose another folder with --state-dir\n"
        )
        assert {process.pid for process in first.processes()} == before, "not disturbed"
        finish(tmp_path, first)
        assert first.causes == ["started"]


def run_to_end_beside(folder: Path, file: str) -> tuple[int, str]:
    """Like run_to_end, in another folder, where another run of the job goes on."""
    folder.mkdir()
    command = Command(folder, ("run", "--local", file))
    try:
        return command.wait(), command.output
    finally:
        command.kill()


def test_chaos_comes_in_its_order_and_what_was_never_due_is_told(tmp_path: Path) -> None:
    events = "process:node-0=step12,kill:node-9=step13,rendezvous=step14,join=0.1s,drain=90000s"
    with started(tmp_path, *RUN, "--chaos", events) as command:
        command.until(lambda: "node-2 comes up" in command.output, "the last of them")
        finish(tmp_path, command)
    lines = map(json.loads, (command.state / "timeline.jsonl").read_text().splitlines())
    assert [line["text"] for line in lines if line["kind"] == "chaos"] == [
        "process on node-0",
        "no node node-9 to kill",
        "the rendezvous service is killed",
        "node-2 comes up",
        "drain=90000s did not happen: the job ended before it",
    ]


def test_chaos_that_may_never_be_due_is_explained_while_the_job_runs(tmp_path: Path) -> None:
    write_job(tmp_path, COMMAND, SCRIPT.replace(", total=1000000", ""), replicas=1)
    reason = "chaos     kill=30% needs the number of all steps, and the script reports none"
    with started(tmp_path, *RUN, "--chaos", "kill=30%") as command:
        command.until(lambda: reason in command.output, reason)
        finish(tmp_path, command)
    assert command.output.count(reason) == 1


def test_two_jobs_with_state_folders_of_their_own(tmp_path: Path) -> None:
    with started(tmp_path) as first:
        first.until_stepping()
        second = Command(tmp_path, [*RUN, "--state-dir", "other"])
        second.state = tmp_path / "other" / "default" / "probe"
        try:
            finish(tmp_path, second)
        finally:
            second.kill()
        assert first.wait() == ExitCode.OK
        assert second.processes() == []


def test_two_runs_never_write_the_same_files(tmp_path: Path) -> None:
    """The second one has a state folder of its own, and another path to the working directory."""
    waits = "import pathlib, time\nwhile not pathlib.Path('end').exists(): time.sleep(0.02)"
    own = {"snapshot": "{files: [snapshot.pt]}"}
    write_job(tmp_path, "[python3, train.py]", waits, replicas=1, **own)
    (tmp_path / "elsewhere").symlink_to(tmp_path)
    options = ("--state-dir", "other", "--workdir", "elsewhere")
    with started(tmp_path) as first:
        first.until(lambda: "started" in first.output, "a membership")
        second = Command(tmp_path, [*RUN, *options])
        try:
            second.until(lambda: second.output.endswith("\n"), "its end, or a start")
            assert second.output == (
                f"another run on this machine writes 'snapshot.pt' in {tmp_path} (snapshot.files); "
                "wait for its end, or choose another folder with --workdir\n"
            )
            assert second.wait() == ExitCode.ALREADY_RUNNING
        finally:
            second.kill()
        (tmp_path / "end").touch()
        assert first.wait() == ExitCode.OK, first.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_interrupted_and_continued(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path) as command:
        until_saved(command)
        command.process.send_signal(number)
        assert command.wait() == ExitCode.INTERRUPTED
        assert command.processes() == []
    assert command.output.endswith(
        "stopped; to resume from the snapshot of step 10: ddpjob run --local job.yaml\n"
    )
    assert "Traceback" not in command.output
    with started(tmp_path) as again:
        finish(tmp_path, again)
    assert "resuming from the last snapshot; --fresh starts from the beginning\n" in again.output
    assert "from the snapshot of step 10\n" in again.output


def test_the_way_to_go_on_is_quoted_and_never_fresh(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").rename(tmp_path / "my job.yaml")
    with started(tmp_path, "run", "--local", "--fresh", "my job.yaml") as command:
        command.until_stepping()
        command.process.terminate()
        assert command.wait() == ExitCode.INTERRUPTED
    assert command.output.endswith(": ddpjob run --local 'my job.yaml'\n")


def test_fresh_starts_anew_and_keeps_what_was_saved(tmp_path: Path) -> None:
    with started(tmp_path) as command:
        until_saved(command)
        command.process.terminate()
        command.wait()
    previous = command.state.with_name("probe.previous") / "snapshots" / "step"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        for _ in range(2):
            code, _ = run_to_end(tmp_path, *RUN, "--fresh", "--port", port)
            assert code == ExitCode.PORT_IN_USE
            assert previous.read_text() == "10", "a run that never began costs no snapshot"
    with started(tmp_path, *RUN, "--fresh") as again:
        finish(tmp_path, again)
    assert "from the snapshot" not in again.output


def test_killed_command_leaves_nothing_and_the_next_one_goes_on(tmp_path: Path) -> None:
    with started(tmp_path, executed=True) as command:
        until_saved(command)
        processes = command.processes()
        names = {word for process in processes for word in process.cmdline()}
        assert {"worker", "rendezvous", "train.py"} <= names
        command.process.kill()
        assert command.wait() == -signal.SIGKILL
        command.until(
            lambda: not command.processes() and not alive(processes),
            "agents and processes end by themselves",
        )
    with started(tmp_path) as again:
        finish(tmp_path, again)
    assert "from the snapshot of step 10\n" in again.output
    assert again.causes == ["started"]


def test_killed_command_can_be_started_again_at_once(tmp_path: Path) -> None:
    """What the killed one left behind is ended before anything starts."""
    with started(tmp_path) as command:
        until_saved(command)
        before = command.processes()
        for process in before:
            process.suspend()
        command.process.kill()
        command.wait()
        with started(tmp_path) as again:
            again.until_stepping()
            assert alive(before) == []
            finish(tmp_path, again)


def test_completed_job_starts_afresh_and_the_old_run_is_kept(tmp_path: Path) -> None:
    with started(tmp_path) as first:
        until_saved(first)
        finish(tmp_path, first)
    old = (first.state / "timeline.jsonl").read_text()
    (tmp_path / "end").unlink()
    with started(tmp_path) as second:
        second.until_stepping()
        previous = second.state.with_name("probe.previous")
        assert (previous / "timeline.jsonl").read_text() == old
        assert (previous / "snapshots" / "step").read_text() == "10"
        assert list((previous / "logs").glob("*.log"))
        assert json.loads((previous / "status.json").read_text())["state"] == "Complete"
        finish(tmp_path, second)
    assert "resuming from" not in second.output
    assert "resumed" not in second.output


def test_a_template_gives_command_and_environment_here_too(tmp_path: Path) -> None:
    """Its other fields have no effect on this machine, which a warning says."""
    container = (
        "{name: main, command: [python3, train.py], args: [end], env: [{name: A, value: b}]}"
    )
    own = {"template": f"{{spec: {{nodeSelector: {{a: b}}, containers: [{container}]}}}}"}
    script = "import os, sys; print(sys.argv[1:], os.environ['A'])"
    write_job(tmp_path, "[]", script, replicas=1, ttlSecondsAfterFinished=0, **own)
    code, command = run_to_end(tmp_path)
    assert code == ExitCode.OK, command.output
    assert "['end'] b" in (command.state / "logs" / "probe-worker-000-1.log").read_text()
    warned = [line for line in command.output.splitlines() if "warning" in line]
    assert warned == [
        f"job.yaml: warning: {path} has no effect on this machine"
        for path in ("spec.ttlSecondsAfterFinished", "spec.template.spec.nodeSelector")
    ]


# Saves a file of its own at its end, and has nothing to do if it finds the file.
OWN_FILE = """
    import pathlib
    if not (saved := pathlib.Path("snapshot.pt")).exists():
        saved.write_text("the end")
"""


def test_completed_job_with_its_own_file_trains_nothing_until_it_is_fresh(tmp_path: Path) -> None:
    own = {"snapshot": "{files: [snapshot.pt]}"}
    write_job(tmp_path, "[python3, train.py]", OWN_FILE, replicas=1, **own)
    warning = "probably no step was trained: snapshot.pt existed before the run and did not change"
    for options, warns in ([], False), ([], True), (["--fresh"], False):
        code, command = run_to_end(tmp_path, *RUN, *options)
        assert code == ExitCode.OK
        assert (warning in command.output) == warns
    aside = command.state.with_name("probe.files") / "1"
    assert f"--fresh: moved snapshot.pt to {aside}\n" in command.output
    assert (aside / "snapshot.pt").read_text() == "the end"


def test_fresh_says_what_it_cannot(tmp_path: Path) -> None:
    write_job(tmp_path, "[python3, train.py]", OWN_FILE, replicas=1)
    code, command = run_to_end(tmp_path, *RUN, "--fresh")
    assert code == ExitCode.OK
    assert "--fresh: a file that the script itself saves stays; name it in snapshot.files" in (
        command.output
    )
