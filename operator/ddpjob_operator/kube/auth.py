"""Finds the API server and loads credentials for it, with the `kubernetes` package.

The credentials are those of a pod's service account or of a kubeconfig.
May not: send a request to the API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import weakref
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import yaml
from kubernetes.aio import client, config
from kubernetes.aio.config import incluster_config

from ddpjob_operator.kube.last_check import Check, request_class

library: Any = config  # the package has no annotations

CLOSE_SECONDS = 1.0
# Errors that the loader raises for a file that is not a kubeconfig.
BROKEN = (
    config.ConfigException, AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError,
    yaml.YAMLError,
)  # fmt: skip


class ConfigError(Exception):
    """No usable credentials for the API server; the message names a remedy."""


class Credentials:
    """The library's client with connections that this class can close."""

    def __init__(self, configuration: client.Configuration) -> None:
        self.configuration = configuration
        self.client: Any = client.ApiClient(configuration)
        self.client.user_agent = "ddpjob-operator"
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._connector = aiohttp.TCPConnector(
            limit=0,  # outside the cluster, each job has a long poll through the API server
            ssl=self.client.rest_client.ssl_context,
            socket_factory=self._socket,
        )
        self._session_arguments = configuration.client_session_kwargs = {
            "connector": self._connector,
            # aiohttp would use a default in ~/.netrc as credentials. Reading it costs two threads.
            "trust_env": False,
        }

    def check_writes(self, may_write: Check) -> None:
        """Send a write only if the check allows it then. Call this before the first request."""
        self._session_arguments["request_class"] = request_class(may_write)

    async def close(self) -> None:
        """Close all connections, including those of cancelled requests, which aiohttp forgets."""
        await self.client.close()
        await self._connector.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while any(s.fileno() >= 0 for s in self._sockets):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.001)

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        created = socket.socket(family, kind, protocol)
        self._sockets.add(created)
        return created


def in_pod() -> bool:
    """Return whether this process runs in a pod that has a service account."""
    token = Path(incluster_config.SERVICE_TOKEN_FILENAME)
    return incluster_config.SERVICE_HOST_ENV_NAME in os.environ and token.is_file()


async def from_pod() -> Credentials:
    """Load the pod's service account; raise ConfigError if it cannot be used."""
    configuration = client.Configuration()
    try:
        library.load_incluster_config(client_configuration=configuration)
        return Credentials(configuration)
    except BROKEN as error:
        raise ConfigError(
            f"the pod's service account cannot be used: {error}. "
            "Look at the pod's serviceAccountName and automountServiceAccountToken."
        ) from error


async def from_kubeconfig(kubeconfig: str | None, context: str | None) -> Credentials:
    """Load a kubeconfig, by default KUBECONFIG or ~/.kube/config; raise ConfigError if broken."""
    files = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    configuration = client.Configuration()
    try:
        _look_for(files)
        loader = await library.load_kube_config(
            config_file=files,
            context=context,
            client_configuration=configuration,
            persist_config=False,
        )
        configuration.proxy = configuration.proxy or _proxy(configuration.host)
        api = Credentials(configuration)
    except BROKEN as error:
        raise ConfigError(
            f"the kubeconfig {files} cannot be used: {error}. "
            "`kubectl config get-contexts` lists what is in it."
        ) from error
    _check_plugin(loader._user, configuration)  # noqa: SLF001 - the library only logs the failure
    return api


def _look_for(files: str) -> None:
    if not any(Path(name).expanduser().is_file() for name in files.split(os.pathsep) if name):
        raise ConfigError(
            f"there is no kubeconfig at {files}. Name one with --kubeconfig or in KUBECONFIG."
        )


def _check_plugin(user: Any, configuration: client.Configuration) -> None:
    if user and "exec" in user and not (configuration.api_key or configuration.cert_file):
        raise ConfigError(
            f"the credential plugin {user['exec']['command']} gave no credentials. "
            "The log has the reason. Repair the plugin until `kubectl get nodes` works."
        )


def _proxy(host: str) -> str | None:
    """Return the proxy from HTTPS_PROXY or a similar variable, by the rules of kubectl."""
    parts = urlsplit(host)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
