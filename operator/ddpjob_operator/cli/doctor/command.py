"""`ddpjob doctor`: reads, checks, prints, and chooses the exit code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated

import typer

from ddpjob_operator.api.spec.fields import GPU_RESOURCE
from ddpjob_operator.cli.common import ExitCode
from ddpjob_operator.cli.doctor import checks, node_checks
from ddpjob_operator.cli.doctor.observed import Denied, Finding, Observed, State
from ddpjob_operator.cli.doctor.probing import probing
from ddpjob_operator.cli.doctor.reading import observe
from ddpjob_operator.cli.jobs import cells
from ddpjob_operator.cli.jobs.access import Context, Kubeconfig, Namespace, connect

HEADS = ("STATE", "CHECK", "RESULT")


class Output(StrEnum):
    """A form of output."""

    JSON = "json"


def doctor(
    image: Annotated[
        str,
        typer.Option(help="Start a pod that pulls this image, and delete it.", show_default="none"),
    ] = "",
    reach: Annotated[
        bool,
        typer.Option(
            "--reach", help="Start two pods on different nodes that connect; delete them."
        ),
    ] = False,
    gpu_resource: Annotated[str, typer.Option(help="Resource that counts GPUs.")] = GPU_RESOURCE,
    operator_namespace: Annotated[
        str, typer.Option(help="Where to look for the operator without a right to see all.")
    ] = "ddpjob-system",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for each test pod.")] = 300,
    output: Annotated[Output | None, typer.Option("--output", "-o", help="Form.")] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Check that the cluster can run jobs in a namespace."""
    cluster = connect(namespace, context, kubeconfig)
    observed = observe(cluster, operator_namespace)
    findings = [*check(observed, gpu_resource)]
    if image or reach:
        with probing(cluster, timeout) as probes:
            if image:
                findings.append(probes.check_image(image))
            if reach:
                chosen = image or _agent_image(observed)
                found = probes.check_reach(chosen) if chosen else NO_IMAGE
                findings.append(found)
    for line in _json(findings) if output else _lines(findings):
        print(line)
    if any(finding.state is State.FAIL for finding in findings):
        raise typer.Exit(ExitCode.CHECK_FAILED)


NO_IMAGE = Finding(
    "reach",
    State.FAIL,
    "no image is known for the test pods: the operator cannot be read",
    "give one with python3: --image IMAGE",
)


def check(observed: Observed, gpu_resource: str) -> Iterator[Finding]:
    """Yield the findings of all checks that need no pod."""
    yield from checks.check_kubernetes(observed)
    yield from checks.check_crd(observed)
    yield from checks.check_operator(observed)
    yield from checks.check_operator_rights(observed)
    yield from checks.check_user_rights(observed)
    yield from node_checks.check_nodes(observed, gpu_resource)
    yield from node_checks.check_images(observed)


def _agent_image(observed: Observed) -> str:
    found = () if isinstance(observed.deployments, Denied) else observed.deployments
    return next(filter(None, map(checks.agent_image, found)), "")


def _lines(findings: Iterable[Finding]) -> Iterator[str]:
    rows = []
    for each in findings:
        rows.append((str(each.state), each.check, each.message))
        if each.remedy and each.state is not State.OK:
            rows.append(("", "", f"-> {each.remedy}"))
    return cells.Table(*HEADS).lines(rows)


def _json(findings: Iterable[Finding]) -> Iterator[str]:
    yield json.dumps([each._asdict() for each in findings], indent=2)
