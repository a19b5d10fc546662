"""`ddpjob operator`: runs the operator, in a cluster or from a laptop.

May not: do more than read options and turn errors into messages and exit codes.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from typing import Annotated

import typer

from ddpjob_operator.cli.common import ExitCode, installed_version
from ddpjob_operator.controller import settings
from ddpjob_operator.controller.settings import Settings
from ddpjob_operator.kube.interface import ApiError, UnreachableError
from ddpjob_operator.manifests.network_policy import OperatorPods

app = typer.Typer(no_args_is_help=True, help="Run the operator.")
Port = Annotated[int | None, typer.Option(min=1, max=65535, show_default="none")]


@app.callback()
def _operator() -> None:
    """Keep `run` a subcommand."""


@app.command()
def run(
    agent_image: Annotated[
        str,
        typer.Option(
            envvar=settings.ENV_AGENT_IMAGE,
            help="Image that holds the agent; the nodes must be able to pull it.",
            show_default=False,
        ),
    ],
    namespace: Annotated[
        list[str] | None, typer.Option(help="Watch only this namespace; may be repeated.")
    ] = None,
    kubeconfig: Annotated[
        str | None, typer.Option(help="Default: the pod's own account, else as kubectl.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
    lease: Annotated[
        str,
        typer.Option(
            help="NAMESPACE/NAME of the Lease by which one of several operators leads.",
            show_default="none: this operator must be the only one",
        ),
    ] = "",
    parallel_jobs: Annotated[
        int, typer.Option(min=1, max=100, help="Jobs that are worked on at the same time.")
    ] = 8,
    parallel_requests: Annotated[
        int, typer.Option(min=1, max=100, help="Requests of one job at the same time.")
    ] = 8,
    key_file: Annotated[
        str | None,
        typer.Option(
            envvar=settings.ENV_KEY_FILE,
            help="File with the operator's secret key. Default: a key of this user, made once.",
            show_default=False,
        ),
    ] = None,
    previous_key_file: Annotated[
        list[str] | None,
        typer.Option(
            help="File with an earlier key of the operator, for jobs whose pods have keys of it; "
            "may be repeated.",
            show_default=False,
        ),
    ] = None,
    health_port: Port = None,
    metrics_port: Port = None,
    web_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Serve a page about all jobs, for reading only, without a log-in.",
            show_default="none",
        ),
    ] = None,
    web_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name by which browsers call that page, such as that of an ingress; may be "
            "repeated. localhost and addresses need none.",
            show_default=False,
        ),
    ] = None,
    network_policies: Annotated[
        OperatorPods | None,
        typer.Option(
            parser=OperatorPods.parse,
            metavar="NAMESPACE/LABEL=VALUE,...",
            help="Create a NetworkPolicy for each job: only its own pods may connect to its pods, "
            "and to its rendezvous service also the pods of the operator with these labels.",
            show_default="none",
        ),
    ] = None,
) -> None:
    """Run the operator until SIGTERM or Ctrl-C; jobs continue without it."""
    # The imports of kopf and kubernetes take most of a second; only this command needs them.
    from ddpjob_operator.controller.process import main as process  # noqa: PLC0415
    from ddpjob_operator.kube.auth import ConfigError  # noqa: PLC0415

    logging.basicConfig(
        level=settings.log_level(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("kopf").setLevel(logging.WARNING)  # lower levels log a line for every event
    if lease and not re.fullmatch(r"[^/]+/[^/]+", lease):
        raise typer.BadParameter(f"{lease}: not NAMESPACE/NAME", param_hint="--lease")
    options = Settings(
        agent_image=agent_image,
        namespaces=tuple(namespace or ()),
        key_file=key_file,
        previous_key_files=tuple(previous_key_file or ()),
        kubeconfig=kubeconfig,
        context=context,
        lease=lease,
        workers=parallel_jobs,
        requests=parallel_requests,
        health_port=health_port,
        metrics_port=metrics_port,
        web_port=web_port,
        web_hosts=tuple(name.lower() for name in web_host or ()),
        operator_pods=network_policies,
    )
    logging.getLogger("ddpjob").info(
        "starting version=%s image=%s namespaces=%s",
        *(installed_version(), agent_image, ",".join(options.namespaces) or "all"),
    )
    try:
        asyncio.run(process.run_operator(options))
    except (ApiError, ConfigError, UnreachableError, OSError) as error:
        typer.echo(f"ddpjob operator: {error}", err=True)
        raise typer.Exit(_exit_code(error)) from error


def _exit_code(error: Exception) -> ExitCode:
    if isinstance(error, ApiError):
        return ExitCode.REJECTED
    return ExitCode.UNREACHABLE if isinstance(error, UnreachableError) else ExitCode.INVALID
