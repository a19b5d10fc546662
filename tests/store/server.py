"""A real S3 server on loopback: versitygw over a folder, with whole signatures and conditional puts.

It can be stopped and started again with what it holds.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

from ddpjob_operator.local.simulated.rendezvous_process import free_port

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120.0  # generous: the machine may be slow and shared
POLL_SECONDS = 0.05
KEY, SECRET = "tester", "a-secret-of-the-tests"
OTHER, OTHERS_SECRET = "stranger", "another-secret"  # a user without any rights


def build_program() -> Path:
    """`make test-local` has built it, else this takes a minute or two."""
    command = [str(ROOT / "tools" / "kind" / "binaries.sh"), "versitygw"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, "tools/kind/binaries.sh failed, see above"
    return Path(done.stdout.strip()) / "versitygw"


class Server:
    """One server; killed by stop(), as a crash would."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("data", "metadata", "users"):
            (folder / name).mkdir(parents=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables that name the server and sign in."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def bucket(self, name: str) -> None:
        """A new one."""
        (self._folder / "data" / name).mkdir()

    def requests(self) -> list[tuple[str, str]]:
        """Operation and object of all requests that were answered, such as s3_GetObject."""
        words = (line.split() for line in self._log("access").read_text().splitlines())
        return [(each[7].removeprefix("s3_"), each[8]) for each in words if len(each) > 8]

    def start(self) -> None:
        """Returns when it answers."""
        arguments = (
            *("--port", f"127.0.0.1:{self._port}", "--quiet"),
            *("--iam-dir", self._folder / "users", "--access-log", self._log("access")),
            *("posix", "--sidecar", self._folder / "metadata", self._folder / "data"),
        )
        with self._log("output").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, *arguments],
                env={**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"versitygw did not start: {self._log('output').read_text()}")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Stop the server, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def admit_stranger(self) -> None:
        """Add a user without access to any bucket."""
        subprocess.run(
            [
                *(self._program, "admin", "--access", KEY, "--secret", SECRET),
                *("--endpoint-url", self.url, "create-user"),
                *("--access", OTHER, "--secret", OTHERS_SECRET, "--role", "user"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=5).close()
        except OSError:
            return False
        return True

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"
