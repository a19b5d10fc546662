"""`ddpjob snapshots`: list, verify, prune and export snapshots in a directory or an object store.

Only prune deletes snapshots, and only export writes a file. Running jobs are not disturbed.
`list` does not import torch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots import exporting, listing
from ddpjob_trainer.snapshots.model.manifest import UnusableError
from ddpjob_trainer.snapshots.storage import resolve
from ddpjob_trainer.snapshots.storage.bucket import StoreError
from ddpjob_trainer.snapshots.storage.directory import DirectoryFiles
from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage

OUTPUT_FAILED = 74  # as of `ddpjob`
BROKEN_PIPE = 141


def main(arguments: list[str] | None = None) -> int:
    """Return exit code 0, or 1 if a snapshot is damaged or missing; argparse exits with 2."""
    given = _parser().parse_args(arguments)
    try:
        storage = resolve.resolve_storage(given.storage, getattr(given, "keep", 1))
    except SnapshotError as error:
        print(error, file=sys.stderr)
        return 1
    if isinstance(storage.files, DirectoryFiles) and not storage.files.directory.is_dir():
        print(f"there is no directory {storage.where}", file=sys.stderr)
        return 1
    try:
        code: int = given.command(given, storage)
    except StoreError as error:
        print(f"{storage.where}: {error}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ddpjob snapshots", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, does: Any, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "storage", metavar="DIR|URI", help="a directory, or as in s3://bucket/jobs/digits"
        )
        command.set_defaults(command=does)
        return command

    listed = add("list", _list, "Show steps, sizes, ages, writers, and what does not count.")
    listed.add_argument("-o", "--output", choices=["json"], help="form; default: a table")
    verify = add("verify", _verify, "Read every byte, and compare checksums.")
    verify.add_argument("--step", type=int, help="only this one")
    prune = add("prune", _prune, "Delete old snapshots, and those that do not count.")
    prune.add_argument(
        "--keep", type=_positive, required=True, help="number of the newest snapshots to keep"
    )
    export = add("export", _export, "Write the model in a format that other programs read.")
    export.add_argument("file", type=Path, help="to be written; there may be none yet")
    export.add_argument(
        "--format", choices=exporting.FORMATS, default="torch",
        help="torch: for torch.load(FILE, weights_only=True); safetensors; dcp: a directory for "
        "torch.distributed.checkpoint; default: torch",
    )  # fmt: skip
    export.add_argument("--step", type=int, help="instead of the newest")
    export.add_argument("--all", action="store_true", help="everything, not only the model")
    return parser


def _list(given: argparse.Namespace, storage: SnapshotStorage) -> int:
    entries = listing.read_entries(storage)
    if given.output == "json":
        _print(listing.build_json(entries))
    elif entries:
        _print("\n".join(listing.build_table(entries, time.time())))
    else:
        print(f"no snapshots in {storage.where}", file=sys.stderr)
    return 0


def _verify(given: argparse.Namespace, storage: SnapshotStorage) -> int:
    bad, steps = 0, storage.all_steps()
    if given.step is not None:
        steps = [step for step in steps if step == given.step]
    for step in steps:
        try:
            storage.check(step)
        except UnusableError as why:
            bad += 1
            _print(f"{step:>12}  {why}")
        else:
            _print(f"{step:>12}  whole")
    if not steps:
        print("there is no such snapshot", file=sys.stderr)
    return 1 if bad or not steps else 0


def _prune(given: argparse.Namespace, storage: SnapshotStorage) -> int:
    del given
    for step in storage.prune():
        _print(f"{step:>12}  deleted")
    return 0


def _export(given: argparse.Namespace, storage: SnapshotStorage) -> int:
    steps = storage.complete() if given.step is None else [given.step]
    if not steps:
        print(f"there is no whole snapshot in {storage.where}", file=sys.stderr)
        return 1
    if given.file.exists():
        print(f"{given.file} is there already: choose another name", file=sys.stderr)
        return 1
    try:
        state = storage.read(steps[0])
    except UnusableError as why:
        print(f"{storage.name(steps[0])}: {why}", file=sys.stderr)
        return 1
    content = {"step": steps[0], **state} if given.all else state["model"]
    try:
        exporting.write(content, given.file, given.format)
    except SnapshotError as error:
        print(error, file=sys.stderr)
        return 1
    _print(f"step {steps[0]} is in {given.file}")
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one must stay")
    return number


class _OutputError(Exception):
    """Standard output cannot be written."""


def _print(text: str = "", end: str = "\n") -> None:
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        raise _OutputError from error


def run() -> int:
    """Run main(). Return 74 if standard output cannot be written, 141 if its reader has gone."""
    try:
        try:
            return main()
        finally:
            _print(end="")  # what argparse has printed
    except _OutputError as error:
        cause = error.__cause__
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the end of Python
        if isinstance(cause, BrokenPipeError):
            return BROKEN_PIPE
        with contextlib.suppress(OSError):
            text = f"stdout cannot be written: {cause}; the output is incomplete"
            print(text, file=sys.stderr, flush=True)
        return OUTPUT_FAILED


if __name__ == "__main__":
    sys.exit(run())
