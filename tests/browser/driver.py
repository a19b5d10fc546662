"""Chromium for tests, by WebDriver over HTTP: pages, pictures, and what a page loads and logs."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ddpjob_operator.local.simulated.rendezvous_process import free_port

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE_SECONDS = 120.0
WIDE, NARROW = 1100, 400  # pixels
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--force-device-scale-factor=1",
)  # fmt: skip
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Browser:
    """One window."""

    def __init__(self, driver: str, options: Mapping[str, Any]) -> None:
        self._driver = driver
        capabilities = {
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "goog:chromeOptions": dict(options),
        }
        body = {"capabilities": {"alwaysMatch": capabilities}}
        self._session = f"/session/{self._send('POST', '/session', body)['sessionId']}"

    def open(self, url: str, *, width: int = WIDE, dark: bool = False) -> None:
        """Show a page, and forget what earlier pages logged."""
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=900,
                     deviceScaleFactor=1, mobile=False)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.logged()
        self.loaded()
        self._post("/url", url=url)

    def run(self, script: str, *arguments: object) -> Any:
        """The value that a script of the page returns."""
        return self._post("/execute/sync", script=script, args=list(arguments))

    def command(self, name: str, **parameters: object) -> Any:
        """Send a command of the DevTools protocol."""
        return self._post("/goog/cdp/execute", cmd=name, params=parameters)

    def press(self, key: str) -> None:
        """Press a key and release it."""
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._post("/actions", actions=[{"type": "key", "id": "keys", "actions": actions}])

    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def until(self, script: str, what: str) -> Any:
        """Wait until a script of the page returns something true."""
        return wait(lambda: self.run(script), what, self.text)

    def picture(self, path: Path, *, height: int | None = None) -> None:
        """Write the whole page, not only what the window shows; or its upper part."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = {"clip": {"x": 0, "y": 0, "width": WIDE, "height": height, "scale": 1}}
        shot = self.command(
            "Page.captureScreenshot", captureBeyondViewport=True, **(part if height else {})
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def logged(self) -> list[str]:
        """What the console got since the last call."""
        return [each["message"] for each in self._post("/se/log", type="browser")]

    def loaded(self) -> set[str]:
        """The hosts that pages sent requests to since the last call."""
        found = set()
        for each in self._post("/se/log", type="performance"):
            message = json.loads(each["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = urlsplit(message["params"]["request"]["url"])
                found.add(url.hostname or url.scheme)
        return found

    def close(self) -> None:
        self._send("DELETE", self._session)

    def _post(self, path: str, **body: object) -> Any:
        return self._send("POST", self._session + path, body)

    def _send(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._driver + path, data, kind, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            problem = json.load(error)["value"]
            raise AssertionError(f"{path}: {problem['message']}") from None


def wait(holds: Callable[[], Any], what: str, seen: Callable[[], str] = str) -> Any:
    """Wait until it holds, and return its value."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := holds()):
        assert time.monotonic() < deadline, f"never: {what}\n{seen()}"
        time.sleep(0.05)
    return found


def find_program(*names: str) -> str:
    """Return the path of the first of these programs, or say what to install."""
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    assert found, f"none of {', '.join(names)} is on PATH; install chromium and chromium-driver"
    return found


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A window with a profile of its own, whose processes end with the `with`."""
    binary = find_program(os.environ.get("BROWSER_BINARY", ""), *BROWSERS)
    url = f"http://127.0.0.1:{(port := free_port())}"
    log = folder / "chromedriver.log"
    with log.open("wb") as output:
        command = [find_program("chromedriver"), f"--port={port}"]
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    try:
        wait(lambda: _answers(url), "chromedriver answers", log.read_text)
        options = {"binary": binary, "args": [*QUIET, f"--user-data-dir={folder / 'profile'}"]}
        opened = Browser(url, options)
        try:
            yield opened
        finally:
            opened.close()
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/status", timeout=10) as answer:
            return bool(json.load(answer)["value"]["ready"])
    except OSError:
        return False
