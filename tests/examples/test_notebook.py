"""The notebook, executed by Jupyter's kernel."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from support.examples_env import run_python
from support.playing import EXAMPLES

EXECUTE = """
import nbformat
from nbclient import NotebookClient
notebook = nbformat.read("train.ipynb", as_version=4)
NotebookClient(notebook, timeout=None, kernel_name="python3").execute()
nbformat.write(notebook, "executed.ipynb")
"""


def test_a_notebook_trains_an_elastic_job_and_shows_its_curve(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "notebook" / "train.ipynb", tmp_path)
    run_python(tmp_path, "-W", "ignore", "-c", EXECUTE)
    cells = json.loads((tmp_path / "executed.ipynb").read_text())["cells"]
    _, _, ran, drawn = [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]
    printed = "".join("".join(each["text"]) for each in ran if each["output_type"] == "stream")
    printed = re.sub(r"\x1b\[[0-9;]*m", "", printed)  # Jupyter shows colours
    for line in ("job notebook: 2 workers, 2 nodes", "chaos     kill on node-", "node-2 comes up"):
        assert line in printed
    (result,) = [each["data"]["text/plain"] for each in ran if "data" in each]
    assert "".join(result).startswith("('Complete', 200, {'loss': 0.")
    (figure,) = [each["data"] for each in drawn if "data" in each]
    assert "image/png" in figure
