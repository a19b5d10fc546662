"""Runs train.py from one process to several workers, and reports throughput and efficiency.

    scaling.py 1x1 1x2 2x2          # workers x processes of each
    scaling.py --per-process 1x1 2x1

Prints a table, and draws it into scaling.svg where matplotlib is installed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def measure(workers, processes, arguments):
    """Run the job once; return its report."""
    with open(f"{HERE}/ddpjob.yaml", encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"(?m)^  replicas: .*$", f"  replicas: {workers}", text)
    text = re.sub(r"(?m)^  processesPerWorker: .*$", f"  processesPerWorker: {processes}", text)
    text = text.replace("train.py]", ", ".join(["train.py", *arguments]) + "]")
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/ddpjob.yaml", "w", encoding="utf-8") as file:
            file.write(text)
        ddpjob = os.path.join(os.path.dirname(sys.executable), "ddpjob")
        command = [ddpjob, "run", "--local", file.name, "--workdir", HERE, "--state-dir", folder]
        done = subprocess.run(command, capture_output=True, check=False, text=True)
        if done.returncode != 0:
            sys.exit(f"{workers}x{processes} failed:\n{done.stdout}{done.stderr}")
        with open(f"{folder}/default/scaling/report.json", encoding="utf-8") as file:
            return json.load(file)["metrics"]


def table(rows):
    """Efficiency: speed per process, beside that of the first row."""
    lines = ["| workers x processes | batch | samples/s | speed-up | efficiency |"]
    lines.append("|---|---|---|---|---|")
    first = rows[0][1]
    for size, found in rows:
        gain = found["samples_per_second"] / first["samples_per_second"]
        efficiency = gain / (found["processes"] / first["processes"])
        speed = found["samples_per_second"]
        lines.append(
            f"| {size} | {found['batch']:.0f} | {speed:.0f} | {gain:.2f} | {efficiency:.0%} |"
        )
    return "\n".join(lines)


def draw(rows, path):
    """Speed over processes, and the line that no cost would give."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - the table does without

    processes = [found["processes"] for _, found in rows]
    speeds = [found["samples_per_second"] for _, found in rows]
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    ideal = [speeds[0] * each / processes[0] for each in processes]
    axes.plot(processes, ideal, color="#b0b0b0", label="without cost")
    axes.plot(processes, speeds, "o-", color="#1f6fb4", label="measured")
    axes.set_xlabel("processes")
    axes.set_ylabel("samples/s")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, format="svg")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", default=["1x1", "1x2", "2x2"])
    parser.add_argument("--per-process", action="store_true")
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    arguments = [f"--steps={args.steps}", *(["--per-process"] if args.per_process else [])]
    rows = []
    for size in args.sizes:
        workers, processes = map(int, size.split("x"))
        rows.append((size, measure(workers, processes, arguments)))
    print(table(rows))
    try:
        draw(rows, "scaling.svg")
    except ImportError:
        print("no plot: matplotlib is not installed")


if __name__ == "__main__":
    main()
