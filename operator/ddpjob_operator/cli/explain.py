"""`ddpjob explain`: what a reason means, and what to do; what a field does.

May not: know a reason or a field; the catalogue and the models do.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from ddpjob_operator.api import reasons
from ddpjob_operator.api.constants import ConditionType
from ddpjob_operator.cli.common import CommandError, ExitCode

MAX_NEAR = 3
WIDTH = 88
DOCS = "docs/reasons.md"
STATES = ("Pending", "Waiting", "Unknown")  # that are no condition


def complete_words(incomplete: str) -> list[str]:
    """Return the reasons and the fields of the spec that begin with a text, for a completion."""
    return [word for word in [*reasons.CATALOGUE, *_paths()] if word.startswith(incomplete)]


Word = Annotated[
    str,
    typer.Argument(
        metavar="REASON|FIELD",
        help="A reason of a condition, an event or a warning; or a field, with or without its path.",
        show_default=False,
        autocompletion=complete_words,
    ),
]


def explain(word: Word) -> None:
    """Explain a reason, or a field of a job."""
    known = {name.lower(): name for name in reasons.CATALOGUE}
    name = known.get(word.lower(), "")
    found = list(_reason(name)) if name else list(_field(word))
    if not found:
        raise CommandError(ExitCode.INVALID, _unknown(word))
    print("\n".join(found))


def _reason(word: str) -> Iterator[str]:
    entry = reasons.CATALOGUE[word]
    yield f"{word} (reason of {reasons.kinds_of(word)})"
    for head, text in zip(("cause", "effect", "remedy"), entry, strict=True):
        yield from _wrapped(f"{head + ':':<8}", text)
    yield from _wrapped("more:   ", f"{DOCS}#{word.lower()}")


def _field(word: str) -> Iterator[str]:
    """Yield the lines about the fields with this path, or with this name if no path fits."""
    from ddpjob_operator.api.schema_words import fields, type_words  # noqa: PLC0415 - loads the models

    wanted = word.replace("[]", "").lower()
    every = list(fields())
    exact = [f for f in every if f.path.lower() in (wanted, f"spec.{wanted}")]
    for number, field in enumerate(exact or [f for f in every if f.name.lower() == wanted]):
        if number:
            yield ""
        what = type_words(field.schema, lambda _: "object")
        yield f"{field.path} ({what.replace('`', '')}{', required' if field.is_required else ''})"
        yield from _wrapped("  ", field.schema["description"])
        if field.children:
            yield from _wrapped("  fields: ", ", ".join(field.children))


def _paths() -> list[str]:
    from ddpjob_operator.api.schema_words import fields  # noqa: PLC0415 - loads the models

    return [field.path for field in fields()]


def _unknown(word: str) -> str:
    if word.capitalize() in [*ConditionType, *STATES]:
        return f"{word} is a state; `ddpjob describe JOB` names its reason: ddpjob explain REASON"
    paths = _paths()
    near = _nearest(word, [*reasons.CATALOGUE, *paths, *(p.rpartition(".")[2] for p in paths)])
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    return (
        f"'{word}' is neither a reason nor a field of a job{hint} {DOCS} lists the reasons,"
        " docs/ddpjob.md the fields"
    )


def _nearest(word: str, known: Sequence[str]) -> list[str]:
    by_lower = {each.lower(): each for each in known}
    return [by_lower[e] for e in difflib.get_close_matches(word.lower(), by_lower, MAX_NEAR)]


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
