"""The `ddpjob` command: one table names all commands, and the module of each.

A command's module is imported only if the command is named, so that help and completion are quick.
"""

from __future__ import annotations

import importlib
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from typer.completion import (  # type: ignore[attr-defined] # documented, not exported
    completion_init,
    get_completion_script,
)
from typer.core import TyperCommand, TyperGroup

from ddpjob_operator.cli.common import (
    CommandError,
    ExitCode,
    MissingExtraError,
    installed_version,
    is_of_extra,
)
from ddpjob_operator.terminal import (
    OutputError,
    discard_output,
    flush_output,
    prepare,
    print_error,
)

PROGRAM = "ddpjob"
ENV_COMPLETE = "_DDPJOB_COMPLETE"


class Entry(NamedTuple):
    """A command: where it is, and what its help shows."""

    target: str  # MODULE:NAME, below this package
    help: str
    example: str
    passes_arguments: bool = False  # to another program, its help included


COMMANDS = {
    "apply": Entry(
        "jobs.change:apply",
        "Create or change the jobs in files, after a check of all of them.",
        "ddpjob apply -f job.yaml",
    ),
    "get": Entry("jobs.show:get", "List jobs, or show one.", "ddpjob get digits -o yaml"),
    "describe": Entry(
        "jobs.show:describe",
        "Show the state of a job, its pods, problems and events.",
        "ddpjob describe digits",
    ),
    "logs": Entry(
        "jobs.job_logs:logs",
        "Print what the workers of a job print: rank 0, one worker, all, or the first failure.",
        "ddpjob logs digits -f",
    ),
    "events": Entry(
        "jobs.show:events", "Show the events of a job, oldest first.", "ddpjob events digits"
    ),
    "top": Entry(
        "jobs.show:top",
        "Show the progress of jobs, with -w also steps per second.",
        "ddpjob top digits -w",
    ),
    "wait": Entry(
        "jobs.follow:wait",
        "Print changes of a job until it ends; exit with 0 if it completes, with 1 if it fails.",
        "ddpjob wait digits --timeout 3600",
    ),
    "scale": Entry(
        "jobs.change:scale",
        "Change the number of workers of the main group.",
        "ddpjob scale digits 4",
    ),
    "suspend": Entry(
        "jobs.change:suspend",
        "Stop a job's workers; it keeps its snapshots.",
        "ddpjob suspend digits",
    ),
    "resume": Entry(
        "jobs.change:resume",
        "Start a suspended job again, from its newest snapshot.",
        "ddpjob resume digits",
    ),
    "delete": Entry(
        "jobs.change:delete", "Delete jobs and their pods.", "ddpjob delete digits --wait"
    ),
    "explain": Entry(
        "explain:explain",
        "Explain a reason that a job shows, or a field: what it means, and what to do.",
        "ddpjob explain WorkerSilent",
    ),
    "report": Entry(
        "report:report",
        "Write one HTML page about a run: memberships, progress, and where the time went.",
        "ddpjob report .ddpjob/default/digits",
    ),
    "doctor": Entry(
        "doctor.command:doctor",
        "Check that the cluster can run jobs: CRD, operator, rights, nodes, images, network.",
        "ddpjob doctor --reach",
    ),
    "run": Entry(
        "local:run",
        "Run a job on this machine; Ctrl-C stops it, and the next run resumes from its snapshot.",
        "ddpjob run --local job.yaml",
    ),
    "validate": Entry(
        "files.validate:validate",
        "Check job files; print each fault with its line and its remedy.",
        "ddpjob validate job.yaml",
    ),
    "convert": Entry(
        "files.convert_files:convert",
        "Print DDPJobs for the PyTorchJobs and TrainJobs of a file.",
        "ddpjob convert pytorchjob.yaml > ddpjob.yaml",
    ),
    "snapshots": Entry(
        "snapshots:snapshots",
        "List, verify, prune and export snapshots: `ddpjob snapshots --help`.",
        "ddpjob snapshots list DIRECTORY",
        passes_arguments=True,
    ),
    "operator": Entry(
        "operator:app", "Run the operator.", "ddpjob operator run --agent-image IMAGE"
    ),
    "completion": Entry(
        "main:completion",
        "Print a script that completes commands and job names: bash, zsh or fish.",
        'eval "$(ddpjob completion bash)"',
    ),
    "version": Entry("main:version", "Print the version.", "ddpjob version"),
}


class Commands(TyperGroup):
    """The commands of the table, each loaded when it is named."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, entry in COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=entry.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that the first argument names, with its options."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest


def load(name: str) -> Any:
    """Import a command and return it."""
    entry = COMMANDS[name]
    module, _, attribute = entry.target.partition(":")
    target = getattr(importlib.import_module(f"ddpjob_operator.cli.{module}"), attribute)
    example = f"Example: {entry.example}"
    if isinstance(target, typer.Typer):
        target.info.epilog = example
        return typer.main.get_command(target)
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    passed = {"allow_extra_args": True, "ignore_unknown_options": True}
    single.command(
        name,
        help=entry.help,
        epilog=example,
        add_help_option=not entry.passes_arguments,
        context_settings=passed if entry.passes_arguments else None,
    )(target)
    return typer.main.get_command(single)


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Shell(StrEnum):
    """A shell that completes."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(show_default=False)]) -> None:
    """Print a completion script."""
    print(get_completion_script(prog_name=PROGRAM, complete_var=ENV_COMPLETE, shell=shell.value))


def version() -> None:
    """Print the version."""
    print(f"ddpjob {installed_version()}")


def _version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback(epilog="Help for a command, with an example: ddpjob COMMAND -h")
def _ddpjob(
    click_context: typer.Context,
    *,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Of a command for a cluster.")
    ] = None,
    context: Annotated[
        str | None, typer.Option("--context", help="Of a command for a cluster.")
    ] = None,
    kubeconfig: Annotated[
        str | None, typer.Option("--kubeconfig", help="Of a command for a cluster.")
    ] = None,
    _is_version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Elastic PyTorch DDP jobs, on a Kubernetes cluster and on this machine."""
    options = {"namespace": namespace, "context": context, "kubeconfig": kubeconfig}
    given = {option: value for option, value in options.items() if value is not None}
    name = click_context.invoked_subcommand
    if not given or name is None:
        return
    unknown = given.keys() - {parameter.name for parameter in load(name).params}
    if unknown:
        message = f"{name} has no option --{min(unknown)}; `ddpjob {name} -h` lists its options"
        raise CommandError(ExitCode.INVALID, message)
    click_context.default_map = {name: given}


def main() -> NoReturn:
    """Run the command; end quietly if the reader of the output has closed it."""
    prepare()
    try:
        try:
            _run()
        finally:
            flush_output()
    except CommandError as error:
        print_error(str(error))
        sys.exit(error.code)
    except ModuleNotFoundError as error:
        if not is_of_extra(error):
            raise
        print_error(str(MissingExtraError(error)))
        sys.exit(ExitCode.INVALID)
    except OutputError as error:
        discard_output()
        if error.is_closed_pipe:
            sys.exit(ExitCode.BROKEN_PIPE)
        print_error(f"stdout cannot be written: {error}; the output is incomplete")
        sys.exit(ExitCode.OUTPUT_FAILED)
    sys.exit(ExitCode.OK)


def _run() -> None:
    kubectl, _, plugin = Path(sys.argv[0]).name.partition("-")
    run_app(f"kubectl {plugin}" if kubectl == "kubectl" else PROGRAM)


def run_app(name: str) -> None:
    """Run the command, or complete its words for a shell; raise SystemExit."""
    if ENV_COMPLETE in os.environ:
        completion_init()
    app(prog_name=name, complete_var=ENV_COMPLETE)
