"""The operator's key: read from its file, or made once for this user."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ddpjob_operator.controller.keys import operator_key
from ddpjob_operator.controller.keys.operator_key import OperatorKeyError, read_operator_key


def test_the_key_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("k" * 64 + "\n")
    assert read_operator_key(str(file)) == b"k" * 64


def test_this_users_key_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    keys = {read_operator_key(None) for _ in range(3)}
    assert len(keys) == 1
    (file,) = (tmp_path / "state" / "ddpjob").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert read_operator_key(None) not in keys


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot read the operator's key"), ("short\n", "has 5 bytes")],
)
def test_no_key_is_named_with_the_remedy(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
    with pytest.raises(OperatorKeyError, match=message):
        read_operator_key(str(file))


def test_an_operator_in_a_cluster_makes_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_key, "in_pod", lambda: True)
    with pytest.raises(OperatorKeyError, match="give --key-file"):
        read_operator_key(None)
