"""Serves the page of a local run on the loopback address, and nothing else.

May not: change the run. A request with another name of a host is refused, so that no page of
another site reads this one.
"""

from __future__ import annotations

import errno
import functools
import json
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ddpjob_operator.local.record.run_files import read_run
from ddpjob_operator.local.simulated.rendezvous_process import PortInUseError
from ddpjob_operator.report.document import response_headers
from ddpjob_operator.report.page import live_data, live_page

HOST = "127.0.0.1"
LIMIT_SECONDS = 10.0  # for a request
ASKS_SECONDS = 3.0  # within which a browser that shows the page asks again


class LivePage:
    """The page of a run, served by threads until it is closed."""

    def __init__(self, folder: Path, port: int) -> None:
        """Port 0 is a free one; raise PortInUseError for a port in use."""
        self._viewer = _Viewer()
        handler = functools.partial(_Handler, folder, self._viewer)
        try:
            self._server = ThreadingHTTPServer((HOST, port), handler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            reason = "is in use" if error.errno == errno.EADDRINUSE else "needs more rights"
            raise PortInUseError(
                f"--web-port {port}: the port {reason}; choose another one, or use --web without it"
                " to get a free one"
            ) from None
        self.url = f"http://{HOST}:{self._server.server_address[1]}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving, once a browser that shows the page has the end of the run."""
        self._viewer.wait_for_end()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Viewer:
    """A browser that shows the page: it asks each second."""

    def __init__(self) -> None:
        self._asked = -ASKS_SECONDS
        self._ending = False
        self._served = threading.Event()

    def asks(self) -> bool:
        """Record a request; return whether its answer has the end of the run."""
        self._asked = time.monotonic()
        return self._ending

    def has_end(self) -> None:
        """Record that an answer with the end was sent."""
        self._served.set()

    def wait_for_end(self) -> None:
        """Wait for the next request, if there was one lately; from now on answers have the end."""
        self._ending = True
        if time.monotonic() - self._asked < ASKS_SECONDS:
            self._served.wait(ASKS_SECONDS)


class _Handler(BaseHTTPRequestHandler):
    """GET of the page and of its data."""

    server_version = "ddpjob"
    sys_version = ""
    timeout = LIMIT_SECONDS

    def __init__(self, folder: Path, viewer: _Viewer, *arguments: object) -> None:
        self._folder = folder
        self._viewer = viewer
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        name = self.headers.get("Host", "").rpartition(":")[0]
        if name not in (HOST, "localhost"):
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "this page is for 127.0.0.1\n")
            return
        path = self.path.partition("?")[0]
        if path not in ("/", "/run.json"):
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "the page of the run is /\n")
            return
        has_end = path == "/run.json" and self._viewer.asks()
        try:
            run = read_run(self._folder)
        except (OSError, ValueError) as error:
            text = f"the files of the run cannot be read: {error}\n"
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", text)
            return
        if path == "/":
            self._send(HTTPStatus.OK, "text/html", live_page(run))
        else:
            self._send(HTTPStatus.OK, "application/json", json.dumps(live_data(run)))
        if has_end:
            self._viewer.has_end()

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            **response_headers(),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Print nothing: the screen belongs to the run."""
