"""Failed tests that run again: a flaky one is named, and a broken one fails the run."""

from __future__ import annotations

from typing import Any

import pytest
from tools import flaky

TEST = "tests/jobs/test_live.py::test_a_loss"
PASSED = 10


def report(*failures: str, **changed: Any) -> dict[str, Any]:
    """Build the report of a tier."""
    counts = {
        "passed": PASSED,
        "failed": len(failures),
        "minimum": PASSED,
        **dict.fromkeys(("skipped", "xfailed", "deselected"), 0),
    }
    counts |= {key: value for key, value in changed.items() if key in counts}
    return {
        "counts": counts,
        "failures": {test: ["an error"] for test in failures},
        "leaked": changed.get("leaked", []),
    }


class Runs:
    """Results of further runs, in order, and what was run."""

    def __init__(self, *results: bool) -> None:
        self.results = list(results)
        self.seen: list[tuple[str, str]] = []

    def __call__(self, target: str, function: str) -> bool:
        self.seen.append((target, function))
        return self.results.pop(0)


def test_a_test_that_passes_alone_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs(*[True] * flaky.TIMES)
    assert flaky.all_flaky({"test-local": report(f"{TEST}[2-a b]", f"{TEST} [a scene]")}, runs)
    assert runs.seen == [("test-local", TEST)] * flaky.TIMES
    assert f"FLAKY         test-local {TEST}" in capsys.readouterr().out


def test_a_test_that_fails_again_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs(True, False)
    assert not flaky.all_flaky({"test-local": report(TEST)}, runs)
    assert f"BROKEN        test-local {TEST}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        pytest.param({}, "no failed test", id="a tier that did not run"),
        pytest.param(report(), "no failed test", id="lint, or a kill"),
        pytest.param(report("tests/jobs/test_live.py"), "not be collected", id="a broken module"),
        pytest.param(report(TEST, skipped=1), "left out", id="a skipped test"),
        pytest.param(report(TEST, deselected=1), "left out", id="a deselected test"),
        pytest.param(report(TEST, passed=8), "fewer tests", id="a tier that was cut short"),
        pytest.param(report(TEST, leaked=["pid 7"]), "outlived", id="processes left behind"),
        pytest.param(report("a::a", "a::b", "a::c", "a::d"), "4 tests failed", id="many failures"),
    ],
)
def test_only_a_few_failed_tests_run_again(
    said: dict[str, Any], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not flaky.all_flaky({"test-local": said}, Runs())
    assert reason in capsys.readouterr().out


def test_failures_of_two_tiers_count_together() -> None:
    runs = Runs()
    reports = {"test-local": report("a::a", "a::b"), "test-unit": report("b::a", "b::b")}
    assert not flaky.all_flaky(reports, runs)
    assert runs.seen == []
