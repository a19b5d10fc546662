"""Examples that are started in different ways: each loses a node, goes on, and computes right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpjob_operator.api import jobfile
from support.driving import Run, in_background
from support.playing import EXAMPLES, playing, said, told

JOBS = [path for path in sorted(EXAMPLES.glob("*/*.yaml")) if "kind: DDPJob" in path.read_text()]
LEARNT = r"rank (\d) of {} learnt 3\.000 -2\.000 1\.000"
# Of the job files of 01-torchrun: an epoch has a quarter of its steps.
FEW_STEPS = ('"10"]', '"10", --batch_size=128]')
FEW_STEPS_BY_HAND = ("train.py 50 10", "train.py 50 10 --batch_size=128")
# The file says --nproc_per_node=gpu, which torchrun refuses where there is none.
WITHOUT_GPUS = ('gpu, train.py, "50", "10"]', '2, train.py, "50", "10", --batch_size=128]')
LAUNCH = "[python, -m, torch.distributed.launch, train.py, --epochs=20]"


def test_every_example_has_a_test() -> None:
    """And the page of all examples names it."""
    tests = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    page = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.glob("*/"):
        assert f'"{path.name}' in tests, path.name
        assert f"]({path.name})" in page, path.name


@pytest.mark.parametrize("path", JOBS, ids=lambda path: f"{path.parent.name}_{path.stem}")
def test_every_job_of_an_example_is_valid(path: Path) -> None:
    assert jobfile.parse(path.read_text()).spec.groups()


@pytest.mark.parametrize(
    ("path", "nodes", "job"),
    [
        pytest.param("01-torchrun", 2, FEW_STEPS, id="torchrun"),
        pytest.param("01-torchrun/by-hand.yaml", 2, FEW_STEPS_BY_HAND, id="by_hand"),
        pytest.param("01-torchrun/standalone.yaml", 1, WITHOUT_GPUS, id="standalone"),
    ],
)
def test_an_unmodified_script_resumes_from_its_own_file(
    tmp_path: Path, path: str, nodes: int, job: tuple[str, str]
) -> None:
    """In the style of PyTorch's tutorial: `torchrun train.py 50 10`."""
    script = (EXAMPLES / "01-torchrun" / "train.py").read_text()
    assert not re.search("import.*ddpjob|DDPJOB", script)

    @in_background
    async def test(folder: Path) -> None:
        async with playing(folder, path, nodes, job=job) as run:
            await run.until((folder / "snapshot.pt").exists, "its first snapshot")
            run.backend.nodes.kill(f"node-{nodes - 1}")
            if nodes == 1:
                run.backend.nodes.add()
            await run.until(lambda: len(run.report.memberships) == 2, "a membership of one")
            # Once in a while torch itself aborts a process that has finished (docs/failures.md):
            # the job then starts again, finds all done and completes.
            assert await run.finish() == "Complete", run.story()
            check_epochs(run)

    test(tmp_path)


def check_epochs(run: Run) -> None:
    (epoch, rest), *_ = re.findall(
        r"rank 0\] resuming after epoch (\d+)(.*?)(?=rank 0\] resuming|\n---|\Z)",
        run.output(),
        re.DOTALL,
    )
    assert int(epoch) % 10 == 0, "a multiple of its interval"
    done = [int(each) for each in re.findall(r"rank 0\] epoch (\d+)", rest)]
    assert done == list(range(int(epoch) + 1, 51)), "every epoch after it, once"


@in_background
async def test_distributed_launch_passes_each_process_its_local_rank(tmp_path: Path) -> None:
    async with playing(tmp_path, "06-distributed-launch", command=LAUNCH) as run:
        await said(run, "epoch 3 ")
        run.backend.nodes.kill("node-1")
        assert await run.finish() == "Complete", run.story()
        place = r"rank (\d) of {} was told its local rank (\d)"
        assert told(run, place.format(4)) == {(0, 0), (1, 1), (2, 0), (3, 1)}
        assert told(run, place.format(2)) == {(0, 0), (1, 1)}
        assert told(run, LEARNT.format(2)) == {(0,), (1,)}, run.story()


@in_background
async def test_distributed_launch_with_the_place_in_the_environment(tmp_path: Path) -> None:
    command = "[python, -m, torch.distributed.launch, --use_env, train.py, --epochs=6]"
    async with playing(tmp_path, "06-distributed-launch", command=command) as run:
        assert await run.finish() == "Complete", run.story()
        assert told(run, r"rank (\d) of 4 found its local rank (\d)") == {
            (0, 0), (1, 1), (2, 0), (3, 1),
        }  # fmt: skip
        assert told(run, LEARNT.format(4)) == {(0,), (1,), (2,), (3,)}, run.story()


@in_background
async def test_spawned_processes_meet_those_of_other_workers(tmp_path: Path) -> None:
    async with playing(tmp_path, "07-spawn") as run:
        await said(run, "epoch 10 .* saved")
        run.backend.nodes.kill("node-1")
        assert await run.finish() == "Complete", run.story()
        assert told(run, r"rank (\d) of 4 begins after epoch 0") == {(0,), (1,), (2,), (3,)}
        begun = told(run, r"rank (\d) of 2 begins after epoch (\d+)")
        assert {rank for rank, _ in begun} == {0, 1}
        assert all(epoch >= 10 and epoch % 5 == 0 for _, epoch in begun)
        assert told(run, LEARNT.format(2)) == {(0,), (1,)}, run.story()


@in_background
async def test_data_parallel_moves_to_another_node(tmp_path: Path) -> None:
    async with playing(tmp_path, "08-data-parallel", nodes=1) as run:
        await said(run, "epoch 5 ")
        run.backend.nodes.kill("node-0")
        run.backend.nodes.add()
        assert await run.finish() == "Complete", run.story()
        assert max(told(run, r"1 device\(s\) after epoch (\d+)"))[0] >= 5
        (accuracy,) = re.findall(r"accuracy (\d\.\d+)", run.output())
        assert float(accuracy) > 0.9


@in_background
async def test_job_waits_for_the_parameter_server_and_resumes(tmp_path: Path) -> None:
    async with playing(tmp_path, "14-parameter-server", nodes=3) as run:
        await said(run, r"server \| 300 updates")
        server = next(
            pod for pod in run.backend.nodes.pods.values() if pod.created.group == "server"
        )
        assert server.node is not None
        run.backend.nodes.kill(server.node)
        await run.until(
            lambda: "0 of at least 1 worker of probe-server" in run.report.reason, "no server"
        )
        run.backend.nodes.add()
        assert await run.finish() == "Complete", run.story()
        learnt = re.findall(r"server \| after \d+ updates: (\S+) (\S+) (\S+)", run.output())
        assert [float(each) for each in learnt[-1]] == pytest.approx([3, -2, 1], abs=0.05)
        # On a slow machine the first start fails once: a worker asks before the store listens.
        causes = [cause for cause, _ in run.history() if cause != "failed"]
        assert causes[:2] == ["started", "lost"], run.story()
