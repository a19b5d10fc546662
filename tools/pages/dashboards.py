"""The chart's two Grafana dashboards, from tables of panels."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

FOLDER = "charts/ddpjob-operator/files/dashboards"
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24  # of Grafana's grid


class Panel(NamedTuple):
    """A panel: its queries, each with the legend of its series."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    text: str = ""


def _figure(
    title: str, query: str, legend: str = "{{name}}", unit: str = "short", text: str = ""
) -> Panel:
    """Return a panel that shows one number for each series."""
    return Panel(title, ((query, legend),), unit, kind="stat", width=6, height=5, text=text)


JOBS = 'namespace=~"$namespace",name=~"$name"'
OPERATOR_PANELS = (
    Panel("Jobs by state", (("sum by (state) (ddpjob_jobs)", "{{state}}"),)),
    Panel(
        "GPUs of jobs by namespace",
        (("sum by (namespace) (ddpjob_job_gpus)", "{{namespace}}"),),
    ),
    Panel(
        "Goodput, weighted by GPUs",
        (
            (
                (
                    "sum(ddpjob_job_goodput_ratio * ddpjob_job_gpus) / sum(ddpjob_job_gpus"
                    " and ddpjob_job_goodput_ratio)"
                ),
                "all jobs",
            ),
        ),
        "percentunit",
        text="Jobs without GPUs do not count.",
    ),
    Panel(
        "Changes by cause, per hour",
        (
            (
                "sum by (cause) (rate(ddpjob_job_memberships_total[$__rate_interval])) * 3600",
                "{{cause}}",
            ),
        ),
    ),
    Panel(
        "Stall by cause, 95 %",
        (
            (
                (
                    "histogram_quantile(0.95, sum by (le, cause) "
                    "(rate(ddpjob_job_stall_seconds_bucket[1h])))"
                ),
                "{{cause}}",
            ),
        ),
        "s",
    ),
    Panel(
        "Events by reason, per hour",
        (("sum by (reason) (rate(ddpjob_events_total[1h])) * 3600", "{{reason}}"),),
    ),
    Panel(
        "Passes and errors per second",
        (
            (
                (
                    "sum by (result) (rate("
                    'controller_runtime_reconcile_total{controller="ddpjob"}[$__rate_interval]))'
                ),
                "{{result}}",
            ),
        ),
        "ops",
    ),
    Panel(
        "Duration of a pass, 99 %",
        (
            (
                (
                    "histogram_quantile(0.99, sum by (le) (rate("
                    'controller_runtime_reconcile_time_seconds_bucket{controller="ddpjob"}'
                    "[$__rate_interval])))"
                ),
                "99 %",
            ),
        ),
        "s",
    ),
    Panel(
        "Queue",
        (
            ('sum(workqueue_depth{controller="ddpjob"})', "jobs that wait"),
            ("max(ddpjob_queue_oldest_seconds)", "oldest, seconds"),
        ),
    ),
    Panel(
        "Requests to the API server per second",
        (
            (
                (
                    "sum by (method, resource, code) (rate("
                    'rest_client_requests_total{resource=~".+"}[$__rate_interval]))'
                ),
                "{{method}} {{resource}} {{code}}",
            ),
        ),
        "reqps",
    ),
    Panel(
        "Silence of the watches",
        (("max by (resource) (ddpjob_watch_silent_seconds)", "{{resource}}"),),
        "s",
    ),
)
JOB_PANELS = (
    _figure("State", f"ddpjob_job_state{{{JOBS}}} == 1", "{{state}}"),
    _figure(
        "Goodput",
        f"ddpjob_job_goodput_ratio{{{JOBS}}}",
        unit="percentunit",
        text="Share of the time in which steps were done for the first time.",
    ),
    _figure("GPU-hours", f"ddpjob_job_gpu_seconds_total{{{JOBS}}} / 3600"),
    _figure("Repeated steps", f"ddpjob_job_repeated_steps_total{{{JOBS}}}"),
    Panel(
        "Step and snapshot",
        (
            (f"ddpjob_job_step{{{JOBS}}}", "{{name}} step"),
            (f"ddpjob_job_snapshot_step{{{JOBS}}}", "{{name}} snapshot"),
            (f"ddpjob_job_total_steps{{{JOBS}}}", "{{name}} all"),
        ),
    ),
    Panel(
        "Workers and world size",
        (
            (f"ddpjob_job_workers_wanted{{{JOBS}}}", "{{name}} wanted"),
            (f"ddpjob_job_workers_ready{{{JOBS}}}", "{{name}} run"),
            (f"ddpjob_job_world_size{{{JOBS}}}", "{{name}} world size"),
        ),
    ),
    Panel("Steps per second", ((f"ddpjob_job_steps_per_second{{{JOBS}}}", "{{name}}"),)),
    Panel(
        "Age of the snapshot", ((f"ddpjob_job_snapshot_age_seconds{{{JOBS}}}", "{{name}}"),), "s"
    ),
    Panel(
        "Changes by cause",
        ((f"ddpjob_job_memberships_total{{{JOBS}}}", "{{name}} {{cause}}"),),
    ),
    Panel(
        "Restarts by cause",
        ((f"ddpjob_job_restarts_total{{{JOBS}}}", "{{name}} {{cause}}"),),
    ),
    Panel(
        "Where a change takes its time, mean",
        tuple(
            (
                (
                    f"sum by (name, cause) (ddpjob_job_{part}_seconds_sum{{{JOBS}}}) / "
                    f"sum by (name, cause) (ddpjob_job_{part}_seconds_count{{{JOBS}}})"
                ),
                f"{{{{name}}}} {{{{cause}}}}: {words}",
            )
            for part, words in (
                ("detection", "until the new membership"),
                ("first_step", "until its first step"),
            )
        ),
        "s",
    ),
    Panel("Warnings", ((f"ddpjob_job_warnings{{{JOBS}}}", "{{name}}"),)),
)


def dashboard(uid: str, title: str, panels: Sequence[Panel], *variables: dict[str, Any]) -> str:
    """Return a dashboard as JSON."""
    source = {
        "name": "datasource",
        "type": "datasource",
        "query": "prometheus",
        "label": "Data source",
    }
    content = {
        "uid": uid,
        "title": title,
        "tags": ["ddpjob"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source, *variables]},
        "panels": _placed(panels),
    }
    return json.dumps(content, indent=1) + "\n"


def _placed(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Return the panels from left to right and top to bottom."""
    found, x, y, row = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > WIDTH:
            x, y, row = 0, y + row, 0
        position = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        found.append(_panel(number, panel, position))
        x, row = x + panel.width, max(row, panel.height)
    return found


def _panel(number: int, panel: Panel, position: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + i),
            "datasource": DATA_SOURCE,
            "expr": query,
            "legendFormat": legend,
        }
        for i, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": DATA_SOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"textMode": "value_and_name"} if panel.kind == "stat" else {},
        "targets": targets,
    }


def _variable(label: str, matcher: str) -> dict[str, Any]:
    return {
        "name": label,
        "type": "query",
        "datasource": DATA_SOURCE,
        "query": f"label_values(ddpjob_job_state{{{matcher}}}, {label})",
        "refresh": 2,
        "sort": 1,
        "includeAll": label == "namespace",
        "multi": label == "namespace",
    }


OF_ALL = functools.partial(dashboard, "ddpjob-operator", "DDPJob operator", OPERATOR_PANELS)
OF_JOB = functools.partial(
    dashboard,
    "ddpjob-job",
    "DDPJob",
    JOB_PANELS,
    _variable("namespace", ""),
    _variable("name", 'namespace=~"$namespace"'),
)
PAGES: dict[str, Callable[[], str]] = {
    f"{FOLDER}/operator.json": OF_ALL,
    f"{FOLDER}/job.json": OF_JOB,
}
