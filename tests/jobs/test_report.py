"""The page of a run: live during a change, and as a file afterwards."""

from __future__ import annotations

import json
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from ddpjob_operator.cli.common import ExitCode
from ddpjob_protocol.environment import ENV_KEYS
from ddpjob_protocol.keys.credentials import JobKey
from support.command import RUN, Command, in_process, run_to_end, started, write_job
from support.key_traces import keys_from, keys_in, keys_of

STEPS = """
    import json, os, pathlib, socket, sys, time
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    def report(**what):
        agent.sendto(json.dumps(what).encode(), os.environ["DDPJOB_REPORT_SOCKET"])
    step = 0
    while not pathlib.Path("end").exists():
        step += 1
        report(event="step", step=step, total=1000, metrics={"<loss>": 1 / step})
        time.sleep(0.02)
"""


def fetch(url: str, host: str | None = None) -> str:
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def test_the_page_follows_the_run_and_stays_as_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(tmp_path, "[python3, train.py]", STEPS, replicas=2)
    with started(tmp_path, *RUN, "--web", "--chaos", "kill=step5") as command:

        def address() -> Any:
            return re.search(
                r"^page of the run: (http://127\.0\.0\.1:\d+/)$", command.output, re.MULTILINE
            )

        command.until(address, "an address")
        url = address()[1]
        assert "<noscript>" in fetch(url)

        def shown() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(fetch(f"{url}run.json"))
            return found

        command.until(lambda: "lost probe-worker" in shown()["main"], "the change on the page")
        assert "kill on node-" in shown()["main"]
        for path, host in (("", "evil.example"), ("other", None)):
            with pytest.raises(urllib.error.HTTPError, match=r"421|404"):
                fetch(url + path, host)
        command.until(lambda: command.report["memberships"][-1]["first_step"], "a step again")
        key = key_of_the_service(command)
        online = "\n".join([fetch(url), *shown().values()])
        (tmp_path / "end").touch()
        last = shown()
        while not last["ended"]:
            last = shown()
        assert last["title"] == "probe: Complete"
        assert command.wait() == ExitCode.OK, command.output
    code, printed = in_process(tmp_path, monkeypatch, capsys, "report", ".")
    assert (code, printed) == (ExitCode.OK, "probe.html\n")
    page = (tmp_path / "probe.html").read_text()
    assert "&lt;loss&gt; over steps" in page
    assert page.count('class="band lost"') >= 1
    assert "Goodput" in page
    assert "<script" not in page
    files = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    everything = "\n".join([online, *files])
    workers = set(re.findall(r"probe-worker-\d+-\d+", everything))
    assert len(workers) == 3, "two, and a replacement"
    keys = keys_of(key, workers)
    assert keys_in(everything, keys) == set()
    assert keys_from(everything, keys, []) == set()


def key_of_the_service(command: Command) -> JobKey:
    """Read the only file of keys of a run that stays: its service reads it at each start."""
    given = [process.environ().get(ENV_KEYS, "") for process in command.processes()]
    [path] = {each for each in given if Path(each).is_file()}
    return JobKey.parse(Path(path).read_text())


def test_a_port_of_the_page_that_is_in_use_is_named(tmp_path: Path) -> None:
    write_job(tmp_path, "[python3, train.py]", STEPS)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, command = run_to_end(tmp_path, *RUN, "--web-port", str(port))
    assert code == ExitCode.PORT_IN_USE
    assert f"--web-port {port}: the port is in use; choose another one" in command.output
    assert "Traceback" not in command.output


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (".", ". has no run; give the folder that `ddpjob run --local` prints"),
        (
            "./missing",
            "there is no folder ./missing; give the folder of a run, or the name of a job",
        ),
    ],
)
def test_a_folder_without_a_run_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
    message: str,
) -> None:
    code, printed = in_process(tmp_path, monkeypatch, capsys, "report", target)
    assert code == ExitCode.INVALID
    assert message in printed
