"""What users get wrong ends by itself, with the documented exit code and what to do about it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from ddpjob_operator.cli.common import ExitCode
from support.command import (
    RUN,
    in_process,
    on_small_disk,
    run_to_end,
    started,
    without_capabilities,
    write_job,
)
from support.driving import SCRIPT, job_text
from trainer.snapshots import layout

PLAIN = "[python3, train.py, end]"
TORCHRUN = "[torchrun, train.py]"
GOOD = job_text(PLAIN)
NODE = "{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}"
TEMPLATE = f"{{spec: {{containers: [{{name: trainer, env: [{NODE}]}}]}}}}"
TWINS = "[{name: a, replicas: 1}, {name: a, replicas: 1}]"


def budget(restarts: int) -> dict[str, str]:
    policy = f"{{maxRestarts: {{application: {restarts}}}, backoffSeconds: 0.1}}"
    return {"failurePolicy": policy}


# --- before anything starts -----------------------------------------------------------------------

# Job file, options of `run`, and what is printed: place or cause, then the next step.
REFUSED: list[tuple[str, str | bytes | None, str, str]] = [
    (
        "invalid_yaml",
        GOOD + "  image: [x\n  suspend: true\n",
        "",
        "job.yaml: line 9, column 10: expected ',' or ']', but got ':'",
    ),
    (
        "missing_file",
        None,
        "",
        "cannot read job.yaml: No such file or directory; give the path of a job file",
    ),
    (
        "not_utf_8",
        b"apiVersion: \xff",
        "",
        "job.yaml is not UTF-8 text (byte 13); save it as UTF-8",
    ),
    (
        "unknown_field",
        GOOD + "  replica: 2\n",
        "",
        "job.yaml: line 8: spec.replica: unknown field 'replica'; did you mean 'replicas'?",
    ),
    (
        "minimum_above_maximum",
        job_text(PLAIN, minReplicas=5, maxReplicas=4),
        "",
        (
            "job.yaml: line 7: spec.minReplicas: is 5, above maxReplicas (4); "
            "lower it or raise maxReplicas"
        ),
    ),
    (
        "zero_workers",
        job_text(PLAIN, replicas=0),
        "",
        "job.yaml: spec.replicas: is 0, and no other group has workers",
    ),
    (
        "negative_gpus",
        job_text(PLAIN, gpusPerWorker=-1),
        "",
        "job.yaml: line 7: spec.gpusPerWorker: must be at least 0, not -1",
    ),
    (
        "two_groups_of_one_name",
        job_text(PLAIN, extraWorkerGroups=TWINS),
        "",
        (
            "job.yaml: line 7: spec.extraWorkerGroups[1].name: 'a' is another group's name already; "
            "choose another one"
        ),
    ),
    (
        "no_command",
        job_text("[]"),
        "",
        (
            "job.yaml: line 6: spec.command: is missing; give what each worker runs, "
            "for example [torchrun, train.py]"
        ),
    ),
    (
        "field_of_a_later_version",
        job_text(PLAIN, scheduling="{topologyKey: zone}"),
        "",
        "job.yaml: line 7: spec.scheduling.topologyKey: is not supported by this version; remove it",
    ),
    (
        "suspended",
        job_text(PLAIN, suspend="true"),
        "",
        "job.yaml: spec.suspend is true, so there is nothing to run; set it to false",
    ),
    (
        "variable_from_elsewhere_in_a_template",
        job_text(PLAIN, template=TEMPLATE),
        "",
        "job.yaml: env NODE has valueFrom, which needs a cluster; give value instead",
    ),
    (
        "variable_from_elsewhere",
        job_text(PLAIN, env=f"[{NODE}]"),
        "",
        "job.yaml: env NODE has valueFrom, which needs a cluster; give value instead",
    ),
    (
        "no_such_program",
        job_text("[torchrum, train.py]"),
        "",
        (
            "spec.command: group worker: there is no program 'torchrum', looked in PATH; "
            "install it or correct the command"
        ),
    ),
    (
        "no_such_program_in_the_folder",
        job_text("[./train.sh]"),
        "",
        (
            "spec.command: group worker: there is no program './train.sh', looked in {folder}; "
            "install it or correct the command"
        ),
    ),
    (
        "program_that_is_not_executable",
        job_text("[./train.py]"),
        "",
        (
            "spec.command: group worker: {folder}/train.py is not executable; run `chmod +x "
            "{folder}/train.py`, or name its interpreter first, for example [bash, ./train.py]"
        ),
    ),
    (
        "program_that_is_a_folder",
        job_text("[../]"),
        "",
        "is a folder; name a program in it",
    ),
    (
        "no_such_script",
        job_text("[python3, -u, trian.py, end]"),
        "",
        (
            "spec.command: there is no script 'trian.py' (group worker, looked in {folder}); "
            "correct the command, or pass --workdir"
        ),
    ),
    (
        "no_such_script_below_torchrun",
        job_text("[torchrun, --nproc-per-node, '2', /srv/trian.py]"),
        "",
        "spec.command: there is no script '/srv/trian.py' (group worker); correct the command",
    ),
    (
        "chaos_that_cannot_be_read",
        GOOD,
        "--chaos kill",
        "--chaos: cannot read 'kill'; write ACTION[:NODE]=WHEN, for example kill=30%",
    ),
    (
        "chaos_of_no_known_kind",
        GOOD,
        "--chaos explode=3s",
        "--chaos: no action 'explode'; choose one of kill, join, drain,",
    ),
    (
        "chaos_at_no_time",
        GOOD,
        "--chaos kill=soon",
        "--chaos: cannot read the time 'soon'; write 30%, step120 or 90s",
    ),
    (
        "chaos_after_the_end",
        GOOD,
        "--chaos kill=300%",
        "--chaos: '300%' is above 100%; write at most 100%",
    ),
    (
        "workdir_that_is_not_there",
        GOOD,
        "--workdir nowhere",
        "--workdir: there is no folder {folder}/nowhere; make it or correct the path",
    ),
    (
        "state_dir_that_is_a_file",
        GOOD,
        "--state-dir job.yaml",
        (
            "cannot keep the job's state in {folder}/job.yaml/default/probe: Not a directory; "
            "repair the folder, or choose another folder with --state-dir"
        ),
    ),
    (
        "no_nodes",
        GOOD,
        "--nodes 0",
        "Invalid value for '--nodes': Input should be greater than or equal to 1",
    ),
]


@pytest.mark.parametrize(
    ("text", "options", "message"), [pytest.param(*row, id=name) for name, *row in REFUSED]
)
def test_refused_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str | bytes | None,
    options: str,
    message: str,
) -> None:
    if text is not None:
        data = text.encode() if isinstance(text, str) else text
        (tmp_path / "job.yaml").write_bytes(data)
    (tmp_path / "train.py").touch()
    code, output = in_process(tmp_path, monkeypatch, capsys, *RUN, *options.split())
    assert message.format(folder=tmp_path) in output
    assert code == ExitCode.INVALID
    assert "Traceback" not in output
    assert not (tmp_path / ".ddpjob").exists()


def test_a_folder_is_no_job_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(GOOD)
    for command in (("run", "--local", "."), ("apply", "-f", ".")):
        code, output = in_process(tmp_path, monkeypatch, capsys, *command)
        assert output == "cannot read .: it is a folder; give a file, for example job.yaml\n"
        assert code == ExitCode.INVALID


def test_folders_that_may_not_be_used_are_named_before_the_start(tmp_path: Path) -> None:
    write_job(tmp_path, PLAIN)
    logs = tmp_path / ".ddpjob" / "default" / "probe" / "logs"
    logs.mkdir(parents=True)
    (tmp_path / "locked").mkdir(mode=0o444)
    try:
        logs.chmod(0o555)
        code, command = run_to_end(tmp_path, prefix=without_capabilities())
        assert command.output == (
            f"cannot keep the job's state in {logs.parent}: Permission denied; repair the folder, or"
            " choose another folder with --state-dir\n"
        )
        assert code == ExitCode.INVALID
        code, command = run_to_end(
            tmp_path, *RUN, "--workdir", "locked", prefix=without_capabilities()
        )
        assert f"--workdir: you may not enter the folder {tmp_path}/locked; " in command.output
        assert code == ExitCode.INVALID
    finally:
        for folder in (logs, tmp_path / "locked"):
            folder.chmod(0o755)


# A Python that lost its right to be executed since `ddpjob` started.
DENIED_PYTHON = """
import sys
sys.executable = sys.argv[1]
del sys.argv[:2]
from ddpjob_operator.cli.entry import main
main()
"""


def test_an_agent_that_cannot_be_started_at_all_ends_the_run(tmp_path: Path) -> None:
    write_job(tmp_path, PLAIN)
    prefix = (sys.executable, "-c", DENIED_PYTHON, str(tmp_path / "train.py"))
    code, command = run_to_end(tmp_path, prefix=prefix)
    assert command.output.endswith(
        f"\n{tmp_path}/train.py cannot be started here: Permission denied: '{tmp_path}/train.py'. "
        "Correct the path or its permissions, and repeat the command\n"
    )
    assert code == ExitCode.INVALID


@pytest.mark.parametrize("image", [None, "trainer:1"], ids=["this_machine", "an_image_has_it"])
def test_validate_names_a_missing_script(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    image: str | None,
) -> None:
    spec = {"image": image} if image else {}
    (tmp_path / "job.yaml").write_text(job_text(TORCHRUN, **spec))
    code, output = in_process(tmp_path, monkeypatch, capsys, "validate", "job.yaml")
    assert code == ExitCode.OK
    warning = (
        "job.yaml: warning: spec.command: there is no script 'train.py' (group worker, looked in "
        f"{tmp_path}); correct the command, or pass --workdir to run --local\n"
    )
    assert (warning in output) == (image is None)


def test_without_local_the_right_command_is_shown(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(GOOD)
    code, command = run_to_end(tmp_path, "run", "job.yaml")
    assert command.output == (
        "run needs --local: ddpjob run --local job.yaml; on a cluster: ddpjob apply -f job.yaml\n"
    )
    assert code == ExitCode.INVALID


# --- scripts --------------------------------------------------------------------------------------

IMPORT = "import no_such_module_of_mine\n"
NO_MODULE = "ModuleNotFoundError: No module named 'no_such_module_of_mine'"


@pytest.mark.parametrize("restarts", [0, 2])
def test_script_that_crashes_at_import(tmp_path: Path, restarts: int) -> None:
    write_job(tmp_path, "[python3, train.py]", IMPORT, replicas=2, **budget(restarts))
    code, command = run_to_end(tmp_path)
    assert code == ExitCode.JOB_FAILED
    assert command.causes == ["started", *["failed"] * restarts]
    ending = f"{NO_MODULE} (failure {restarts + 1}, {restarts} restarts allowed)"
    assert re.search(
        rf"ApplicationFailed: the command of \S+-1: {re.escape(ending)}", command.output
    )
    where = f'\\[worker-00(.) .\\]   File "{tmp_path}/train.py", line 1, in <module>\n'
    assert re.search(where + r"\[worker-00\1 .\]     import no_", command.output)
    assert command.output.count("Traceback (most recent call last)") == 1, "told once"
    assert f"logs: {command.state}/logs" in command.output


def test_script_that_crashes_at_import_below_torchrun(tmp_path: Path) -> None:
    write_job(tmp_path, TORCHRUN, IMPORT, replicas=1, processesPerWorker=2, **budget(0))
    code, command = run_to_end(tmp_path)
    assert code == ExitCode.JOB_FAILED
    end = re.escape(f": {NO_MODULE} (failure 1, 0 restarts allowed)")
    end += r"; probe-worker-000-1 is on node \S+\n"
    end += r"rank (\d) on probe-worker-000-1 ended with exit code 1; its traceback is above\n"
    assert re.search(end, command.output)
    assert command.output.count("Traceback (most recent call last)") == 1
    assert "ChildFailedError" not in command.output, "the script's own traceback"


CRASH = """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for step in range(1, 1_000_000):
        dist.all_reduce(torch.ones(4))
        if step == 10 and dist.get_rank() == 1:
            raise ValueError(f"loss is nan at step {step}")
"""


def test_the_rank_that_crashed_is_blamed_and_not_the_one_that_died_of_it(tmp_path: Path) -> None:
    write_job(tmp_path, TORCHRUN, CRASH, replicas=2, **budget(0))
    code, command = run_to_end(tmp_path)
    assert code == ExitCode.JOB_FAILED
    blamed = r"ApplicationFailed: rank 1 \((\S+)\): ValueError: loss is nan at step 10 "
    found = re.search(blamed, command.output)
    assert found
    label = re.search(r"^(\[worker-\d+ 1\]) \[rank1\]: Traceback", command.output, re.MULTILINE)
    assert label, "the rank that torchrun assigned"
    assert f"{label[1]} [rank1]: ValueError: loss is nan at step 10\n" in command.output
    worker = f"probe-{label[1][1:-1].split()[0]}-1"
    assert found[1] == worker
    assert command.output.endswith(
        f"rank 1 on {worker} ended with exit code 1; its traceback is above\n"
        f"logs: {command.state}/logs/{worker}.log\n"
    )
    assert command.output.count("Traceback (most recent call last)") == 1
    assert "Connection closed by peer" not in command.output
    assert "Connection closed by peer" in command.logs, "rank 0 did die of it"
    assert command.report["failure"]["rank"] == 1
    assert not command.report["failure"]["secondary"]


# What the script's process says last on stderr where there is no traceback.
LAST_WORDS: list[tuple[str, str, str, str]] = [
    (
        "syntax_error",
        "[python3, train.py]",
        "step(\n",
        "-worker-000-1: SyntaxError: '(' was never closed (failure 1, 0",
    ),
    (
        "exit_with_a_message",
        "[python3, train.py]",
        "import sys\nsys.exit('set DATA to the folder of the data')\n",
        "ended with exit code 1; last on stderr: set DATA to the folder of the data (failure 1",
    ),
    (
        "silent",
        "[python3, train.py]",
        "import sys\nsys.exit(3)\n",
        "-worker-000-1 ended with exit code 3 (failure 1, 0",
    ),
    (
        "unknown_flag_of_torchrun",
        "[torchrun, --nodes-per-moon, '3', train.py]",
        "",
        "error: unrecognized arguments: --nodes-per-moon",
    ),
    (
        "not_executable",
        "[./broken]",
        "",
        "-worker-000-1 cannot start './broken': Exec format error",
    ),
]


@pytest.mark.parametrize(
    ("words", "script", "message"), [pytest.param(*row, id=name) for name, *row in LAST_WORDS]
)
def test_the_process_own_words_are_passed_on(
    tmp_path: Path, words: str, script: str, message: str
) -> None:
    write_job(tmp_path, words, script, replicas=1, **budget(0))
    (tmp_path / "broken").write_bytes(b"\x7fELF")
    (tmp_path / "broken").chmod(0o755)
    code, command = run_to_end(tmp_path)
    assert code == ExitCode.JOB_FAILED
    assert message in command.output.replace(str(tmp_path), "{folder}")
    assert command.causes == ["started"]


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        pytest.param("[sh, -c, exec python3 trian.py]", "the command of", id="python"),
        pytest.param(
            "[torchrun, --no-python, sh, -c, exec python3 trian.py]", r"rank \d", id="torchrun"
        ),
    ],
)
def test_a_script_missing_from_the_start_costs_no_restarts(
    tmp_path: Path, words: str, subject: str
) -> None:
    """A local run finds this before the start, unless a shell starts the script."""
    write_job(tmp_path, words, replicas=1, processesPerWorker=2, **budget(2))
    code, command = run_to_end(tmp_path)
    assert code == ExitCode.JOB_FAILED
    assert command.causes == ["started"]
    assert re.search(rf"CommandCannotStart: {subject}.* ended with exit code 2", command.output)
    assert (
        f"can't open file '{tmp_path}/trian.py': [Errno 2] No such file or directory (working "
        f"directory {tmp_path}); correct the script in spec.command"
    ) in command.output


def test_a_script_that_vanishes_later_may_come_back(tmp_path: Path) -> None:
    vanish = "import os, sys\nos.unlink(__file__)\nsys.exit(3)\n"
    write_job(tmp_path, "[python3, train.py]", vanish, replicas=1, **budget(1))
    code, command = run_to_end(tmp_path)
    assert code == ExitCode.JOB_FAILED
    assert command.causes == ["started", "failed"]
    assert "No such file or directory (failure 2, 1 restart allowed)" in command.output


# --- disks and snapshots --------------------------------------------------------------------------

TOO_LARGE = """
    import torch
    from ddpjob_trainer import Snapshots

    snapshots = Snapshots()
    snapshots.load(model=torch.nn.Linear(4, 4))
    snapshots.save(1, model=torch.nn.Linear(4, 4), wait=True)
    snapshots.save(2, model=torch.nn.Linear(1024, 1024), wait=True)
"""


def test_disk_too_small_for_the_snapshot(tmp_path: Path) -> None:
    write_job(tmp_path, "[python3, train.py]", TOO_LARGE, replicas=1, **budget(0))
    snapshots = tmp_path / ".ddpjob" / "default" / "probe" / "snapshots"
    code, command = run_to_end(tmp_path, prefix=on_small_disk(snapshots))
    assert code == ExitCode.JOB_FAILED
    cause, _, remedy = command.output.rpartition("it is full, and 4,")
    assert cause.endswith(f"SnapshotError: Cannot save step 2 in {snapshots}: ")
    assert remedy.partition(" bytes are needed. ")[2].startswith(
        "The snapshot of step 1 is intact. "
        "Free space there, enlarge the volume, or keep fewer snapshots. (failure 1, 0"
    )


DENIED = """
    import os
    import torch

    folder = os.environ["DDPJOB_SNAPSHOT_DIR"]
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o555)
    torch.save({}, f"{folder}/model.pt")
"""


def test_snapshots_that_may_not_be_written_cost_no_restarts(tmp_path: Path) -> None:
    write_job(tmp_path, "[python3, train.py]", DENIED, replicas=1, **budget(2))
    code, command = run_to_end(tmp_path, prefix=without_capabilities())
    assert code == ExitCode.JOB_FAILED
    assert command.causes == ["started"]
    assert "ApplicationFailed: the command of probe-worker-000-1: RuntimeError: [" in command.output
    assert f"; {command.state}/snapshots belongs to user {os.getuid()}, group " in command.output
    assert "mode 555, but the process is user" in command.output
    assert "set template.spec.securityContext.fsGroup, or change the owner" in command.output


FILL = """
    import contextlib
    blocks = open(os.environ["DDPJOB_SNAPSHOT_DIR"] + "/blocks", "wb", buffering=0)
    with contextlib.suppress(OSError):
        while True:
            blocks.write(b"x" * 4096)
    print("x" * 100_000, file=sys.stderr)
    report(event="step", step=1, total=1)
"""


def test_disk_that_fills_up_does_not_hang_the_job(tmp_path: Path) -> None:
    """Neither logs nor the record of the run can be written any more."""
    write_job(tmp_path, "[python3, train.py, job.yaml]", SCRIPT + FILL, replicas=1, **budget(0))
    code, command = run_to_end(tmp_path, prefix=on_small_disk(tmp_path / ".ddpjob"))
    assert code == ExitCode.OK, command.output
    assert "Complete" in command.output


def test_disk_that_is_full_from_the_start(tmp_path: Path) -> None:
    write_job(tmp_path, PLAIN)
    fill = ["sh", "-c", 'cat /dev/zero > .ddpjob/blocks 2> /dev/null; exec "$@"', "sh"]
    code, command = run_to_end(tmp_path, prefix=[*on_small_disk(tmp_path / ".ddpjob"), *fill])
    assert code == ExitCode.INVALID
    assert command.output == (
        f"cannot keep the job's state in {command.state}: No space left on device; repair the folder, or "
        "choose another folder with --state-dir\n"
    )


SAVES = """
    import pathlib, sys, time
    import torch
    from ddpjob_trainer import Snapshots, step_done

    torch.set_num_threads(1)
    end, model, snapshots = pathlib.Path(sys.argv[1]), torch.nn.Linear(8, 8), Snapshots()
    loaded = snapshots.load(model=model)
    step = loaded.step if loaded else 0
    while not end.exists():
        step += 1
        if snapshots.due(step):
            snapshots.save(step, model=model)
        step_done(step, 1_000_000)
        time.sleep(0.02)
"""


def interrupted_with_snapshots(folder: Path) -> list[Path]:
    """Run a job until it has saved two snapshots, and interrupt it; they are returned in order."""
    snapshot = {"snapshot": "{everySteps: 5, keep: 2}"}
    words = "[torchrun, train.py, end]"
    write_job(folder, words, SAVES, replicas=1, processesPerWorker=1, **snapshot, **budget(0))
    with started(folder) as command:
        saved = command.state / "snapshots"
        command.until(lambda: len(layout.committed(saved)) == 2, "two snapshots")
        command.process.terminate()
        assert command.wait() == ExitCode.INTERRUPTED
    return [layout.folder_of(saved, step) for step in layout.committed(saved)]


def cut_in_half(snapshot: Path) -> None:
    tensors = snapshot / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[: tensors.stat().st_size // 2])


def test_goes_on_from_the_older_snapshot_when_the_newest_was_cut_in_half(tmp_path: Path) -> None:
    older, newest = interrupted_with_snapshots(tmp_path)
    cut_in_half(newest)
    with started(tmp_path) as command:
        step = int(older.parent.name.removeprefix("step-"))
        told = f"from the snapshot of step {step}\n"
        command.until(lambda: told in command.output, told)
        (tmp_path / "end").touch()
        assert command.wait() == ExitCode.OK
    assert f"ignoring snapshot {newest}: it is damaged: tensors.safetensors has " in command.logs


def test_no_snapshot_is_whole(tmp_path: Path) -> None:
    snapshots = interrupted_with_snapshots(tmp_path)
    for each in snapshots:
        cut_in_half(each)
    code, command = run_to_end(tmp_path)
    assert code == ExitCode.JOB_FAILED
    folder = command.state / "snapshots"
    assert f"SnapshotError: There are snapshots in {folder}, but none is usable" in command.output
    for each in snapshots:
        assert f"{each}: it is damaged: tensors.safetensors has " in command.output
    assert (
        "Put back a good copy, or, to start over and lose that progress: "
        f"mv {folder} {folder}.old\n"
    ) in command.output
    assert [each for each in snapshots if each.exists()] == snapshots, "nothing was deleted"
