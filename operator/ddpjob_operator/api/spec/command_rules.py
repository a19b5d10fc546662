"""The rules about commands: each word of its own, a launcher that fits, no flag that fixes the size.

A job without workers may have any command, so that a stored job can be suspended and repaired.
CEL cannot read a template, so the API server leaves a command in a template to the operator. Both
check a command of the spec also if a template replaces it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ddpjob_operator.api import cel
from ddpjob_operator.api.commands.command_words import (
    HAS_SIZE_FLAG,
    RUNS_TORCHRUN,
    SCRIPT_FOLLOWS,
    Words,
    has_size_flag,
    holds,
    is_python,
    runs_script_alone,
)
from ddpjob_operator.api.commands.torchrun_command import is_standalone, runs_torchrun
from ddpjob_operator.api.rule import Rule
from ddpjob_operator.api.spec.group_rule import GROUPS, GroupRule

if TYPE_CHECKING:
    from ddpjob_operator.api.spec.job import DDPJobSpec
    from ddpjob_operator.api.spec.worker_groups import WorkerFields

PAUSED = cel.paused("self")
WORD = re.compile(r"[^ \t\r\n]+")


# --- the number of processes ---------------------------------------------------------------------


def has_several_workers(spec: DDPJobSpec) -> bool:
    """Return whether the job may have more than one worker."""
    return spec.most + sum(group.most for group in spec.extra_worker_groups) > 1


def has_several_processes(spec: DDPJobSpec) -> bool:
    """Return whether the job may have more than one process, as far as CEL can see."""
    own = spec.processes_per_worker
    many = own > 1 if isinstance(own, int) else (spec.gpus_per_worker or 0) > 1
    others = (group.processes_per_worker for group in spec.extra_worker_groups)
    several = many or any(isinstance(each, int) and each > 1 for each in others)
    return several or has_several_workers(spec)


def _most(own: str) -> str:
    return f"(has({own}.maxReplicas) ? {own}.maxReplicas : {own}.replicas)"


def _many(own: str, otherwise: str) -> str:
    number = f"{own}.processesPerWorker"
    return f"(has({number}) && type({number}) == int ? int({number}) > 1 : {otherwise})"


SEVERAL_WORKERS = f"([{_most('self')}] + {GROUPS}.map(g, {_most('g')})).sum() > 1"
SEVERAL_PROCESSES = (
    f"({SEVERAL_WORKERS} || "
    f"{_many('self', '(has(self.gpusPerWorker) && self.gpusPerWorker > 1)')} || "
    f"{GROUPS}.exists(g, {_many('g', 'false')}))"
)


# --- one rule for the main command and for the commands of extra groups --------------------------

MAIN = "(has(self.command) ? self.command : []) + (has(self.args) ? self.args : [])"
OF_GROUP = (
    f"({cel.given('g.command')} ? g.command : has(self.command) ? self.command : []) + "
    "(has(g.args) ? g.args : [])"
)
GIVES_NONE = "!(has(g.command) || has(g.args))"


def _of_each_command(
    message: str,
    broken: Callable[[DDPJobSpec, Words], object],
    of_main: str,
    of_group: str,
) -> Iterator[Rule]:
    """Yield the rule for the main group, and the one for extra groups with a command of their own.

    `of_main` and `of_group` are CEL for a broken rule.
    """
    yield Rule(
        field="command",
        message=message,
        check=lambda spec: spec.paused or not broken(spec, _command(spec)),
        cel=f"{PAUSED} || !({of_main})",
    )
    yield GroupRule(
        field="command",
        message=message,
        check=lambda spec, own: (
            spec.paused or _gives_none(own) or not broken(spec, _command(spec, own))
        ),
        cel=f"{GIVES_NONE} || {PAUSED} || !({of_group})",
    )


def _gives_none(own: WorkerFields) -> bool:
    return own.command is None and own.args is None and own.template is None


def _command(spec: DDPJobSpec, own: WorkerFields | None = None) -> Words:
    """Return the command with arguments of a group, or of the main group."""
    main, *extra = spec.groups()
    if own is None:
        return spec.entry_point if spec.command else main.command
    if own.command is not None or own.args is not None:
        return (*(own.command or spec.command or ()), *(own.args or ()))
    pairs = zip(spec.extra_worker_groups, extra, strict=True)
    return next(group.command for fields, group in pairs if fields is own)


def _commands(spec: DDPJobSpec) -> Iterator[Words]:
    yield _command(spec)
    yield from (_command(spec, own) for own in spec.extra_worker_groups)


def _is_no_word(field: str) -> str:
    return f"{cel.given(field)} && !{cel.matches(f'{field}[0]', WORD)}"


def _runs_alone(spec: DDPJobSpec, words: Words) -> bool:
    by_torchrun = spec.sagemaker is None and spec.launcher == "torchrun"
    return by_torchrun and has_several_processes(spec) and runs_script_alone(words)


def _runs_alone_in_cel(python: str, words: str) -> str:
    by_torchrun = "!has(self.sagemaker) && (!has(self.launcher) || self.launcher == 'torchrun')"
    return f"{by_torchrun} && {SEVERAL_PROCESSES} && {python} && {holds(words, SCRIPT_FOLLOWS)}"


def _is_python_in_cel(field: str) -> str:
    return f"{cel.given(field)} && {is_python(f'{field}[0]')}"


def _has_fixed_size(spec: DDPJobSpec, words: Words) -> bool:
    """Return whether a flag fixes the size; only the model looks into a shell's command line."""
    return has_several_workers(spec) and (has_size_flag(words) or is_standalone(words))


COMMANDS = (
    *_of_each_command(
        "begins with an entry that is not one word; "
        "write each word as an entry of its own, as in [torchrun, train.py, --lr, '0.1']",
        lambda _, words: words and not WORD.fullmatch(words[0]),
        _is_no_word("self.command"),
        _is_no_word("g.command"),
    ),
    *_of_each_command(
        "starts one process in each worker, which does not find the others; use "
        "[torchrun, train.py], or launcher: python if the script finds the others itself",
        _runs_alone,
        _runs_alone_in_cel(_is_python_in_cel("self.command"), MAIN),
        _runs_alone_in_cel(
            f"({cel.given('g.command')} ? {is_python('g.command[0]')} : "
            f"({_is_python_in_cel('self.command')}))",
            OF_GROUP,
        ),
    ),
    *_of_each_command(
        "has a flag that fixes the number of workers (--nnodes, --node-rank or --standalone); "
        "remove it: ddpjob gives torchrun the number, also after a change",
        _has_fixed_size,
        f"{SEVERAL_WORKERS} && {holds(MAIN, HAS_SIZE_FLAG)}",
        f"{SEVERAL_WORKERS} && {holds(OF_GROUP, HAS_SIZE_FLAG)}",
    ),
)


# --- launchers -----------------------------------------------------------------------------------

ANY_TORCHRUN = (
    f"({holds(MAIN, RUNS_TORCHRUN)} || {GROUPS}.exists(g, {holds(OF_GROUP, RUNS_TORCHRUN)}))"
)


def _not_above_torchrun(launcher: str, message: str) -> Rule:
    return Rule(
        field="launcher",
        message=message,
        check=lambda spec: (
            spec.launcher != launcher or not any(map(runs_torchrun, _commands(spec)))
        ),
        cel=f"!({cel.is_one_of('self.launcher', launcher)} && {ANY_TORCHRUN})",
    )


def _started_by_mpirun(field: str) -> Rule:
    return GroupRule(
        field=field,
        message="is never run: mpirun starts the processes of all workers, from the first one; "
        "remove it",
        check=lambda spec, group: (
            spec.sagemaker is not None or spec.launcher != "mpi" or getattr(group, field) is None
        ),
        cel=f"has(self.sagemaker) || !{cel.is_one_of('self.launcher', 'mpi')} || !has(g.{field})",
    )


def _of_all_groups(field: str) -> Rule:
    return GroupRule(
        field=field,
        message="is never run: with sagemaker all groups have the same entry point; remove it",
        check=lambda spec, group: spec.sagemaker is None or getattr(group, field) is None,
        cel=f"!has(self.sagemaker) || !has(g.{field})",
    )


LAUNCHER = (
    _not_above_torchrun(
        "python",
        "is python, but a command runs torchrun, which would know of one worker only; "
        "omit launcher",
    ),
    _not_above_torchrun(
        "mpi",
        "is mpi, but a command runs torchrun, which would run at the first worker only; "
        "omit launcher, or write mpirun instead",
    ),
    *(
        rule(field)
        for rule in (_started_by_mpirun, _of_all_groups)
        for field in ("command", "args")
    ),
)

COMMAND_RULES = (*COMMANDS, *LAUNCHER)
