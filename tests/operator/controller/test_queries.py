"""Every query of the dashboards and the alerts reads metrics that exist, by labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ddpjob_operator.controller.metrics import Metrics
from ddpjob_operator.controller.metrics.catalogue import ALL, VALUES
from support.scraped import families

FILES = Path(__file__).resolve().parents[3] / "charts" / "ddpjob-operator" / "files"
WORDS = frozenset(
    "absent and by histogram_quantile increase label_values max on or rate sum unless".split()
)
SERIES = {series: metric for metric in ALL for series in metric.series}
LISTS = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
SELECTOR = re.compile(r"([a-z_:][a-z0-9_:]*)\{([^}]*)\}")
MATCHER = re.compile(r'\s*([a-z_]+)\s*(=~|!=|!~|=)\s*"([^"]*)"\s*')


def test_a_scrape_has_no_series_that_the_page_of_metrics_lacks() -> None:
    metrics = Metrics()
    metrics.observe_pass(0.1, failed=True)
    metrics.requests.labels("GET", "pods", "200").inc()
    page = metrics.page().decode()
    assert {each.name for f in families(page).values() for each in f.samples} <= SERIES.keys()


def alerts() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            labels = re.findall(r"\$labels\.([a-z_]+)", json.dumps(rule["annotations"]))
            yield rule["expr"], " ".join(labels)


def panels() -> Iterator[tuple[str, str]]:
    for path in sorted((FILES / "dashboards").glob("*.json")):
        content = json.loads(path.read_text())
        for panel in content["panels"]:
            for target in panel["targets"]:
                yield target["expr"], " ".join(re.findall(r"{{(.*?)}}", target["legendFormat"]))
        for variable in content["templating"]["list"]:
            if variable["type"] == "query":
                yield variable["query"].replace(f", {variable['name']})", ")"), variable["name"]


QUERIES = [*alerts(), *panels()]


def problems(query: str, shown: str) -> Iterator[str]:
    """What Prometheus would take without an error, and answer with nothing."""
    used: set[str] = set()
    for name, matchers in SELECTOR.findall(query):
        metric = SERIES.get(name)
        if metric is None:
            continue  # named below
        for matcher in filter(None, matchers.split(",")):
            match = MATCHER.fullmatch(matcher)
            assert match, matcher
            label, how, value = match.groups()
            if label not in metric.labels:
                yield f"{name} has no label {label}"
            elif label in VALUES and "$" not in value:
                values = value.split("|") if "~" in how else [value]
                yield from (f"{label} is never {v}" for v in values if v not in VALUES[label])
    bare = SELECTOR.sub(r"\1", query)
    grouped = {label.strip() for names in LISTS.findall(bare) for label in names.split(",")}
    bare = re.sub(r"\[[^\]]*\]", "", LISTS.sub("", bare))
    for name in re.findall(r"[a-z_:][a-z0-9_:]*", bare):
        if name in SERIES:
            used.add(name)
        elif name not in WORDS:
            yield f"there is no {name}"
    known = {label for name in used for label in (*SERIES[name].labels, "le")}
    yield from (f"no series has the label {label}" for label in {*grouped, *shown.split()} - known)


@pytest.mark.parametrize(("query", "shown"), QUERIES, ids=[query[:40] for query, _ in QUERIES])
def test_a_query_names_what_exists(query: str, shown: str) -> None:
    assert not [*problems(query, shown)]


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("sum(ddpjob_job_stepp)", "there is no ddpjob_job_stepp"),
        ('ddpjob_job_step{state="Running"}', "ddpjob_job_step has no label state"),
        ('ddpjob_job_state{state=~"Running|Done"} == 1', "state is never Done"),
        ("sum by (cause) (ddpjob_job_step)", "no series has the label cause"),
        ("rate(ddpjob_job_stall_seconds[5m])", "there is no ddpjob_job_stall_seconds"),
    ],
)
def test_a_wrong_query_is_found(query: str, problem: str) -> None:
    assert [*problems(query, "")] == [problem]
