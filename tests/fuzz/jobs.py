"""Targets: the files that `ddpjob validate` and `ddpjob convert` read."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import typer

from ddpjob_operator.cli.common import CommandError
from ddpjob_operator.cli.files import convert_files, validate
from fuzz.target import Form, Target

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def captured() -> Iterator[None]:
    """Print to memory as a command prints to a terminal: stdout takes UTF-8 only."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield
        out.flush()


def command(run: Callable[[Path], None]) -> Callable[[bytes], None]:
    """Return a reader of bytes that runs a command with them as its file."""

    def read(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder, captured():
            file = Path(folder, "job.yaml")
            file.write_bytes(data)
            try:
                run(file)
            except typer.Exit:
                pass
            except CommandError as error:
                assert str(error)

    return read


def run_validate(file: Path) -> None:
    with contextlib.suppress(typer.Exit):
        validate.validate([file], output=validate.Output.JSON, backend=validate.Backend.LOCAL)
    validate.validate([file], backend=validate.Backend.CLUSTER)


def examples() -> Iterator[bytes]:
    """Yield some job files of the examples, each with fields of its own."""
    for path in sorted(ROOT.glob("examples/*/*.yaml")):
        data = path.read_bytes()
        if b"kind: DDPJob" in data and len(data) < 2000:
            yield data


FULL = b"""\
apiVersion: ddpjob.io/v1alpha1
kind: DDPJob
metadata: {name: digits, namespace: ml, labels: {a: b}}
spec:
  image: &i example/image
  command: [torchrun, --nproc-per-node=2, -m, train, --lr, "0.1"]
  replicas: 2
  resources: {limits: {nvidia.com/gpu: 1, cpu: 0.5}}
  env: [{name: A, value: "1"}, {name: B, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
  template: {spec: {containers: [{name: trainer, volumeMounts: [{name: v, mountPath: /v}]}]}}
  extraWorkerGroups: [{name: big, replicas: 1, image: *i, command: [mpirun, python, a.py]}]
  failurePolicy: {maxRestarts: {application: 3}, rules: [{action: FailJob, onExitCodes: {operator: In, values: [1]}}]}
  snapshot: {files: [ckpt/*.pt]}
"""

TARGETS = (
    Target(
        "validate", Form.YAML, command(run_validate), (FULL, *list(examples())[:12]), max_bytes=4096
    ),
    Target(
        "convert",
        Form.YAML,
        command(convert_files.convert),
        tuple(
            path.read_bytes() for path in sorted(ROOT.glob("tests/operator/convert/files/*.yaml"))
        ),
        max_bytes=8192,
    ),
)
