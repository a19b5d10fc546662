"""The operator's secret key, from which the keys of all jobs are derived.

If the key changes and the earlier one is not given, too, the pods of every job are replaced. So it
has to outlive the operator: the chart keeps it in a Secret. An operator outside a cluster keeps it in a file of its user.
May not: log the key or send it.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from ddpjob_operator.kube.auth import in_pod

MIN_KEY_BYTES = 32
MAX_KEY_BYTES = 4096


class OperatorKeyError(OSError):
    """The operator has no key that it can use; the message names the remedy."""


def read_operator_key(path: str | None) -> bytes:
    """Return the key in a file; without a path, that of this user. Raise OperatorKeyError."""
    if path is None and in_pod():
        raise OperatorKeyError(
            "no key of the operator: in a cluster, give --key-file with a file from a Secret; the"
            " chart does so. A key that ends with the pod would replace the pods of every job"
        )
    file = Path(path) if path else _users_file()
    try:
        if path is None:
            _make(file)
        with file.open("rb") as stream:
            key = stream.read(MAX_KEY_BYTES).strip()
    except OSError as error:
        raise OperatorKeyError(
            f"cannot read the operator's key from {file}: {error.strerror}; give --key-file, or"
            " --previous-key-file, a file that the operator can read"
        ) from error
    if len(key) < MIN_KEY_BYTES:
        raise OperatorKeyError(
            f"{file} has {len(key)} bytes, but the operator's key needs at least {MIN_KEY_BYTES};"
            " make one with: openssl rand -hex 32"
        )
    return key


def _users_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "ddpjob" / "operator.key"


def _make(file: Path) -> None:
    """Make the user's key, unless there is one."""
    if file.exists():
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    fresh.touch(mode=0o600, exist_ok=False)
    fresh.write_text(secrets.token_hex(MIN_KEY_BYTES))
    try:
        os.link(fresh, file)  # another operator of this user may be faster
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
