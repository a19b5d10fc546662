from __future__ import annotations

import shlex

import pytest

from ddpjob_operator.api.commands.script_path import script_path

COMMANDS = [
    ("python3 train.py end.py", "train.py"),
    ("/usr/bin/python3.12 -u -W ignore ./src/train.py", "./src/train.py"),
    ("torchrun train.py --lr 1", "train.py"),
    ("/venv/bin/torchrun --nproc_per_node=2 --rdzv-backend c10d /srv/train.py", "/srv/train.py"),
    ("torchrun --standalone train.py", "train.py"),
    ("python -m torch.distributed.run --nnodes 2 train.py", "train.py"),
    ("accelerate launch --multi_gpu --mixed_precision bf16 train.py", "train.py"),
    ("mpirun -n 2 python train.py", "train.py"),
    # Nothing can be said of these.
    ("torchrun -m package.train other.py", ""),
    ("torchrun --no-python ./run other.py", ""),
    ("python -m package.train other.py", ""),
    ("python -c 'import train' other.py", ""),
    ("python run other.py", ""),
    ("python", ""),
    ("torchrun $SCRIPT.py", ""),
    ("sh -c 'torchrun train.py'", ""),
    ("./train.py", ""),
    ("accelerate config train.py", ""),
    ("accelerate launch -m package.train other.py", ""),
    ("mpirun ./run other.py", ""),
]


@pytest.mark.parametrize(("command", "script"), COMMANDS, ids=[words for words, _ in COMMANDS])
def test_the_script_of_a_command(command: str, script: str) -> None:
    assert script_path(shlex.split(command)) == script
