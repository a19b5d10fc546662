"""The script of 01-torchrun from a batch file, under a real Slurm."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from support.playing import EXAMPLES
from support.slurm import cluster


def test_batch_file_resumes_when_slurm_requeues_the_job(tmp_path: Path) -> None:
    """As it does when a node is lost."""
    job, folder = tmp_path / "job", tmp_path / "slurm"
    folder.mkdir()
    shutil.copytree(EXAMPLES / "01-torchrun", job)
    batch = job / "slurm.sbatch"
    longer = ("train.py 50 10", "train.py 100 10 --batch_size 128")
    batch.write_text(batch.read_text().replace(*longer))
    with cluster(folder) as slurm:
        path = f"PATH={Path(sys.executable).parent}:$PATH"
        number = slurm.ask("sh", "-c", f"{path} sbatch --parsable slurm.sbatch", cwd=job)
        output = job / f"torchrun-{number}.out"
        slurm.until("epoch 12 ", "sh", "-c", f"cat {output} || true")
        slurm.ask("scontrol", "requeue", number)
        slurm.until("COMPLETED", "scontrol", "show", "job", number)
    text = output.read_text()
    for rank in (0, 1):
        epochs = [int(each) for each in re.findall(rf"rank {rank}\] epoch (\d+)", text)]
        assert sorted(set(epochs)) == list(range(1, 101)), text
    (resumed,) = {int(each) for each in re.findall(r"resuming after epoch (\d+)", text)}
    assert resumed >= 10
