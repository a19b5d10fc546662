"""Charts as SVG: bands of memberships, lines, one bar of shares. Pure.

Each chart is an image with a name and a description; the page has the same data as a table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ddpjob_operator.report.run import Change, Run
from ddpjob_operator.report.words import clock_text, number_text, safe

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 960, 70, 36, 12, 34
PLOT = WIDTH - LEFT - RIGHT
MAX_POINTS = 300  # of a line
MAX_BANDS = 200
FAULT = "chaos"  # kind of the notes about injected faults
SLIM = 52  # width of a band that has no room for the larger text of a narrow screen
TICKS = 5
CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
Pair = tuple[float, float]


def bands(run: Run) -> str:
    """Return the memberships over time: height is the world size, hatched is time without steps."""
    height = 150
    inner = height - TOP - BOTTOM
    shown = run.changes[-MAX_BANDS:]
    begin = run.begin if len(shown) == len(run.changes) else shown[0].since
    span = max(run.now - begin, 1e-9)
    most = max((change.world_size for change in shown), default=1) or 1

    def x_of(at: float) -> float:
        return LEFT + PLOT * min(1.0, max(0.0, (at - begin) / span))

    parts: list[str] = []
    labels: list[str] = []
    for change in shown:
        x, end = x_of(change.since), x_of(change.until)
        tall = max(8.0, inner * change.world_size / most)
        parts.append(_band(change, x, end, tall, TOP + inner))
        labels += _band_labels(change, x, end, tall, TOP + inner)
        if change.stall_seconds and change.first_step_at is not None:
            first, last = (
                x_of(at)
                for at in (change.first_step_at - change.stall_seconds, change.first_step_at)
            )
            parts.append(
                f'<rect x="{first:.1f}" y="{TOP}" width="{max(1.0, last - first):.1f}" '
                f'height="{inner}" fill="url(#stall)"/>'
            )
    faults = [n for n in run.notes if n.kind == FAULT and n.at is not None and n.at >= begin]
    for note in faults[:MAX_BANDS]:
        x = x_of(note.at or 0.0)
        line = f'x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{TOP + inner}"'
        parts.append(f'<line {line} class="fault"><title>{safe(note.text)}</title></line>')
    ticks = _clock_ticks(0.0, span)
    axis = "".join(
        _tick_below(LEFT + PLOT * t / span, height, clock_text(t + begin - run.begin))
        for t in ticks
    )
    pattern = (
        '<defs><pattern id="stall" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="3" height="6" class="hatch"/></pattern></defs>'
    )
    description = f"{len(shown)} memberships over {clock_text(span)}; the table lists them."
    return _svg(
        "bands",
        "Memberships over time",
        description,
        height,
        pattern + "".join(parts + labels) + axis,
    )


def _band(change: Change, x: float, end: float, tall: float, bottom: float) -> str:
    """Return the bar of one membership."""
    box = f'x="{x:.1f}" y="{bottom - tall:.1f}" width="{max(1.0, end - x):.1f}" height="{tall:.1f}"'
    title = f"membership {change.id}, {change.cause}: world size {change.world_size}"
    cause = change.cause if change.cause.isalpha() else "other"
    return f'<rect {box} class="band {safe(cause)}"><title>{safe(title)}</title></rect>'


def _band_labels(change: Change, x: float, end: float, tall: float, bottom: float) -> Iterator[str]:
    """Yield world size and cause, if the bar has room for them."""
    middle, wide = (x + end) / 2, end - x
    if wide > 26:
        slim = "" if wide > SLIM else " slim"
        at = f'x="{middle:.1f}" y="{bottom - 8:.1f}" class="in-band{slim}"'
        yield f"<text {at}>{change.world_size}</text>"
    if wide > 16 * len(change.cause) and tall > SLIM:
        at = f'x="{middle:.1f}" y="{bottom - tall + 24:.1f}" class="in-band"'
        yield f"<text {at}>{safe(change.cause)}</text>"


def line(key: str, title: str, pairs: Sequence[Pair], until: float | None = None) -> str:
    """Return one line over steps, or over the time until a time; empty without two points."""
    if len(pairs) < 2:
        return ""
    height = 200
    inner = height - TOP - BOTTOM
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    (x0, x1), (y0, y1) = _range(xs if until is None else [0.0, until, *xs]), _range(ys)
    x_text, x_ticks = (number_text, _ticks) if until is None else (clock_text, _clock_ticks)

    def place(pair: Pair) -> str:
        x = LEFT + PLOT * _share(pair[0], x0, x1)
        return f"{x:.1f},{TOP + inner * (1 - _share(pair[1], y0, y1)):.1f}"

    drawn = " ".join(place(pair) for pair in thin(pairs))
    parts = []
    for y in _ticks(y0, y1):
        at = TOP + inner * (1 - _share(y, y0, y1))
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" class="left">{number_text(y)}</text>')
    parts += [
        _tick_below(LEFT + PLOT * _share(x, x0, x1), height, x_text(x)) for x in x_ticks(x0, x1)
    ]
    parts.append(f'<polyline points="{drawn}" class="line"/>')
    description = (
        f"From {number_text(ys[0])} to {number_text(ys[-1])}; least {number_text(min(ys))}, "
        f"most {number_text(max(ys))}; over {'steps' if until is None else 'time'} {x_text(xs[0])} to {x_text(xs[-1])}."
    )
    return _svg(key, title, description, height, "".join(parts))


def shares(seconds: dict[str, float], names: dict[str, str]) -> str:
    """Return one bar, divided by the seconds of each use."""
    whole = sum(seconds.values())
    if not whole:
        return ""
    x, parts = 0.0, []
    for key, value in seconds.items():
        width = WIDTH * value / whole
        if width > 0:
            title = f"{names[key]}: {100 * value / whole:.1f} %"
            box = f'x="{x:.1f}" y="0" width="{width:.1f}" height="36"'
            parts.append(f'<rect {box} class="band {key}"><title>{safe(title)}</title></rect>')
        x += width
    goodput = f"{100 * seconds['training'] / whole:.1f} % of the time went into new steps."
    return _svg("shares", "Where the time went", goodput, 36, "".join(parts))


def thin(pairs: Sequence[Pair]) -> list[Pair]:
    """Return at most MAX_POINTS pairs, with the least and the greatest of each part of the line."""
    if len(pairs) <= MAX_POINTS:
        return list(pairs)
    return list(_extremes(pairs, MAX_POINTS // 2 - 1))


def _extremes(pairs: Sequence[Pair], parts: int) -> Iterator[Pair]:
    yield pairs[0]
    size = (len(pairs) - 2) / parts
    for number in range(parts):
        part = range(1 + int(number * size), 1 + int((number + 1) * size))
        low, high = min(part, key=lambda i: pairs[i][1]), max(part, key=lambda i: pairs[i][1])
        for index in sorted({low, high}):
            yield pairs[index]
    yield pairs[-1]


def _svg(key: str, title: str, description: str, height: int, inner: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{key}-t {key}-d">'
        f'<title id="{key}-t">{safe(title)}</title><desc id="{key}-d">{safe(description)}</desc>'
        f"{inner}</svg>"
    )


def _tick_below(x: float, height: int, text: str) -> str:
    return f'<text x="{x:.1f}" y="{height - 12}" class="below">{safe(text)}</text>'


def _range(values: Sequence[float]) -> Pair:
    low, high = min(values), max(values)
    if low == high:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    return low, high


def _share(value: float, low: float, high: float) -> float:
    """Return where a value is between two others, 0 to 1; halves avoid an overflow."""
    return (value / 2 - low / 2) / (high / 2 - low / 2)


def _clock_ticks(low: float, high: float) -> list[float]:
    """Return times between two others that are round on a clock."""
    rough = high / TICKS - low / TICKS
    if not math.isfinite(rough):
        return [low]
    days = 86400 * math.ceil(rough / 86400)
    size = next((each for each in CLOCK_STEPS if each >= rough), days)
    return [float(size * n) for n in range(math.ceil(low / size), math.floor(high / size) + 1)]


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two values."""
    rough = high / TICKS - low / TICKS
    if not (math.isfinite(rough) and rough > 1e-300):
        return [low]
    base = 10.0 ** math.floor(math.log10(rough))
    size = next(base * factor for factor in (1, 2, 5, 10) if base * factor >= rough)
    first = math.ceil(low / size)
    ticks = [size * (first + number) for number in range(TICKS + 2)]
    return [tick for tick in ticks if tick <= high]
