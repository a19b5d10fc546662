"""A real Prometheus scrapes an operator: all metrics are there, and all queries of the chart answer."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from alerts.life import NAME, NAMESPACE, Life
from alerts.server import ALERTS, FILES, OWN_LABELS, ROOT, Prometheus, prometheus
from ddpjob_operator.controller.metrics.catalogue import ALL, Metric

COMPARED = re.compile(r" (<|>|==) ")  # outside of a selector
RATE_INTERVAL = "30s"  # of the dashboards, as Grafana chooses it: some scrapes
QUESTION = re.compile(r"^\| [^|]+ \| `(.+)` \|$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Scraped:
    """What Prometheus had scraped when the life was over."""

    server: Prometheus
    at: float
    metadata: dict[str, list[dict[str, str]]]
    targets: list[dict[str, Any]]

    def ask(self, query: str) -> list[dict[str, Any]]:
        return self.server.ask(query, self.at)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    life = Life()
    folder = tmp_path_factory.mktemp("prometheus")
    with prometheus(folder, f"127.0.0.1:{life.port}") as server:
        found: list[Scraped] = []

        def has(query: str) -> bool:
            answered = bool(server.ask(query, now := time.time()))
            targets = server.get("targets")["activeTargets"]
            found[:] = [Scraped(server, now, server.get("metadata"), targets)]
            return answered

        asyncio.run(life.run(has))
        yield found[0]


def test_the_page_is_scraped_without_a_complaint(scraped: Scraped) -> None:
    (target,) = scraped.targets
    assert (target["health"], target["lastError"]) == ("up", "")
    log = scraped.server.log.read_text()
    assert not re.findall(r".*level=(?:WARN|ERROR).*", log)


@pytest.mark.parametrize("metric", ALL, ids=[metric.name for metric in ALL])
def test_a_documented_metric_is_there_with_its_kind_and_labels(
    scraped: Scraped, metric: Metric
) -> None:
    known = [(each["type"], each["help"]) for each in scraped.metadata[metric.name]]
    assert known == [(metric.kind, metric.text)]
    for name in metric.series:
        series = scraped.ask(f"last_over_time({name}[1h])")
        assert series, name
        labels = {frozenset(each["metric"].keys() - OWN_LABELS) for each in series}
        assert labels == {frozenset(metric.labels)}, name
        ever = scraped.ask(f"max_over_time({name}[1h]) > 0")
        assert ever or metric.kind == "gauge", f"{name}: counted nothing"
    if metric.name.startswith("ddpjob_job_"):
        own = f'namespace="{NAMESPACE}",name="{NAME}"'
        assert scraped.ask(f"max_over_time({metric.series[0]}{{{own}}}[1h]) > 0"), "no value"


def test_every_metric_is_documented(scraped: Scraped) -> None:
    """Prometheus adds `up` and the like, which have no metadata."""
    assert {*scraped.metadata} == {metric.name for metric in ALL}


def alerts() -> dict[str, str]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def panels() -> Iterator[tuple[str, str]]:
    for path in sorted((FILES / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for number, target in enumerate(panel["targets"], 1):
                yield f"{path.stem}: {panel['title']} {number}", target["expr"]


def questions() -> dict[str, str]:
    page = (ROOT / "docs" / "metrics.md").read_text().partition("## Questions and queries")[2]
    found = [each.replace("\\|", "|") for each in QUESTION.findall(page)]
    return {each: each for each in found}


def without_thresholds(query: str) -> str:
    """A query whose comparisons give 0 or 1, so that it has an answer while all is well."""
    return COMPARED.sub(r" \1 bool ", query)


@pytest.mark.parametrize("alert", alerts())
def test_prometheus_evaluates_an_alert_over_data(scraped: Scraped, alert: str) -> None:
    rules = [r for g in scraped.server.get("rules")["groups"] for r in g["rules"]]
    (rule,) = (each for each in rules if each["name"] == alert)
    assert (rule["health"], rule.get("lastError", "")) == ("ok", "")
    query = without_thresholds(alerts()[alert])
    inner = query.removeprefix("absent(").removesuffix(")") if "absent" in query else query
    assert scraped.ask(inner)


@pytest.mark.parametrize(
    "query", [*dict(panels()).values(), *questions()], ids=[*dict(panels()), *questions()]
)
def test_a_panel_or_a_question_has_an_answer(scraped: Scraped, query: str) -> None:
    chosen = query.replace("$__rate_interval", RATE_INTERVAL)
    chosen = chosen.replace("$namespace", NAMESPACE).replace("$name", NAME)
    answer = scraped.ask(without_thresholds(chosen))
    assert answer
    assert any(each["value"][1] != "NaN" for each in answer), "no number"


def test_the_page_has_questions() -> None:
    assert len(questions()) == 5
