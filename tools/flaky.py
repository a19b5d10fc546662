"""Runs failed tests again, alone on the machine, and tells flaky tests from broken ones.

A test that fails beside other tests and then passes alone several times is flaky. That is a bug, of
the test or of the product, and its name stays on the last lines of the run. It does not refuse the
change under test: the bug was there before. A run with more than three failures is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

MOST_FAILURES = 3
TIMES = 3


def obstacle(report: dict[str, Any]) -> str | None:
    """Return why the failures of a tier cannot be judged by further runs, or None."""
    counts, failures = report.get("counts"), report.get("failures")
    if not counts or not failures:
        return "no failed test accounts for it"
    if counts["failed"] != len(failures) or any("::" not in test for test in failures):
        return "a module could not be collected"
    if counts["skipped"] or counts["xfailed"] or counts["deselected"]:
        return "tests were left out"
    if counts["passed"] + counts["failed"] < counts["minimum"]:
        return f"fewer tests ran than the minimum of {counts['minimum']}"
    if report["leaked"]:
        return "processes outlived the tests"
    return None


def functions(failures: dict[str, Any]) -> list[str]:
    """Return the test functions of failed tests, subtests and rows of tables, each once."""
    return list(dict.fromkeys(re.split(r"[\[ ]", test, maxsplit=1)[0] for test in failures))


def all_flaky(reports: dict[str, dict[str, Any]], run_again: Callable[[str, str], bool]) -> bool:
    """Return whether every failure passes alone `TIMES` times; reports are by make target.

    `run_again(target, function)` runs one test function and returns whether it passed.
    """
    for target, report in reports.items():
        if reason := obstacle(report):
            print(f"{target} is not run again: {reason}")
            return False
    failed = [
        (target, each) for target in reports for each in functions(reports[target]["failures"])
    ]
    if len(failed) > MOST_FAILURES:
        print(f"{len(failed)} tests failed, and up to {MOST_FAILURES} are run again: none is")
        return False
    for target, function in failed:
        if not all(run_again(target, function) for _ in range(TIMES)):
            print(f"BROKEN        {target} {function} failed again, alone")
            return False
    for target, function in failed:
        print(f"FLAKY         {target} {function} then passed {TIMES} times alone: a bug to fix")
    return True
