"""The list of jobs as HTML, for the operator's web page. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.report.document import column_class, column_head
from ddpjob_operator.report.words import safe
from ddpjob_protocol.text import duration, plural, shorten

ROWS = 200  # jobs of one page
MESSAGE = 160  # characters; the page of the job has all
NONE = "-"
ENDED = ("Complete", "Failed")
ACTIVE = ("Running", "Resizing")
HEADS = ("Namespace", "Name", "State", "+Explanation", "*Ready", "*World size", "*Progress",
         "*Time left", "*Restarts", "*Age")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class JobLine:
    """A job as one row."""

    namespace: str
    name: str
    created: datetime | None
    state: str
    ready: str
    world_size: int | None
    progress: str
    ends: datetime | None
    restarts: int
    message: str

    @property
    def order(self) -> tuple[bool, str, str]:
        """Jobs that have not ended come first."""
        return self.state in ENDED, self.namespace, self.name


@dataclasses.dataclass(frozen=True)
class JobList:
    """One page of the list."""

    lines: Sequence[JobLine]  # of this page
    states: Counter[str]  # of all jobs
    page: int = 1
    pages: int = 1
    problem: str = ""  # why the list may be old


def line_of_status(
    namespace: str, name: str, created: datetime | None, status: DDPJobStatus
) -> JobLine:
    """Return the row of a job."""
    progress = status.progress
    ended = status.state in ENDED
    return JobLine(
        namespace,
        name,
        created,
        status.state,
        "" if ended else status.ready,
        None if ended or status.membership is None else status.membership.world_size,
        progress.display if progress else "",
        progress.estimated_completion if progress and status.state in ACTIVE else None,
        status.restarts.total,
        status.message,
    )


def select_page(lines: Sequence[JobLine], page: int, problem: str = "") -> JobList | None:
    """Return one page of all jobs, which counts from 1; None if there is no such page."""
    pages = max(1, -(-len(lines) // ROWS))
    if not 1 <= page <= pages:
        return None
    chosen = sorted(lines, key=lambda line: line.order)[(page - 1) * ROWS : page * ROWS]
    return JobList(chosen, Counter(line.state for line in lines), page, pages, problem)


def list_state(jobs: JobList) -> str:
    """Return the number of jobs by state in one line, which changes seldom."""
    found = ", ".join(f"{count} {state}" for state, count in sorted(jobs.states.items()))
    return f"{plural(jobs.states.total(), 'job')}{': ' + found if found else ''}"


def list_main(jobs: JobList, root: str, now: datetime) -> str:
    """Return the contents of the page; `root` is the relative path to the first page."""
    parts = ["<h1>DDPJobs</h1>"]
    if jobs.lines:
        parts.append(f"<p>{safe(list_state(jobs))}.</p>")
    if jobs.problem:
        parts.append(f"<p><strong>This list may be old: {safe(jobs.problem)}</strong></p>")
    if jobs.pages > 1:
        links = (
            f'<a id="page/{n}" href="{root or "./"}">1</a>'
            if n == 1
            else f'<a id="page/{n}" href="{root}pages/{n}/">{n}</a>'
            for n in range(1, jobs.pages + 1)
        )
        parts.append(f"<nav>Page {jobs.page} of {jobs.pages}: {' '.join(links)}</nav>")
    parts.append(_table(jobs.lines, root, now) if jobs.lines else "<p>There are no jobs.</p>")
    return "\n".join(parts)


def _table(lines: Sequence[JobLine], root: str, now: datetime) -> str:
    heads = "".join(column_head(head) for head in HEADS)
    rows = "\n".join(_row(line, root, now) for line in lines)
    return (
        '<div class="wide" id="jobs" tabindex="0" role="region" aria-labelledby="jobs-c"><table>'
        '<caption id="jobs-c">Jobs that have not ended come first.</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _row(line: JobLine, root: str, now: datetime) -> str:
    key = safe(f"{line.namespace}/{line.name}")
    cells = (
        safe(line.namespace),
        f'<a id="job/{key}" href="{root}jobs/{key}/">{safe(line.name)}</a>',
        safe(line.state),
        safe(shorten(line.message, MESSAGE)),
        safe(line.ready or NONE),
        NONE if line.world_size is None else str(line.world_size),
        safe(line.progress or NONE),
        NONE if line.ends is None else duration((line.ends - now).total_seconds()),
        str(line.restarts),
        NONE if line.created is None else duration((now - line.created).total_seconds()),
    )
    columns = zip(HEADS, cells, strict=True)
    return f"<tr>{''.join(f'<td{column_class(head)}>{cell}</td>' for head, cell in columns)}</tr>"
