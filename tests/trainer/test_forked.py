"""Programs that are forked are as good as executed ones, and one's misfortune is not another's."""

from __future__ import annotations

import socket
from pathlib import Path

from support.forked import Forks


def test_who_hangs_up_without_listening_harms_nobody(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(forks.path))
    connection.recv(1)
    connection.close()
    script = tmp_path / "script.py"
    script.write_text("import os; os._exit(3)")
    assert forks.start(script, env=python_env).wait() == 3
