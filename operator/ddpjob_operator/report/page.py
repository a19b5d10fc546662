"""The page of a run: HTML with everything inside, for a file and for the live page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpjob_operator.report import charts
from ddpjob_operator.report.document import column_class, column_head, document
from ddpjob_operator.report.run import MAX_METRICS, Change, Run
from ddpjob_operator.report.time_use import USES, time_use
from ddpjob_operator.report.words import (
    clock_text,
    date_text,
    number_text,
    safe,
    seconds_text,
)
from ddpjob_protocol.text import plural

MAX_ROWS = 200  # of a table
POINT_ROWS = 50  # of the table of steps
RATES = 60  # a rate is measured over one of this number of parts of the run
Cell = tuple[str, str]  # class, HTML


def report_page(run: Run) -> str:
    """Return the page of a run as one file."""
    return document(_title(run), main_part(run))


def live_page(run: Run, above: str = "") -> str:
    """Return the page of a run that renews itself; `above` is HTML before its main part."""
    return document(_title(run), main_part(run), live=True, above=above)


def _title(run: Run) -> str:
    return f"{run.name}: {run.state}"


def live_data(run: Run) -> dict[str, str]:
    """Return what the page of a run renews itself with; its state changes seldom."""
    size = run.changes[-1].world_size if run.changes else 0
    state = f"{run.state}: membership {len(run.changes)}, world size {size}"
    ended = "ended" if run.ended else ""
    return {"title": _title(run), "main": main_part(run), "state": state, "ended": ended}


def main_part(run: Run) -> str:
    """Return the contents of the page."""
    parts = [
        f"<h1>{safe(run.name)}</h1>",
        f'<p class="state"><strong>{safe(run.state)}</strong>{_message(run)}</p>',
        _source(run),
        _summary(run),
        _memberships(run),
        _time(run),
        _progress(run),
        _metrics(run),
        _hangs(run),
        _notes(run),
    ]
    return "\n".join(filter(None, parts))


def _message(run: Run) -> str:
    return f": {safe(run.message)}" if run.message else ""


def _source(run: Run) -> str:
    until = "" if run.ended else ", not ended"
    return f"<p>{safe(run.source)}; from {date_text(run.begin)} to {date_text(run.now)}{until}.</p>"


def _summary(run: Run) -> str:
    use = time_use(run)
    last = run.changes[-1] if run.changes else None
    total = f" of {run.total_steps}" if run.total_steps else ""
    facts = {
        "Time": seconds_text(run.elapsed),
        "Step": "not reported" if run.step is None else f"{run.step}{total}",
        "Steps per second": number_text(run.rate),
        "World size": str(last.world_size) if last else f"none{_yet(run)}",
        "Memberships": str(len(run.changes)),
        "Steps done again": str(sum(change.repeated_steps for change in run.changes)),
        "Goodput": f"{100 * use.goodput:.1f} %" if use else "not known",
        **{name: number_text(value) for name, value in list(run.metrics.items())[:MAX_METRICS]},
    }
    cells = (f"<div><dt>{safe(k)}</dt><dd>{safe(v)}</dd></div>" for k, v in facts.items())
    return f"<dl>{''.join(cells)}</dl>"


def _yet(run: Run) -> str:
    return "" if run.ended else " yet"


def _memberships(run: Run) -> str:
    if not run.changes:
        return f"<h2>Memberships</h2><p>No membership was formed{_yet(run)}.</p>"
    causes = dict.fromkeys(change.cause for change in run.changes)
    keys = _keys({cause: cause for cause in causes})
    injected = any(note.kind == charts.FAULT for note in run.notes)
    faults = " A dashed line is an injected fault." if injected else ""
    older = "" if run.complete else " Older memberships are not known any more."
    rows = [_change_row(run, change) for change in run.changes]
    heads = (
        "At", "Cause", "+What happened", "*World size", "*Without steps", "*First step",
        "*Resumed from", "*Done again",
    )  # fmt: skip
    return (
        f"<h2>Memberships</h2><p>Height is the world size. Hatched is the time without steps."
        f"{faults}{older}</p>{charts.bands(run)}<p>{keys}</p>"
        + _table("memberships", "All memberships, oldest first.", heads, rows)
    )


def _keys(names: dict[str, str]) -> str:
    """Return the legend of a chart: the class of each color, and its name."""
    return " ".join(
        f'<span class="name"><span class="key {safe(key)}"></span> {safe(name)}</span>'
        for key, name in names.items()
    )


def _change_row(run: Run, change: Change) -> list[str]:
    text = "; ".join([change.detail, *change.ended])
    resumed = "" if change.resumed_step is None else f"step {change.resumed_step}"
    return [
        clock_text(change.since - run.begin),
        change.cause,
        text,
        str(change.world_size),
        seconds_text(change.stall_seconds),
        "" if change.first_step is None else str(change.first_step),
        resumed,
        str(change.repeated_steps or ""),
    ]


def _time(run: Run) -> str:
    if not run.changes:
        return ""
    use = time_use(run)
    if use is None:
        text = "The script reports no steps, so it is not known which time was lost."
        return f"<h2>Where the time went</h2><p>{text}</p>"
    whole = sum(use.seconds.values()) or 1.0
    rows = [
        [name, seconds_text(use.seconds[key]), f"{100 * use.seconds[key] / whole:.1f} %"]
        for key, name in USES.items()
        if use.seconds[key] > 0
    ]
    about = (
        "Goodput is the share of new steps. The loss of a change begins with the last step before it"
        " and ends with the report of the first step after it, which includes that step."
    )
    keys = _keys({key: name for key, name in USES.items() if use.seconds[key] > 0})
    bar = charts.shares(use.seconds, USES)
    return f"<h2>Where the time went</h2><p>{about}</p>{bar}<p>{keys}</p>" + _table(
        "uses", "Time by use.", ("Use", "*Time", "*Share"), rows
    )


def _progress(run: Run) -> str:
    steps = [(point.at - run.begin, float(point.step)) for point in run.points]
    rates = _rates(run)
    drawn = charts.line("steps", "Steps over time", steps, run.elapsed)
    drawn_rates = charts.line("rates", "Steps per second over time", rates, run.elapsed)
    if not drawn:
        return ""
    heads = ("At", "*Step", "*Steps per second", *(f"*{n}" for n in run.metric_names[:MAX_METRICS]))
    every = -(-len(run.points) // POINT_ROWS)
    shown = [*run.points[:-1:every], run.points[-1]]
    rows = [
        [
            clock_text(point.at - run.begin),
            str(point.step),
            "" if point.rate is None else number_text(point.rate),
            *(
                number_text(point.metrics[name]) if name in point.metrics else ""
                for name in run.metric_names[:MAX_METRICS]
            ),
        ]
        for point in shown
    ]
    table = _table("points", f"{len(shown)} of {plural(len(run.points), 'point')}.", heads, rows)
    details = f'<details id="points-part"><summary id="points-more">Steps as a table</summary>{table}</details>'
    second = f"<h3>Steps per second</h3>{drawn_rates}" if drawn_rates else ""
    return f"<h2>Progress</h2><h3>Steps</h3>{drawn}{second}{details}"


def _rates(run: Run) -> list[tuple[float, float]]:
    """Return steps per second over time, each between two points that are some points apart."""
    apart = max(1, len(run.points) // RATES)
    return [
        (new.at - run.begin, (new.step - old.step) / (new.at - old.at))
        for old, new in zip(run.points, run.points[apart:], strict=False)
        if new.step > old.step and new.at > old.at
    ]


def _metrics(run: Run) -> str:
    parts = []
    for number, name in enumerate(run.metric_names[:MAX_METRICS]):
        pairs = [(float(p.step), p.metrics[name]) for p in run.points if name in p.metrics]
        drawn = charts.line(f"metric{number}", f"{name} over steps", pairs)
        if drawn:
            parts.append(f"<h3>{safe(name)}</h3>{drawn}")
    if not parts:
        return ""
    left = len(run.metric_names) - MAX_METRICS
    more = f"<p>{plural(left, 'more metric')} not shown.</p>" if left > 0 else ""
    about = "<p>By step. After a loss, steps that were done again appear twice.</p>"
    return f"<h2>Metrics</h2>{about}{''.join(parts)}{more}"


def _hangs(run: Run) -> str:
    if not run.hangs:
        return ""
    rows = [
        [
            clock_text(hang.since - run.begin),
            seconds_text((run.now if hang.until is None else hang.until) - hang.since),
            str(hang.step),
            hang.text,
        ]
        for hang in run.hangs
    ]
    heads = ("Since", "*Lasted", "*After step", "+Cause")
    return "<h2>Hangs</h2>" + _table("hangs", "No step for long.", heads, rows)


def _notes(run: Run) -> str:
    if not run.notes:
        return ""
    rows = [
        ["" if n.at is None else clock_text(n.at - run.begin), n.kind, n.text] for n in run.notes
    ]
    return "<h2>Events and problems</h2>" + _table(
        "notes", "Oldest first.", ("At", "Kind", "+Text"), rows
    )


def _table(key: str, caption: str, heads: Sequence[str], rows: Sequence[Iterable[str]]) -> str:
    """Return a table that the keyboard can scroll; its heads are those of `column_head`."""
    top = "".join(column_head(head) for head in heads)
    body = "".join(
        "<tr>"
        + "".join(f"<td{column_class(h)}>{safe(c)}</td>" for c, h in zip(row, heads, strict=True))
        + "</tr>\n"
        for row in rows[-MAX_ROWS:]
    )
    left = len(rows) - MAX_ROWS
    note = f" The {MAX_ROWS} newest; {left} older are not shown." if left > 0 else ""
    return (
        f'<div class="wide" id="{key}" tabindex="0" role="region" aria-labelledby="{key}-c"><table>'
        f'<caption id="{key}-c">{safe(caption + note)}</caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )
