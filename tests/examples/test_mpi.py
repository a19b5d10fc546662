"""Real Open MPI over several workers, which it reaches through their agents."""

from __future__ import annotations

import re
from pathlib import Path

from support.driving import Run, in_background, job_text, running
from support.playing import playing, said, told

# The second mpirun of one command; where its processes are, by the environment of their workers.
WHERE = """
    import os
    rank, size = os.environ["OMPI_COMM_WORLD_RANK"], os.environ["OMPI_COMM_WORLD_SIZE"]
    print(f"run {os.environ['RUN']}: {rank} of {size} in {os.environ['DDPJOB_WORKER']}", flush=True)
"""

# So that there is time to take a worker away.
SLOW = ("optimizer.step()", "optimizer.step(); __import__('time').sleep(0.01)")


def words_of(run: Run) -> None:
    """One to one and one to all, of 3 workers with 2 processes each."""
    assert told(run, r"rank (\d) of 6 heard (\d+) from (\d)") == {
        (rank, (rank - 1) % 6 * ((rank - 1) % 6), (rank - 1) % 6) for rank in range(6)
    }
    ranks = told(run, r"rank (\d) of 6 has \[0\.0, 1\.0, 2\.0, 3\.0\]")
    assert ranks == {(rank,) for rank in range(6)}


@in_background
async def test_resumes_in_the_remaining_slots_when_the_first_worker_is_lost(
    tmp_path: Path,
) -> None:
    async with playing(tmp_path, "10-mpi", nodes=3) as run:
        await said(run, r"epoch \d+0 \|")
        words_of(run)
        run.backend.nodes.kill("node-0")
        assert await run.finish() == "Complete", run.story()
        (begun,) = told(run, r"4 processes begin after epoch (\d+)")
        assert begun[0] >= 20
        learnt = re.findall(r"rank (\d) of 4 learnt 3\.000 -2\.000 1\.000", run.output())
        assert sorted(learnt) == ["0", "1", "2", "3"]


@in_background
async def test_a_process_that_is_lost_is_named_and_all_start_again(tmp_path: Path) -> None:
    async with playing(tmp_path, "10-mpi", nodes=3) as run:
        await said(run, r"epoch \d+0 \|")
        run.backend.nodes.kill_process("node-2")
        assert await run.finish() == "Complete", run.story()
        assert [cause for cause, _ in run.history()] == ["started", "failed"]
        assert len(told(run, r"6 processes begin after epoch (\d+)")) == 2


@in_background
async def test_a_shells_mpiruns_fill_the_slots_of_workers_of_different_sizes(
    tmp_path: Path,
) -> None:
    command = (
        "mpirun -x RUN=1 python train.py && "
        "mpirun -x RUN=2 --host probe-small-000-1,probe-worker-000-1 python train.py"
    )
    text = job_text(
        f"[sh, -c, '{command}']",
        launcher="mpi",
        replicas=1,
        processesPerWorker=2,
        extraWorkerGroups="[{name: small, replicas: 1, processesPerWorker: 1}]",
    )
    async with running(tmp_path, text, nodes=2, script=WHERE) as run:
        assert await run.finish() == "Complete", run.story()
        found = re.findall(r"run (\d): (\d) of (\d) in (\S+)", run.output())
        big, small = "probe-worker-000-1", "probe-small-000-1"
        assert sorted(rank for run, rank, size, _ in found if (run, size) == ("1", "3")) == list(
            "012"
        )
        assert sorted(worker for run, *_, worker in found if run == "1") == [small, big, big]
        assert {worker for run, *_, worker in found if run == "2"} == {small, big}


@in_background
async def test_a_failure_is_reported_with_its_rank(tmp_path: Path) -> None:
    script = """
        import os
        if os.environ["OMPI_COMM_WORLD_RANK"] == "3":
            raise SystemExit("there is no sample 12")
    """
    text = job_text(
        "[mpirun, python, train.py]",
        launcher="mpi",
        replicas=2,
        processesPerWorker=2,
        failurePolicy="{maxRestarts: {application: 0}}",
    )
    async with running(tmp_path, text, nodes=2, script=script) as run:
        assert await run.finish() == "Failed", run.story()
        said_so = "rank 3 ended with exit code 1; last on stderr: there is no sample 12"
        assert said_so in run.backend.status.to_json()["conditions"][-1]["message"] or run.story()


@in_background
async def test_horovods_script_resumes(tmp_path: Path) -> None:
    """Over the real MPI; what Horovod does is done by a stand-in.

    One process for each worker, because each process imports torch.
    """
    text = f"[mpirun, -x, 'PYTHONPATH={Path(__file__).parent / 'standins'}', python, train.py]"
    single = ("processesPerWorker: 2", "processesPerWorker: 1")
    async with playing(tmp_path, "21-horovod", 3, text, change=SLOW, job=single) as run:
        await said(run, r"3 processes \| epoch 5 ")
        run.backend.nodes.kill("node-1")
        assert await run.finish() == "Complete", run.story()
        epochs = {epoch for (epoch,) in told(run, r"2 processes \| epoch (\d+) ")}
        assert max(epochs) == 50
        assert min(epochs) >= 5
        (loss,) = re.findall(r"epoch 50 \| loss (\S+)", run.output())
        assert float(loss) < 1e-3
