"""The Python of docs/live.md and docs/data.md runs, in one process, with little data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

from ddpjob_trainer import ElasticBatchSampler, Loop, Snapshots
from support.pages import ROOT, Block, blocks

TRAINER = ROOT / "trainer-image" / "ddpjob_trainer"


def python_of(page: str) -> list[Block]:
    return [each for each in blocks() if each.page == page and each.language == "python"]


LIVE = python_of("docs/live.md")
DATA = python_of("docs/data.md")
# Blocks of docs/data.md with names that the text around them leaves to the reader, by their first line.
OF_THE_READER = {
    "for inputs, targets in step.parts():": "a part of a loop",
    "loop = Loop(model, optimizer, loader=loader, epochs=10, deterministic=8)": "an option",
}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


def names(folder: Path) -> dict[str, Any]:
    """Return the variables that the pages take as given."""
    dataset = TensorDataset(torch.randn(120, 4), torch.randn(120, 2))
    model = nn.Linear(4, 2)
    batches = ElasticBatchSampler(dataset, 60)
    return {
        "dataset": dataset,
        "iterable_dataset": [(torch.randn(4), torch.randn(2)) for _ in range(120)],
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 0.01),
        "loss_fn": nn.functional.mse_loss,
        "batches": batches,
        "loader": DataLoader(dataset, batch_sampler=batches),
        "snapshots": Snapshots(folder),
        "class_weights": [1.0] * 120,
        "lengths": list(range(120)),
        "Loop": Loop,
        "DataLoader": DataLoader,
    }


def test_the_script_of_the_live_page_trains(capsys: pytest.CaptureFixture[str]) -> None:
    block = LIVE[0]
    text = block.text
    for long, short in {"6000": "600", "epochs=10": "epochs=2", "num_workers=2": ""}.items():
        assert text.count(long) == 1
        text = text.replace(long, short)
    exec(compile(text, block.place, "exec"), {})
    printed = capsys.readouterr().out
    assert [line.split()[:2] for line in printed.splitlines()] == [["epoch", "0"], ["epoch", "1"]]


def test_the_errors_on_the_live_page_have_these_words() -> None:
    section = (ROOT / "docs/live.md").read_text().partition("\n## What is refused, and why\n")[2]
    rows = re.findall(r"^\| .*? \| `(.*?)` \|", section.partition("\n## ")[0], re.MULTILINE)
    trees = [ast.parse(each.read_text()) for each in TRAINER.rglob("*.py")]
    strings = [
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert len(rows) > 15
    assert not [words for words in rows if not any(words in each for each in strings)]


@pytest.mark.parametrize(
    "block", DATA, ids=[block.text.strip().splitlines()[0][:40] for block in DATA]
)
def test_a_block_of_the_data_page_runs(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if block.text.splitlines()[0] in OF_THE_READER:
        compile(block.text, block.place, "exec")
        return
    monkeypatch.setenv("SPEED", "4")
    given = names(tmp_path)
    text = "import os\nfrom ddpjob_trainer import *\n" + block.text.replace("num_workers=4", "")
    exec(compile(text, block.place, "exec"), given)
    if "snapshots.save" in block.text:
        assert (
            given["snapshots"].load(model=given["model"], optimizer=given["optimizer"]).step == 20
        )
    if "for step in loop" in block.text:
        assert given["step"].number == 19
