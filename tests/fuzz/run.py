"""Looks for inputs that break a reader of foreign bytes, guided by coverage (atheris): `make fuzz`.

    python tests/fuzz/run.py TARGET --seconds 600

Without TARGET, all targets are fuzzed, one after another. New inputs are in build/fuzz/TARGET/inputs.
If an input fails, the run of its target ends, and the input is in build/fuzz/TARGET/found. An input
fails if its reader raises anything but a refusal, takes more than TIMEOUT_SECONDS, or takes too much
memory. `--input FILE` reads one input. `--keep` writes the fewest inputs that reach the same code to
tests/fuzz/corpora/TARGET.txt, which test_corpora.py reads.
"""

from __future__ import annotations

import argparse
import logging
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / each) for each in ("operator", "trainer-image", "tests")]
PACKAGES = [
    "ddpjob_agent",
    "ddpjob_operator",
    "ddpjob_protocol",
    "ddpjob_trainer",
    "yaml",
    "zipfile",
]
TIMEOUT_SECONDS = 60  # of one input, on a busy machine
RSS_MB = 1024
DATA_BYTES = 4 << 30  # so that one large allocation fails, too
FIGURES = {
    "cases": r"stat::number_of_executed_units: (\d+)",
    "edges": r"cov: (\d+)",
    "MB": r"stat::peak_rss_mb: +(\d+)",
}

with atheris.instrument_imports(include=PACKAGES):
    from fuzz import corpus
    from fuzz.mutating import Mutator
    from fuzz.target import MODULES, Target, find


def main() -> int:
    """Run what is asked for; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", nargs="?", choices=sorted(MODULES))
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--cases", type=int, default=-1, help="end after this number of inputs")
    parser.add_argument("--keep", action="store_true", help="write the committed inputs")
    parser.add_argument("--input", type=Path, help="read only this file")
    parser.add_argument("--libfuzzer", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.target is None:
        rest = [f"--seconds={options.seconds}", f"--cases={options.cases}"]
        return max([fuzz_apart(name, rest) for name in sorted(MODULES)])
    folder = ROOT / "build" / "fuzz" / options.target
    if options.keep:
        return keep(options.target, folder)
    logging.getLogger().addHandler(logging.NullHandler())
    with atheris.instrument_imports(include=PACKAGES):
        target = find(options.target)
    if options.input:
        target.run(options.input.read_bytes())
        return 0
    for inner in ("inputs", "found"):
        (folder / inner).mkdir(parents=True, exist_ok=True)
    corpus.unpack([*target.seeds, *corpus.read(target.name)], folder / "inputs")
    arguments = options.libfuzzer or [
        str(folder / "inputs"), f"-max_total_time={options.seconds}", f"-runs={options.cases}",
        f"-timeout={TIMEOUT_SECONDS}", f"-max_len={target.max_bytes}", f"-artifact_prefix={folder}/found/",
        "-print_final_stats=1",
    ]  # fmt: skip
    fuzz(target, [f"-rss_limit_mb={RSS_MB}", *arguments])
    return 0


def fuzz(target: Target, arguments: list[str]) -> None:
    """Fuzz until the time is over; this process ends here."""

    def mutate(data: bytes, size: int) -> bytes:
        changed: bytes = atheris.Mutate(data, size)  # `Fuzz` replaces the function
        return changed

    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    mutator = Mutator(target, mutate)
    atheris.Setup([sys.argv[0], *arguments], target.run, custom_mutator=mutator.change)
    atheris.Fuzz()


def fuzz_apart(name: str, arguments: list[str]) -> int:
    """Fuzz a target in a process of its own; print its figures, and its output if it fails."""
    started = time.monotonic()
    command = [sys.executable, __file__, name, *arguments]
    done = subprocess.run(command, check=False, text=True, capture_output=True)
    said = done.stdout + done.stderr
    found = {unit: re.findall(pattern, said) for unit, pattern in FIGURES.items()}
    figures = ", ".join(
        f"{int(numbers[-1]):,} {unit}" for unit, numbers in found.items() if numbers
    )
    verdict = "failed" if done.returncode else "passed"
    print(f"{name}: {verdict}; {figures}, {time.monotonic() - started:.0f} s", flush=True)
    if done.returncode:
        print(said[-4000:], flush=True)
    return min(done.returncode, 1)


def keep(name: str, folder: Path) -> int:
    """Write the fewest inputs that reach the same code as all of them, and the seeds' code."""
    merged = folder / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    arguments = ["--libfuzzer", "-set_cover_merge=1", str(merged), str(folder / "inputs")]
    done = subprocess.run([sys.executable, __file__, name, *arguments], check=False)
    corpus.write(name, (each.read_bytes() for each in merged.iterdir()))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
