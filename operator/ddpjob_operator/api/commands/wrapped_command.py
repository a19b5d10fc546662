"""Finds the program that a command runs below env, nohup, uv, a shell and the like.

A line for a shell is read only if it is simple: its last command counts, for those before it
prepare. Nothing is found below other wrappers.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

Words = list[str]

SHELLS = ("sh", "bash", "dash", "zsh")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
# Wrappers by their first words, each with its flags whose value is the next word.
WRAPPERS = {
    ("env",): ("-u", "--unset", "-C", "--chdir"),
    ("nohup",): (),
    ("exec",): ("-a",),
    ("nice",): ("-n", "--adjustment"),
    ("time",): ("-f", "--format", "-o", "--output"),
    ("poetry", "run"): (),
    ("conda", "run"): ("-n", "--name", "-p", "--prefix", "--cwd"),
    ("mamba", "run"): ("-n", "--name", "-p", "--prefix", "--cwd"),
    ("micromamba", "run"): ("-n", "--name", "-p", "--prefix", "--cwd"),
    ("uv", "run"): (
        *("--with", "--with-editable", "--with-requirements", "--extra", "--group", "--only-group"),
        *("--no-group", "-p", "--python", "--env-file", "--project", "--directory", "--package"),
    ),
}
SEPARATORS = ("&&", ";")  # in a line for a shell
REDIRECTIONS = ("<", ">", "|")
PUNCTUATION = frozenset("();<>|&")


def unwrap(command: Sequence[str]) -> Words:
    """Return the words of the program below all known wrappers; no words if it is unclear."""
    words = list(command)
    while words:
        name = words[0].rsplit("/", 1)[-1]
        if name in SHELLS:
            words = _last_command(_shell_line(words[1:]))
            continue
        wrapper = next((each for each in WRAPPERS if (name, *words[1:2])[: len(each)] == each), ())
        if not wrapper:
            break
        words = _after_flags(words[len(wrapper) :], WRAPPERS[wrapper])
        if name == "env":
            words = _after_assignments(words)
        elif name == "uv" and words and (words[0].endswith(".py") or words[0] == "-m"):
            return ["python", *words]
    return words


def _after_flags(words: Words, with_value: Sequence[str]) -> Words:
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-m":
        if words[at] == "--":
            return words[at + 1 :]
        at += 2 if words[at] in with_value else 1
    return words[at:]


def _after_assignments(words: Words) -> Words:
    at = next((i for i, word in enumerate(words) if not ASSIGNMENT.fullmatch(word)), len(words))
    return words[at:]


def _shell_line(words: Words) -> str:
    """Return the line after -c; empty if the shell runs a file."""
    for i, word in enumerate(words):
        if re.fullmatch(r"-[a-z]*c[a-z]*", word):
            return next((each for each in words[i + 1 :] if not each.startswith("-")), "")
        if not word.startswith("-") and words[i - 1 : i] != ["-o"]:
            break
    return ""


def _last_command(line: str) -> Words:
    """Return the words of the last command of a line for a shell; none if the line is not simple."""
    tokens = _tokens(line)
    while tokens and tokens[-1] in SEPARATORS:
        tokens.pop()
    last: Words = []
    is_argument = True
    for word in tokens:
        if not word or set(word) - PUNCTUATION:
            last += [word] if is_argument else []
        elif word in SEPARATORS:
            last, is_argument = [], True
        elif word[0] in REDIRECTIONS and word != "||":
            is_argument = False
        else:  # a group, or a command in the background
            return []
    return _after_assignments(last)


def _tokens(line: str) -> Words:
    text = line.replace("\\\n", " ").replace("\n", " ; ")
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:  # an open quote
        return []
