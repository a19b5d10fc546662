"""Reads a page of metrics as Prometheus does."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families


def families(page: str) -> dict[str, Family]:
    """All metrics by name."""
    found = text_string_to_metric_families(page)
    return {each.name + ("_total" if each.type == "counter" else ""): each for each in found}


def value_in(page: str, name: str, labels: Mapping[str, str]) -> float | None:
    """The value of the one series with this name and these labels."""
    mine = "\n".join(line for line in page.splitlines() if line.startswith(name))
    found = [
        sample.value
        for family in text_string_to_metric_families(mine + "\n")
        for sample in family.samples
        if sample.name == name and sample.labels == dict(labels)
    ]
    return found[0] if found else None
