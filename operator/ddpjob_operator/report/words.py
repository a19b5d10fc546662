"""Numbers as people read them, and text that is safe in HTML. Pure."""

from __future__ import annotations

import html
from datetime import UTC, datetime

MAX_TEXT = 400  # characters of one text


def safe(text: object) -> str:
    """Return a text for HTML, shortened, without control characters."""
    plain = "".join(c if c.isprintable() else " " for c in str(text))
    if len(plain) > MAX_TEXT:
        plain = plain[: MAX_TEXT - 1] + "…"
    return html.escape(plain, quote=True)


def seconds_text(seconds: float | None) -> str:
    """Return a duration: 0.43 s, 45 s, 12 min 3 s, 3 h 2 min."""
    if seconds is None:
        return "not known"
    if seconds < 9.95:
        return f"{seconds:.2f} s" if seconds < 0.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def clock_text(seconds: float) -> str:
    """Return a time since the start: 0:07, 12:03, 3:02:07."""
    whole = int(max(0.0, seconds))
    hours, rest = divmod(whole, 3600)
    minutes = f"{rest // 60:02d}" if hours else str(rest // 60)
    return f"{hours}:{minutes}:{rest % 60:02d}" if hours else f"{minutes}:{rest % 60:02d}"


def date_text(at: float) -> str:
    """Return a time of day in UTC."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, OSError, ValueError):
        return "not known"


def number_text(value: float | None) -> str:
    """Return a number with four significant digits; whole numbers in full."""
    if value is None:
        return "not known"
    return str(int(value)) if value == int(value) and abs(value) < 1e9 else f"{value:.4g}"
