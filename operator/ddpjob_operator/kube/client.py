"""Sends requests to a cluster's API server through the client of the `kubernetes` package.

The models of that package stay unused, because they check and change the users' templates.

Theory of operation. The caller gets every failure, unless a retry is harmless:
- 429: the API server has executed nothing. Any request waits as long as the server demands.
- 401: the API server has executed nothing. The client loads the credentials again, which runs the
  credential plugin and reads token files, and sends the request once more. A request that still
  uses the old credentials, such as a watch, continues until the next replacement.
- 5xx and broken connections: the client repeats a GET after a short pause. It does not repeat a
  write, because the server may have executed the write without an answer.
An answer of a service behind the API server's proxy is final: the client does not repeat it.

May not: know any kind of object, or decide anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import aiohttp
from kubernetes.aio import config

from ddpjob_operator.kube.auth import ConfigError, Credentials, from_kubeconfig, from_pod, in_pod
from ddpjob_operator.kube.interface import ApiError, ApiServer, UnreachableError
from ddpjob_operator.kube.last_check import Check, NotSentError
from ddpjob_operator.request import Request

CONNECT_SECONDS = 10.0
LOAD_SECONDS = 30.0  # longest wait of a request for new credentials.
RETRIES_WHEN_THROTTLED = 5  # attempts after the first 429
LONGEST_PAUSE_SECONDS = 10.0  # if the server demands more, the caller gets the error
READ_AGAIN = 2  # attempts of a GET after the first failure
READ_AGAIN_SECONDS = 0.2
MESSAGE_CHARACTERS = 1000
LEVELS = 10_000  # of an object that an API server stores
ROOM = 1000  # calls around a reader of JSON
PROXIED = re.compile(r"/(services|pods)/[^/]+/proxy(/|$)")


class KubeClient(ApiServer):
    """The API server of a cluster."""

    def __init__(
        self, api: Credentials, load: Callable[[], Awaitable[Credentials]], *, in_cluster: bool
    ) -> None:
        self.in_cluster = in_cluster
        self._api = api
        self._load = load
        self._loading: asyncio.Task[None] | None = None
        self._retired: Credentials | None = None

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        may_write: Check | None = None,
    ) -> KubeClient:
        """Connect by kubeconfig or context, else as the pod; raise ConfigError if neither works.

        `may_write` is asked directly before the bytes of each write are sent. This process can read
        objects of any depth from here on: else one job would hide all others, from kopf, too.
        """
        sys.setrecursionlimit(max(sys.getrecursionlimit(), LEVELS + ROOM))
        in_cluster = kubeconfig is None and context is None and in_pod()
        source = from_pod if in_cluster else functools.partial(from_kubeconfig, kubeconfig, context)

        async def load() -> Credentials:
            loaded = await source()
            if may_write is not None:
                loaded.check_writes(may_write)
            return loaded

        return cls(await load(), load, in_cluster=in_cluster)

    async def close(self) -> None:
        """Close all connections."""
        for api in (self._api, self._retired):
            if api is not None:
                await api.close()

    async def credentials(self) -> dict[str, Any]:
        """Load the credentials again and return them under kopf's names."""
        api = await self._load()
        await api.close()
        loaded = api.configuration
        scheme, _, token = (await loaded.get_api_key_with_prefix("BearerToken") or "").partition(
            " "
        )
        fields = {
            "server": loaded.host,
            "ca_path": loaded.ssl_ca_cert,
            "insecure": not loaded.verify_ssl,
            "certificate_path": loaded.cert_file,
            "private_key_path": loaded.key_file,
            "scheme": scheme,
            "token": token,
            "proxy_url": loaded.proxy,
        }
        return {name: value for name, value in fields.items() if value}

    async def send(self, request: Request) -> Any:
        """Return the answer's JSON; raise ApiError or UnreachableError. Each attempt may time out."""
        limits = aiohttp.ClientTimeout(total=request.timeout)
        attempt = 0
        while True:
            used = self._api
            try:
                async with self._receive(request, limits) as response:
                    return _parse(response, await response.read())
            except (ApiError, UnreachableError) as error:
                renewed = self._api is not used
                pause = _pause(request, error, attempt, renewed=renewed)
                if pause is None:
                    raise
            await asyncio.sleep(pause)
            attempt += 1

    async def watch(
        self, path: str, *, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield events, including errors, until the server ends the watch; raise as `send`."""
        limits = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=silence)
        request = Request("GET", path, {**query, "watch": "true"})
        async with self._receive(request, limits) as response:
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(bytes.strip, lines):
                    yield _event(line)

    @contextlib.asynccontextmanager
    async def _receive(
        self, request: Request, limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make one attempt; raise ApiError or UnreachableError, also while the body is read."""
        api, response = self._api, None
        host = api.configuration.host
        try:
            prepared = await api.client.param_serialize(
                request.method,
                request.path,
                query_params=dict(request.query),
                header_params={"Accept": "application/json", **request.headers},
                body=None if request.body is None else dict(request.body),
                auth_settings=["BearerToken"],
            )
            answer = await api.client.call_api(*prepared, _request_timeout=limits)
            response = answer.response
            if not response.ok:
                raise await self._handle_rejection(response, api)
            yield response
        except TimeoutError as error:
            seconds = limits.total or limits.sock_read
            raise UnreachableError(f"no answer from {host} within {seconds:g} s") from error
        except NotSentError as error:
            raise UnreachableError(str(error)) from error
        except aiohttp.ClientPayloadError as error:
            raise UnreachableError(f"the connection to {host} broke") from error
        except (aiohttp.ClientError, OSError, config.ConfigException) as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"{host} cannot be reached: {reason}") from error
        finally:
            if response is not None:
                _drop(response)

    async def _handle_rejection(
        self, response: aiohttp.ClientResponse, used: Credentials
    ) -> ApiError:
        error = _error(response, await response.text(errors="replace"))
        if error.status == 401:
            try:
                await self._renew(used)
            except ConfigError as problem:
                error.message += f"; credentials cannot be loaded again: {problem}"
        return error

    async def _renew(self, used: Credentials) -> None:
        """Load credentials once for all waiting requests, unless they were replaced meanwhile."""
        if self._api is not used:
            return
        if self._loading is None or self._loading.done():
            self._loading = asyncio.create_task(self._replace())
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                await asyncio.shield(self._loading)
        except TimeoutError as error:
            raise ConfigError("the credential plugin does not end") from error

    async def _replace(self) -> None:
        fresh = await self._load()
        if self._retired is not None:
            await self._retired.close()
        self._api, self._retired = fresh, self._api


def _pause(
    request: Request, error: ApiError | UnreachableError, attempt: int, *, renewed: bool
) -> float | None:
    """Return the seconds until the next attempt, or None if the failure is final."""
    if isinstance(error, ApiError) and error.status == 401:
        return 0.0 if renewed and attempt == 0 else None
    if PROXIED.search(request.path):
        return None
    jitter = random.uniform(1.0, 1.5)  # noqa: S311 - not a secret
    if isinstance(error, ApiError):
        asked = error.retry_after
        if error.status == 429 and attempt < RETRIES_WHEN_THROTTLED:
            asked = 1.0 if asked is None else asked
            return asked * jitter if asked <= LONGEST_PAUSE_SECONDS else None
        if error.status < 500:
            return None
    if isinstance(error.__cause__, TimeoutError):
        return None
    again = request.method == "GET" and attempt < READ_AGAIN
    return READ_AGAIN_SECONDS * 2**attempt * jitter if again else None


def _drop(response: aiohttp.ClientResponse) -> None:
    """Abort a connection that still has data, without waiting for the server to close."""
    connection = response.connection  # None if the whole answer was read
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


def _parse(response: aiohttp.ClientResponse, data: bytes) -> Any:
    try:
        return json.loads(data) if data else None
    except (RecursionError, ValueError) as error:
        raise ApiError(response.status, "NoJSON", _excerpt(data)) from error


def _event(line: bytes) -> dict[str, Any]:
    try:
        event: dict[str, Any] = json.loads(line)
    except (RecursionError, ValueError) as error:
        raise UnreachableError(f"not an event: {_excerpt(line)}") from error
    return event


def _error(response: aiohttp.ClientResponse, text: str) -> ApiError:
    status: dict[str, Any] = {}
    with contextlib.suppress(RecursionError, ValueError):
        parsed = json.loads(text)
        if isinstance(parsed, dict) and parsed.get("kind") == "Status":
            status = parsed
    header = response.headers.get("Retry-After", "")
    retry_after = float(header) if header.isdecimal() else None
    return ApiError(
        response.status,
        status.get("reason") or response.reason or "",
        status.get("message") or text[:MESSAGE_CHARACTERS].strip(),
        retry_after,
    )


def _excerpt(data: bytes) -> str:
    return data[:MESSAGE_CHARACTERS].decode(errors="replace").strip()
