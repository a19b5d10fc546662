"""The chart's monitors, alerts and dashboards, and the data that a catalogue of charts reads."""

from __future__ import annotations

import base64
import json
import tomllib

import yaml

from cluster.charting import CHART, Helm, of_kind, render
from cluster.control_plane import ROOT
from ddpjob_operator.api import constants
from ddpjob_operator.api.spec import DDPJob

ALERTS = CHART / "files" / "alerts.yaml"
RUNBOOKS = "https://docs.example.com/alerts"
SETTINGS = [
    "metrics.serviceMonitor.enabled=true",
    "metrics.serviceMonitor.labels.prometheus=main",
    "metrics.podMonitor.enabled=true",
    "metrics.rules.enabled=true",
    "metrics.rules.labels.prometheus=main",
    f"metrics.rules.runbooks={RUNBOOKS}",
    "metrics.dashboards.enabled=true",
]


def test_a_service_monitor_brings_the_service_that_it_needs(helm: Helm) -> None:
    objects = render(helm, SETTINGS)
    [monitor], [service] = of_kind(objects, "ServiceMonitor"), of_kind(objects, "Service")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert monitor["metadata"]["labels"]["prometheus"] == "main"


def test_a_series_keeps_the_namespace_of_its_job(helm: Helm) -> None:
    objects = render(helm, SETTINGS)
    [service], [pod] = of_kind(objects, "ServiceMonitor"), of_kind(objects, "PodMonitor")
    for endpoint in (service["spec"]["endpoints"][0], pod["spec"]["podMetricsEndpoints"][0]):
        assert endpoint["honorLabels"] is True


def test_each_alert_has_a_severity_a_remedy_and_a_section_of_the_documentation(helm: Helm) -> None:
    [rules] = of_kind(render(helm, SETTINGS), "PrometheusRule")
    assert rules["metadata"]["labels"]["prometheus"] == "main"
    found = [rule for group in rules["spec"]["groups"] for rule in group["rules"]]
    in_file = yaml.safe_load(ALERTS.read_text())["groups"]
    assert [rule["alert"] for rule in found] == [r["alert"] for g in in_file for r in g["rules"]]
    page = (ROOT / "docs" / "alerts.md").read_text().splitlines()
    for rule in found:
        name, notes = rule["alert"], rule["annotations"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
        assert {"summary", "description", "remedy"} <= notes.keys(), name
        assert notes["runbook_url"] == f"{RUNBOOKS}#{name.lower()}"
        assert f"## {name}" in page


def test_dashboards_are_found_by_their_label(helm: Helm) -> None:
    maps = of_kind(render(helm, SETTINGS), "ConfigMap")
    contents = [json.loads(text) for each in maps for text in each["data"].values()]
    assert {each["metadata"]["labels"]["grafana_dashboard"] for each in maps} == {"1"}
    assert {each["uid"] for each in contents} == {"ddpjob-operator", "ddpjob-job"}


def test_a_catalogue_of_charts_shows_what_is_true() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    notes = {name.partition("/")[2]: text for name, text in chart["annotations"].items()}
    [crd] = yaml.safe_load(notes["crds"])
    assert crd["name"] == f"{constants.PLURAL}.{constants.GROUP}"
    assert (crd["kind"], crd["version"]) == (constants.KIND, constants.VERSION)
    [example] = yaml.safe_load(notes["crdsExamples"])
    DDPJob.model_validate(example, by_name=False)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    repositories = [values[image]["repository"] for image in ("image", "agentImage")]
    images = [each["image"] for each in yaml.safe_load(notes["images"])]
    assert images == [f"{each}:{chart['appVersion']}" for each in repositories]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert notes["license"] == project["license"]
    kind, _, icon = chart["icon"].partition(";base64,")
    assert kind == "data:image/svg+xml"
    assert base64.b64decode(icon) == (CHART / "icon.svg").read_bytes().strip()
