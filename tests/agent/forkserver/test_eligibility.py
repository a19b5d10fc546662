"""Which commands are started warm, and by which Python: a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpjob_agent.forkserver.eligibility import (
    NotEligibleError,
    check_arguments,
    check_environment,
    interpreter_of,
)


def program(folder: Path, name: str, text: str = "") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("first", ["#!{python}\n", "#! /usr/bin/env python3.11\n"])
@pytest.mark.parametrize("named", ["torchrun", "{torchrun}"])
def test_torchrun_names_its_python(tmp_path: Path, first: str, named: str) -> None:
    python = program(tmp_path, "python3.11")
    torchrun = program(tmp_path, "torchrun", first.format(python=python) + "main()")
    argv = [named.format(torchrun=torchrun), "--tee=3", "train.py"]
    environment = {"PATH": str(tmp_path)}
    assert interpreter_of(argv, environment) == (python, [torchrun, *argv[1:]])


@pytest.mark.parametrize("module", ["torch.distributed.run", "torch.distributed.launch"])
def test_module_is_run_by_the_python_of_the_command(tmp_path: Path, module: str) -> None:
    python = program(tmp_path, "python3")
    argv = ["python3", "-m", module, "train.py"]
    for words in (argv, tuple(argv)):
        assert interpreter_of(words, {"PATH": str(tmp_path)}) == (python, argv[1:])


@pytest.mark.parametrize(
    ("argv", "first", "why"),
    [
        (["sh", "-c", "torchrun train.py"], "", "the command is not torchrun"),
        (["python3", "train.py"], "", "the command is not torchrun"),
        (["python3", "-u", "-m", "torch.distributed.run"], "", "the command is not torchrun"),
        (["accelerate", "launch"], "", "the command is not torchrun"),
        (["torchrun"], "", "does not begin with #! and a Python"),
        (["torchrun"], "#!/bin/sh", "does not begin with #! and a Python"),
        (["torchrun"], "#!/opt/python -E", "does not begin with #! and a Python"),
        (["torchrun"], "#!/usr/bin/env -S python -u", "does not begin with #! and a Python"),
        (["torchrun"], "#!/nowhere/python", "there is no /nowhere/python on the PATH"),
        (["nowhere/torchrun"], "", "there is no nowhere/torchrun on the PATH"),
    ],
    ids=str,
)
def test_others_are_started_cold(tmp_path: Path, argv: list[str], first: str, why: str) -> None:
    for name in ("python3", "torchrun"):
        program(tmp_path, name, first)
    with pytest.raises(NotEligibleError, match=why):
        interpreter_of(argv, {"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["train.py", "--fast"], ""),
        (["-m", "package.train"], ""),
        (["-m"], "-m without a module"),
        (["-X", "dev", "train.py"], "Python is given -X"),
        (["folder"], "'folder' is not a .py file"),
        ([], "'' is not a .py file"),
    ],
    ids=str,
)
def test_training_processes_are_scripts_or_modules(arguments: list[str], why: str) -> None:
    if not why:
        check_arguments(arguments)
        return
    with pytest.raises(NotEligibleError, match=why):
        check_arguments(arguments)


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [
        ("RANK", "3", True),
        ("TORCHELASTIC_RUN_ID", "x", True),
        ("DDPJOB_MEMBERSHIP", "1.1.2", True),
        ("PET_NNODES", "2", True),
        ("CUDA_VISIBLE_DEVICES", "1", True),
        ("OMP_NUM_THREADS", "4", False),
        ("LD_PRELOAD", "x.so", False),
        ("NVIDIA_VISIBLE_DEVICES", "1", False),
        ("ANYTHING", "else", False),
    ],
)
def test_variables_that_may_count_at_import_must_be_the_same(
    name: str, value: str, *, fits: bool
) -> None:
    before = {"PATH": "/bin", "OMP_NUM_THREADS": "1"}
    for imported, wanted in ((before, {**before, name: value}), ({**before, name: value}, before)):
        if fits:
            check_environment(imported, wanted)
        else:
            with pytest.raises(NotEligibleError, match=f"{name} differs"):
                check_environment(imported, wanted)


@pytest.mark.parametrize(
    ("imported", "wanted", "missing"),
    [
        ("", "", ""),
        ("numpy sklearn.datasets", "sklearn.datasets", ""),
        ("numpy", "numpy pandas", "pandas"),
        ("", "numpy pandas", "numpy, pandas"),
    ],
)
def test_all_modules_that_are_wanted_in_advance_must_be_there(
    imported: str, wanted: str, missing: str
) -> None:
    before, after = ({"DDPJOB_WARM_IMPORTS": each} for each in (imported, wanted))
    if missing:
        with pytest.raises(NotEligibleError, match=f"{missing} was not imported in advance"):
            check_environment(before, after)
    else:
        check_environment(before, after)
