"""A real API server and its etcd on loopback, for as long as a `with` lasts.

There are no nodes and no controllers: nothing is scheduled, nothing collects garbage, namespaces
are never quite deleted, and none gets a service account.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import urllib3
import yaml

from ddpjob_operator.local.simulated.rendezvous_process import free_port

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 180.0  # generous: the machine may be slow and shared
POLL_SECONDS = 0.1
# Go collects garbage when the heap has five times the size of what lives, not twice: a fifth less CPU.
ENVIRONMENT = {**os.environ, "GOGC": "400"}
HTTP_AGENT = "tests"
AUDIT = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"""

Object = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ControlPlane:
    """A running API server, and the administrator's access to it."""

    programs: Path
    kubeconfig: Path
    url: str
    http: urllib3.PoolManager
    audit_log: Path  # one line of JSON for each request, written before the request is answered

    def answer(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Object]:
        """Send one request; return the HTTP status and what came, also of a refusal."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        response = self.http.request(
            method,
            self.url + path,
            body=None if body is None else json.dumps(body),
            headers={**self.http.headers, "Content-Type": kind, **(headers or {})},
        )
        try:
            return response.status, response.json()
        except ValueError:  # such as "404 page not found"
            return response.status, {"message": response.data.decode()}

    def send(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Object:
        """Send one request, which must succeed; return what came."""
        status, answer = self.answer(method, path, body, headers)
        assert status < 400, f"{method} {path}: {answer['message']}"
        return answer

    def get(self, path: str) -> Object:
        """Read an object or a list."""
        return self.send("GET", path)

    def create_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Create a namespace, or set the labels of an existing one.

        It stays: without controllers none is ever quite deleted.
        """
        metadata = {"name": name, "labels": dict(labels or {})}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        path = f"/api/v1/namespaces/{name}?fieldManager=tests&force=true"
        self.send("PATCH", path, namespace, {"Content-Type": "application/apply-patch+yaml"})

    def attempt(
        self, *arguments: str, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl, whatever comes of it."""
        return subprocess.run(
            [self.programs / "kubectl", "--kubeconfig", self.kubeconfig, *arguments],
            env={**os.environ, "KUBECACHEDIR": str(self.kubeconfig.parent / "kubectl")},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl prints; it must succeed."""
        done = self.attempt(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout


def build_programs(*names: str) -> Path:
    """The folder where they are; `make test-cluster` has built them, else this takes minutes."""
    command = [str(ROOT / "tools" / "kind" / "binaries.sh"), *names]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, "tools/kind/binaries.sh failed, see above"
    return Path(done.stdout.strip())


def eventually(true: Callable[[], object], what: str, details: Callable[[], str] = str) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"never: {what}\n{details()}"
        time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Everything it writes lies in the folder; both processes are gone in the end."""
    programs = build_programs("kube-apiserver", "etcd", "kubectl")
    etcd = f"http://127.0.0.1:{free_port()}"
    peers = f"http://127.0.0.1:{free_port()}"
    url = f"https://127.0.0.1:{(port := free_port())}"
    token = secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    (folder / "accounts.key").write_text(build_key())
    (folder / "audit.yaml").write_text(AUDIT)
    certificate = folder / "apiserver.crt"  # the API server makes it
    http = urllib3.PoolManager(
        headers={"Authorization": f"Bearer {token}", "User-Agent": HTTP_AGENT},
        ca_certs=str(certificate),
        retries=False,
    )
    server = ControlPlane(programs, folder / "kubeconfig", url, http, folder / "audit.log")
    server.kubeconfig.write_text(build_kubeconfig(url, certificate, token))
    store = (
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={etcd}",
        f"--advertise-client-urls={etcd}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",  # the data need not survive
        "--log-level=warn",
    )
    api = (
        f"--etcd-servers={etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={folder}",
        "--endpoint-reconciler-type=none",  # it refuses to publish a loopback address
        "--service-cluster-ip-range=10.96.0.0/16",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder / 'accounts.key'}",
        f"--service-account-signing-key-file={folder / 'accounts.key'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        f"--audit-policy-file={folder / 'audit.yaml'}",
        f"--audit-log-path={server.audit_log}",
        "--authorization-mode=RBAC",
        # It refuses pods until a controller has made the namespace's service account. All other
        # admission is as in any cluster: quotas, limits, pod security.
        "--disable-admission-plugins=ServiceAccount",
    )
    with (
        running(programs / "etcd", store, folder),
        running(programs / "kube-apiserver", api, folder) as process,
    ):
        wait_until_ready(server, process, folder)
        with http:
            yield server


@contextlib.contextmanager
def running(
    program: Path, arguments: Sequence[str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """One process with its log in the folder; killed in the end, also if pytest is killed."""
    with_parent = ("setpriv", "--pdeathsig", "KILL")
    with log_of(folder, program.name).open("wb") as log:
        process = subprocess.Popen(
            [*with_parent, program, *arguments],
            cwd=folder,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def wait_until_ready(server: ControlPlane, process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until it says so itself, with all that it starts with in place."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while problem := why_not_ready(server):
        if process.poll() is not None or time.monotonic() > deadline:
            logs = "\n".join(
                f"--- {name}\n" + "\n".join(log_of(folder, name).read_text().splitlines()[-20:])
                for name in ("etcd", "kube-apiserver")
            )
            raise RuntimeError(f"the API server did not start: {problem}\n{logs}")
        time.sleep(POLL_SECONDS)


def why_not_ready(server: ControlPlane) -> str:
    """What the API server waits for; empty when it is ready."""
    try:
        answer = server.http.request("GET", f"{server.url}/readyz")
    except urllib3.exceptions.HTTPError as error:
        return str(error)
    return "" if answer.status == 200 else answer.data.decode()


def log_of(folder: Path, program: str) -> Path:
    return folder / f"{program}.log"


def build_kubeconfig(url: str, certificate: Path, token: str) -> str:
    """Access with a token."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "test", "cluster": {"server": url, "certificate-authority": str(certificate)}}
        ],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        "current-context": "test",
    }
    return str(yaml.safe_dump(content))


def build_key() -> str:
    """A key to sign service accounts' tokens with: any number below P-256's order is one."""
    der = bytes.fromhex("3031020101042000") + secrets.token_bytes(31)  # RFC 5915
    der += bytes.fromhex("a00a06082a8648ce3d030107")
    text = base64.b64encode(der).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{text}\n-----END EC PRIVATE KEY-----\n"
