"""Requests of a command to the API server, with the synchronous client of `kubernetes`.

Every failure becomes a message with its cause and its remedy, and an exit code. No request is
repeated: the user repeats the command, and `watch_jobs` watches again.
May not: know any kind of object.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from yaml import YAMLError

from ddpjob_operator.cli.common import CommandError, ExitCode, MissingExtraError

Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace.", show_default="of the context"),
]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")]
Kubeconfig = Annotated[
    str | None, typer.Option("--kubeconfig", help="Kubeconfig file.", show_default="as kubectl")
]
Object = dict[str, Any]

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
NAMESPACE_OF_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
INSTALL = (
    "helm install ddpjob-operator charts/ddpjob-operator --namespace ddpjob-system "
    "--create-namespace (docs/install.md)"
)
# Further errors that the loader raises for a file that is not a kubeconfig.
BROKEN = (AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError, YAMLError)


class BrokenStreamError(CommandError):
    """The connection of a stream broke, or sent nothing within the limit."""

    def __init__(self, host: str, cause: Exception) -> None:
        message = f"the connection to {host} broke: {cause}. Repeat the command"
        super().__init__(ExitCode.UNREACHABLE, message)


class RejectedError(CommandError):
    """The API server rejected a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(ExitCode.REJECTED, message)
        self.status = status


class Cluster:
    """An API server, and the namespace of the command."""

    def __init__(self, configuration: Any, namespace: str) -> None:
        # Help and mistakes in options need no cluster, and this import takes most of the time.
        import urllib3  # noqa: PLC0415

        from ddpjob_operator.cli.jobs.kubernetes_import import client  # noqa: PLC0415

        self._failures = (client.ApiException, urllib3.exceptions.HTTPError, OSError)
        if not configuration.verify_ssl:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        configuration.retries = False  # the library logs each attempt
        configuration.keep_alive = True
        configuration.connection_pool_maxsize = 1000  # a stream for each worker
        self.namespace = namespace
        self.limits = (CONNECT_SECONDS, ANSWER_SECONDS)
        self.host: str = configuration.host
        self._api: Any = client.ApiClient(configuration)
        self._api.user_agent = "ddpjob"

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        kind: str = "application/json",
    ) -> Any:
        """Return the JSON of the answer; print warnings of the server; raise CommandError."""
        response = self._send(method, path, query, body, kind, self.limits)
        try:
            data = response.read()
        except self._failures as error:
            raise self._unreachable(error) from error
        return json.loads(data) if data else None

    def stream(
        self, path: str, query: Mapping[str, str], silence: float | None = None
    ) -> Iterator[bytes]:
        """Yield the lines of an answer as they arrive; raise CommandError."""
        limits = (CONNECT_SECONDS, silence)
        response = self._send("GET", path, query, None, "application/json", limits)
        rest = b""
        try:
            for chunk in response.stream():
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines
        except self._failures as error:
            raise BrokenStreamError(self.host, error) from error
        finally:
            response.close()
        if rest:
            yield rest

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: object,
        kind: str,
        limits: tuple[float, float | None],
    ) -> Any:
        try:
            prepared = self._api.param_serialize(
                method,
                path,
                query_params=dict(query or {}),
                header_params={"Accept": "application/json", "Content-Type": kind},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = self._api.call_api(*prepared, _request_timeout=limits)
        except self._failures as error:
            raise self._unreachable(error) from error
        response = answer.response
        for warning in response.headers.getlist("Warning"):
            print(f"warning: {warning.partition(' - ')[2].strip(chr(34))}", file=sys.stderr)
        if response.status >= 400:
            raise RejectedError(response.status, self._explain(response.status, response.data))
        return response

    def _unreachable(self, error: Exception) -> CommandError:
        reason = getattr(error, "reason", None) or error
        text = str(reason).rpartition("Failed to establish a new connection: ")[2]
        message = (
            f"{self.host} cannot be reached: {text}. Check the address in the kubeconfig, the "
            "network and `kubectl cluster-info`"
        )
        return CommandError(ExitCode.UNREACHABLE, message)

    def _explain(self, status: int, data: bytes) -> str:
        text = data.decode(errors="replace").strip()
        answer = _status(text)
        message: str = answer.get("message") or text[:1000]
        details = answer.get("details") or {}
        if status == 401:
            return (
                f"{self.host} rejected your credentials ({status}): {message}. They may have "
                "expired; sign in again, and check with `kubectl auth whoami`"
            )
        if status == 403 and " cannot " in message:
            roles = "ddpjob-editor or ddpjob-viewer" if "ddpjob.io" in message else "view or edit"
            return (
                f"you lack a right on {self.host}: {message}. An administrator can bind the "
                f"cluster role {roles} to you (docs/install.md)"
            )
        if status == 404:
            return self._explain_absence(message, details)
        causes = [f"{each['field']}: {each['message']}" for each in details.get("causes") or ()]
        lines = "\n".join(causes or [message])
        return f"{self.host} rejected the request ({status} {answer.get('reason', '')}): {lines}"

    def _explain_absence(self, message: str, details: Object) -> str:
        if details.get("kind") == "ddpjobs" and details.get("name"):
            return (
                f"there is no job {details['name']} in namespace {self.namespace}; `ddpjob get -A` "
                "lists the jobs of all namespaces"
            )
        if details.get("name"):
            return f"{self.host}: {message}"
        return (
            f"{self.host} does not know DDPJobs: the operator is not installed there. Install it: "
            f"{INSTALL}"
        )


def connect(namespace: str | None, context: str | None, kubeconfig: str | None) -> Cluster:
    """Return the cluster that the options name, as kubectl does; raise CommandError."""
    try:
        from ddpjob_operator.cli.jobs.kubernetes_import import (  # noqa: PLC0415 - as above
            client,
            config,
        )
    except ModuleNotFoundError as error:
        raise MissingExtraError(error) from error

    library: Any = config  # the package has no annotations
    configuration: Any = client.Configuration()
    chosen = kubeconfig or os.environ.get("KUBECONFIG")
    files = chosen or str(Path("~/.kube/config").expanduser())
    exists = any(Path(name).expanduser().is_file() for name in files.split(os.pathsep) if name)
    if not exists and not chosen and context is None and NAMESPACE_OF_POD.is_file():
        library.load_incluster_config(client_configuration=configuration)
        return Cluster(configuration, namespace or NAMESPACE_OF_POD.read_text().strip())
    if not exists:
        raise CommandError(
            ExitCode.INVALID,
            f"there is no kubeconfig at {files}, so the cluster is unknown. Name a file with "
            "--kubeconfig or in KUBECONFIG",
        )
    try:
        merged = library.kube_config.KubeConfigMerger(files).config
        loader = library.kube_config.KubeConfigLoader(config_dict=merged, active_context=context)
        loader.load_and_set(configuration)
        own = loader.current_context["context"].get("namespace")
    except (library.ConfigException, *BROKEN) as error:
        raise CommandError(
            ExitCode.INVALID,
            f"the kubeconfig {files} cannot be used: {error}. `kubectl config get-contexts` lists "
            "its contexts",
        ) from error
    return Cluster(configuration, namespace or own or "default")


def _status(text: str) -> Object:
    """Return the Status object of an answer, or nothing if it has another form."""
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) and answer.get("kind") == "Status" else {}
