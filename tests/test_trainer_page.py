"""The reference of the trainer library: complete, and made without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ddpjob_trainer

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "trainer.md").read_text()
# A parameter without a sentence in the docstring is an error; so is a class without a docstring.
UNEXPLAINED = """
import sys
import ast
from tools.pages import trainer
function = ast.parse("def f(step, total):\\n  'Report that `step` steps are done.'").body[0]
try:
    list(trainer._function(function, "f"))
except ValueError as error:
    print(error)
assert trainer.build() and "torch" not in sys.modules
"""


def test_each_public_name_is_on_the_page() -> None:
    lines = PAGE.splitlines()
    assert [name for name in ddpjob_trainer.__all__ if f"### {name}" not in lines] == []


def test_a_parameter_without_an_explanation_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNEXPLAINED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "the docstring of f() does not explain `total`\n"
