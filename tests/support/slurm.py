"""A real Slurm of two nodes on this machine, for as long as a test runs. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from ddpjob_operator.local.simulated.rendezvous_process import free_port

PATIENCE_SECONDS = 300.0
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "unshare")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobFileAppend=1
FirstJobId={first}
SchedulerParameters=sched_interval=2,bf_interval=2
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[0]} CPUs=1 RealMemory=500
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=500
PartitionName=main Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """A cluster on this machine, with the environment of its programs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def ask(self, *command: str, cwd: Path | None = None) -> str:
        """Return the output of a program."""
        done = subprocess.run(
            command, cwd=cwd, env=self._environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}\n{self.story()}"
        return done.stdout.strip()

    def until(self, wanted: str, *command: str) -> None:
        """Wait until a program prints this."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while wanted not in (printed := self.ask(*command)):
            assert time.monotonic() < deadline, f"never {wanted}: {printed}\n{self.story()}"
            time.sleep(0.5)

    def story(self) -> str:
        """Return its logs."""
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.log")))

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """A daemon in the foreground."""
        return subprocess.Popen(
            command, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Slurm]:
    """Two nodes, n0 and n1, which know each other by these names."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    assert not missing, (
        f"{missing} are missing: apt-get install munge slurmctld slurmd slurm-client"
    )
    assert os.geteuid() == 0, "slurmd and the nodes' names need root"
    host = socket.gethostname().partition(".")[0]
    settings = {
        "ports": [free_port(), free_port()],
        # Batch files make a port of their job's number.
        "first": next(port for port in iter(free_port, None) if 20000 < port < 30000) - 20000,
    }
    text = CONFIGURATION.format(host=host, port=free_port(), folder=folder, **settings)
    (folder / "slurm.conf").write_text(text)
    (folder / "hosts").write_text(Path("/etc/hosts").read_text() + "\n127.0.0.1 n0 n1\n")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    named = f"mount --bind {folder}/hosts /etc/hosts && exec slurmd -D -N"
    slurm = Slurm(folder)
    daemons = [
        ["munged", "--foreground", "--force", f"--key-file={key}",
         f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid",
         f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed"],
        ["slurmctld", "-D"],
        ["unshare", "--mount", "sh", "-c", f"{named} n0"],
        ["unshare", "--mount", "sh", "-c", f"{named} n1"],
    ]  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []
    try:
        started += [slurm.start(*command) for command in daemons]
        slurm.until("2 idle", "sh", "-c", "sinfo --noheader --format '%D %t' 2>&1 || true")
        yield slurm
    finally:
        with contextlib.suppress(AssertionError):
            slurm.ask("scancel", "--user=root")
            slurm.until("left: 0", "sh", "-c", "echo left: $(squeue --noheader | wc -l)")
        for daemon in reversed(started):
            daemon.terminate()
            daemon.wait()
