"""An HTML document with everything inside, and how it is served. Pure."""

from __future__ import annotations

import base64
import hashlib

from ddpjob_operator.report.style import SCRIPT, STYLE
from ddpjob_operator.report.words import safe

_LIVE_HEAD = '<noscript><meta http-equiv="refresh" content="5"></noscript>'


def document(title: str, main: str, *, live: bool = False, above: str = "") -> str:
    """Return a document around the contents of its main part.

    A live one renews that part itself; without scripts it loads again.
    """
    status = '<p role="status"></p>' if live else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{content_policy(live=live)}">
<title>{safe(title)}</title>
{_LIVE_HEAD if live else ""}<style>{STYLE}</style>
</head>
<body>
{above}{status}<main>
{main}
</main>
{f"<script>{SCRIPT}</script>" if live else ""}</body>
</html>
"""


def column_head(head: str) -> str:
    """Return the head of a column; one with `*` has numbers below it, one with `+` sentences."""
    return f'<th scope="col"{column_class(head)}>{safe(head.lstrip("*+"))}</th>'


def column_class(head: str) -> str:
    """Return the class of a column's cells, as an attribute."""
    return {"*": ' class="n"', "+": ' class="t"'}.get(head[:1], "")


def content_policy(*, live: bool) -> str:
    """Return the content policy: the page's own style, and for the live page its own script."""
    policy = f"default-src 'none'; style-src {_digest(STYLE)}"
    return f"{policy}; script-src {_digest(SCRIPT)}; connect-src 'self'" if live else policy


def response_headers() -> dict[str, str]:
    """Return the headers of each answer of a server of live pages."""
    return {
        "Content-Security-Policy": content_policy(live=True),
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
