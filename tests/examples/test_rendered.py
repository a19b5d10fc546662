"""Examples for devices that are not here: their scripts compile, and ask for what jobs provide.

The pods that are made of their files are checked in `tests/operator/manifests/test_build_kinds.py`.
"""

from __future__ import annotations

import ast

from support.playing import EXAMPLES


def test_script_for_xla_finds_its_backend_and_nothing_of_ours() -> None:
    tree = ast.parse((EXAMPLES / "15-xla" / "train.py").read_text())
    imported = {
        alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert "torch_xla" in imported
    assert not [name for name in imported if name.startswith("ddpjob")]
