"""Each alert of the chart fires once for its cause, and no other alert does: by promtool.

A scene is an hour and a half of a healthy operator with one healthy job, and one thing that is not.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from alerts.server import ALERTS, build_programs
from ddpjob_operator.controller.metrics import Metrics
from ddpjob_operator.rendezvous.session_pool import Key
from support.builders import make_job, make_report, make_status, make_worker

MINUTES = 90
JOB = 'namespace="team",name="digits"'
STATES = ("Running", "Resizing", "Stalled", "Waiting", "Pending", "Unknown", "Failed")


class Scene(NamedTuple):
    """Series instead of, or beside, the healthy ones; None removes one."""

    series: dict[str, str | None]
    silent_until: int = 0  # minute at which the alert does not fire yet
    fires_after: int = 2  # minutes later it does


def constant(value: float) -> str:
    return f"{value}x{MINUTES}"


def state(name: str) -> dict[str, str | None]:
    return {f'ddpjob_job_state{{{JOB},state="{s}"}}': constant(int(s == name)) for s in STATES}


CONTROLLER = 'controller="ddpjob"'
HEALTHY: dict[str, str | None] = {
    'ddpjob_jobs{state="Running"}': constant(1),
    'leader_election_master_status{name="ddpjob",pod="a"}': constant(1),
    'leader_election_master_status{name="ddpjob",pod="b"}': constant(0),
    'leader_election_master_status{name="other"}': constant(0),
    'ddpjob_watch_silent_seconds{resource="pods"}': constant(60),
    "ddpjob_queue_oldest_seconds": constant(0.5),
    f'controller_runtime_reconcile_total{{{CONTROLLER},result="success"}}': f"0+60x{MINUTES}",
    f"controller_runtime_reconcile_errors_total{{{CONTROLLER}}}": f"0+1x{MINUTES}",
    'rest_client_requests_total{method="GET",resource="ddpjobs",code="200"}': f"0+60x{MINUTES}",
    'rest_client_requests_total{method="POST",resource="pods",code="403"}': f"0+1x{MINUTES}",
    'rest_client_requests_total{method="GET",host="other",code="403"}': f"0+1x{MINUTES}",
    **state("Running"),
    f'ddpjob_job_memberships_total{{{JOB},cause="started"}}': constant(1),
    f'ddpjob_job_memberships_total{{{JOB},cause="joined"}}': f"0+1x{MINUTES}",
    f'ddpjob_job_memberships_total{{{JOB},cause="lost"}}': f"0 1 2 3x{MINUTES - 3}",
    f"ddpjob_job_snapshot_age_seconds{{{JOB}}}": constant(300),
    f"ddpjob_job_goodput_ratio{{{JOB}}}": constant(0.95),
    f"ddpjob_job_workers_wanted{{{JOB}}}": constant(4),
    f"ddpjob_job_workers_ready{{{JOB}}}": constant(4),
}
SCENES = {
    "DDPJobOperatorDown": Scene({'ddpjob_jobs{state="Running"}': None}, 4),
    "DDPJobOperatorNoLeader": Scene(
        {'leader_election_master_status{name="ddpjob",pod="a"}': constant(0)}, 1
    ),
    "DDPJobWatchSilent": Scene({'ddpjob_watch_silent_seconds{resource="pods"}': constant(200)}, 1),
    "DDPJobQueueSlow": Scene({"ddpjob_queue_oldest_seconds": constant(90)}, 4),
    "DDPJobReconcileErrors": Scene(
        {f"controller_runtime_reconcile_errors_total{{{CONTROLLER}}}": f"0+30x{MINUTES}"}, 14
    ),
    "DDPJobOperatorForbidden": Scene(
        {
            'rest_client_requests_total{method="GET",resource="services",code="403"}': f"0+1x{MINUTES}"
        },
        9,
    ),
    "DDPJobStalled": Scene(state("Stalled"), 9),
    "DDPJobWaiting": Scene(
        {  # from one to another of the states that wait: the time counts from the first
            **state("none"),
            f'ddpjob_job_state{{{JOB},state="Pending"}}': f"1x20 0x{MINUTES - 21}",
            f'ddpjob_job_state{{{JOB},state="Waiting"}}': f"0x20 1x{MINUTES - 21}",
        },
        29,
    ),
    "DDPJobFailed": Scene(state("Failed")),
    "DDPJobFlapping": Scene(
        {f'ddpjob_job_memberships_total{{{JOB},cause="lost"}}': f"0+0.2x{MINUTES}"}, 20, 20
    ),
    "DDPJobSnapshotOld": Scene({f"ddpjob_job_snapshot_age_seconds{{{JOB}}}": constant(7200)}, 9),
    "DDPJobGoodputLow": Scene({f"ddpjob_job_goodput_ratio{{{JOB}}}": constant(0.3)}, 59),
    "DDPJobBelowSize": Scene({f"ddpjob_job_workers_ready{{{JOB}}}": constant(3)}, 59),
}
COUNT = 'count by (alertname) (ALERTS{alertstate="firing"})'


def case(name: str, scene: Scene, expected: dict[int, list[str]]) -> dict[str, Any]:
    """A test of promtool: which alerts fire at which minutes, each once."""
    series = {**HEALTHY, **scene.series}
    return {
        "name": name,
        "interval": "1m",
        "input_series": [
            {"series": each, "values": values} for each, values in series.items() if values
        ],
        "promql_expr_test": [
            {
                "expr": COUNT,
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": f'{{alertname="{a}"}}', "value": 1} for a in names],
            }
            for minute, names in expected.items()
        ],
    }


@pytest.fixture(scope="module")
def promtool() -> Path:
    return build_programs("promtool") / "promtool"


def run(promtool: Path, *arguments: str | Path) -> None:
    command: list[str | Path] = [promtool, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def in_file() -> list[str]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"]]


def test_the_rules_are_valid(promtool: Path) -> None:
    run(promtool, "check", "rules", "--lint=all", "--lint-fatal", ALERTS)


def test_the_metrics_follow_the_conventions(promtool: Path) -> None:
    metrics = Metrics()
    metrics.watch_queue(1, lambda: 0, lambda: 0)
    metrics.watch_watches(lambda: [("/api/v1/pods", 1.0)])
    metrics.watch_leader(lambda: True)
    metrics.observe_pass(0.1, failed=True)
    key, record = Key("team", "digits"), make_report(make_worker())
    metrics.jobs.update(key, make_job(), make_status(), record)
    done = subprocess.run(
        [promtool, "check", "metrics"], check=False, input=metrics.page(), capture_output=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_scene() -> None:
    assert in_file() == [*SCENES]


@pytest.mark.parametrize("alert", [*SCENES, "none"])
def test_an_alert_fires_once_and_only_for_its_cause(
    promtool: Path, tmp_path: Path, alert: str
) -> None:
    scene = SCENES.get(alert, Scene({}))
    firing = [] if alert == "none" else [alert]
    expected = {scene.silent_until + scene.fires_after: firing, MINUTES - 1: firing}
    if scene.silent_until:
        expected[scene.silent_until] = []
    file = tmp_path / "test.yaml"
    content = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [case(alert, scene, expected)],
    }
    file.write_text(yaml.safe_dump(content))
    run(promtool, "test", "rules", file)
