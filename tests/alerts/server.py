"""A Prometheus server of a test: scrapes one address, evaluates the chart's alerts, answers queries."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ddpjob_operator.local.simulated.rendezvous_process import free_port

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "charts" / "ddpjob-operator" / "files"
ALERTS = FILES / "alerts.yaml"
PATIENCE_SECONDS = 120.0
# Prometheus adds them to each series and each histogram.
OWN_LABELS = frozenset(["__name__", "instance", "job", "le"])


def build_programs(*names: str) -> Path:
    """The folder where they are; this takes minutes if they are not built yet."""
    build: list[str | Path] = [ROOT / "tools" / "kind" / "binaries.sh", *names]
    done = subprocess.run(build, check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip())


class Prometheus:
    """The HTTP API of a running server."""

    def __init__(self, port: int, log: Path) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self.log = log

    def get(self, path: str, **query: str) -> Any:
        """The data of an answer; an error of the query is an error of the test."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                content = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from error
        assert not content.get("warnings"), (query, content["warnings"])
        return content["data"]

    def ask(self, query: str, at: float) -> list[dict[str, Any]]:
        """The series that a query gives at a time."""
        found: list[dict[str, Any]] = self.get("query", query=query, time=str(at))["result"]
        return found

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=10):
                return True
        except OSError:
            return False


@contextlib.contextmanager
def prometheus(folder: Path, address: str) -> Iterator[Prometheus]:
    """Scrape an address as the chart's monitors have it done, for as long as the `with` lasts."""
    program = build_programs("prometheus") / "prometheus"
    config = {
        "global": {"scrape_interval": "250ms", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [
            {
                "job_name": "operator",
                "honor_labels": True,
                "scrape_timeout": "250ms",
                "static_configs": [{"targets": [address]}],
            }
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    log, port = folder / "prometheus.log", free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                "setpriv", "--pdeathsig", "KILL", program,
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            cwd=folder, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        server = Prometheus(port, log)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not server.is_ready():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield server
    finally:
        process.terminate()
        process.wait()
