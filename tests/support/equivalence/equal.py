"""Runs one task with one seed in all manners, and measures how they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from support.equivalence import disturbed, restarted
from support.equivalence.curves import Difference, Section, Trained, Yardstick, curve_differences
from support.equivalence.disturbed import UNDISTURBED, WHOLE, Lesson, Shape

OURS, STOCK, DIVIDED = "ddpjob", "torchrun", "torchrun, one batch"
HARMS = {
    "drop": "one dropped sample",
    "double": "one doubled weight",
    "stale": "stale DDP wrapper",
}
SHARDS = 8
FULL_WORLD = [Section(0, WHOLE.processes)]

Say = Callable[[str], None]


class Plan(NamedTuple):
    """The number of steps and changes of a task."""

    task: str
    epochs: int
    changes: int


class Compared(NamedTuple):
    """A run, and those that it is to be equal to."""

    run: Trained
    others: Sequence[Trained]


async def compare(plan: Plan, seed: int, say: Say, *, first: bool, quick: bool) -> dict[str, Any]:
    """Train in all manners; some of them, and curves, only of the `first` seed."""
    lesson = Lesson(plan.task, seed, plan.epochs)
    events = disturbed.draw(seed, plan.changes)
    still = []
    for shape in UNDISTURBED:
        say(f"undisturbed, {shape.workers} workers with {shape.processes} processes")
        still.append(await disturbed.train(lesson, shape))
    say(f"{OURS}: {', '.join(events)}")
    ours = await disturbed.train(lesson, WHOLE, events)
    compared = {OURS: Compared(ours, still)}
    for harm, name in HARMS.items() if first else ():
        say(name)
        compared[name] = Compared(await harmed(lesson, harm, len(ours.curve) // 2), still)
    both = ((STOCK, False), (DIVIDED, True))
    for name, divides in both if first and not quick else both[:1]:
        say(name)
        compared[name] = await restart(lesson, ours, divides=divides)
    exact = []
    if not quick:
        say(f"deterministic: {', '.join(events)}")
        exact = await determined(lesson, events)
    return {
        "task": plan.task,
        "seed": seed,
        **facts(Yardstick(still), compared, exact),
        **({"curves": curves(still, compared)} if first else {}),
    }


async def harmed(lesson: Lesson, harm: str, at: int) -> Trained:
    """Train with a mistake on purpose; a wrapper is stale only once a worker has left."""
    wrong = lesson._replace(harm=harm, at=at)
    if harm == "stale":
        return await disturbed.train(wrong, WHOLE, ["drain"])
    return await disturbed.train(wrong, Shape(2))


async def determined(lesson: Lesson, events: Sequence[str]) -> list[Trained]:
    """Deterministic mode: one worker undisturbed, and three with changes."""
    exact = lesson._replace(shards=SHARDS)
    return [
        await disturbed.train(exact, Shape(1)),
        await disturbed.train(exact, WHOLE, events),
    ]


async def restart(lesson: Lesson, ours: Trained, *, divides: bool) -> Compared:
    """Stock torchrun with the changes that ours had, beside itself with none."""
    steps = len(ours.curve)
    still = await restarted.train(lesson, FULL_WORLD, steps, divides=divides)
    return Compared(await restarted.train(lesson, ours.sections, steps, divides=divides), [still])


def facts(
    yardstick: Yardstick, compared: Mapping[str, Compared], exact: Sequence[Trained]
) -> dict[str, Any]:
    """Return the results of a task and seed."""
    ours, still = compared[OURS]
    runs = {"undisturbed": still[0], **{name: run for name, (run, _) in compared.items()}}
    differences: dict[str, Difference] = {
        name: yardstick.measure(run, others) for name, (run, others) in compared.items()
    }
    return {
        "steps": len(ours.curve),
        "parameters": len(ours.finals[0]),
        "changes": len(ours.sections) - 1,
        "sections": [section._asdict() for section in ours.sections],
        "tolerance": yardstick.tolerance._asdict(),
        "differences": {name: each._asdict() for name, each in differences.items()},
        "held_out": {
            name: {"loss": run.loss, "accuracy": run.accuracy} for name, run in runs.items()
        },
        "digests": [run.digest for run in exact],
    }


def curves(still: Sequence[Trained], compared: Mapping[str, Compared]) -> dict[str, Any]:
    """To be drawn: losses, and their differences to what they are to be equal to."""
    return {
        "undisturbed": _short(still[0].curve),
        **{
            name: {
                "loss": _short(run.curve),
                "difference": _short(curve_differences(run, others)),
            }
            for name, (run, others) in compared.items()
        },
    }


def _short(numbers: Sequence[float]) -> list[float]:
    return [float(f"{number:.4g}") for number in numbers]
