"""How the client finds the API server and signs in, and how that keeps working for days."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import kopf
import psutil
import pytest
from aiohttp import web
from kubernetes.aio.config import incluster_config

from ddpjob_operator.kube import client
from ddpjob_operator.kube.auth import ConfigError
from ddpjob_operator.kube.client import KubeClient
from ddpjob_operator.kube.interface import ApiError, UnreachableError
from ddpjob_operator.request import Request
from support.http_server import (
    CERTIFICATE,
    Answer,
    Server,
    answer,
    connected,
    kubeconfig,
    refusal,
    serving,
    silence,
    stream,
    tls_files,
)

PATIENCE_SECONDS = 120.0
PODS = "/api/v1/namespaces/default/pods"
LIST = {"kind": "PodList", "items": []}
LINE = b'{"type": "ADDED"}\n'
OK = answer(LIST)
UNAUTHORIZED = refusal(401, "Unauthorized", "Unauthorized")

pytestmark = pytest.mark.usefixtures("nowhere")


def only(*tokens: str) -> Answer:
    """Lets in who has one of these tokens."""

    async def respond(request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").partition(" ")[2]
        return await (OK if given in tokens else UNAUTHORIZED)(request)

    return respond


async def ask(kube: KubeClient) -> None:
    assert await kube.send(Request("GET", PODS)) == LIST


async def watched(kube: KubeClient) -> Any:
    return [event async for event in kube.watch(PODS, query={}, silence=600)]


# Where the API server is


async def refused(path: str | None, context: str | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        await KubeClient.connect(path, context)
    return str(error.value)


def test_there_is_no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = str(tmp_path / "nothing")
    advice = "Name one with --kubeconfig or in KUBECONFIG."
    assert asyncio.run(refused(missing)) == f"there is no kubeconfig at {missing}. {advice}"
    assert asyncio.run(refused(None)) == f"there is no kubeconfig at ~/.kube/config. {advice}"
    monkeypatch.setenv("KUBECONFIG", missing)
    assert missing in asyncio.run(refused(None))
    assert str(tmp_path) in asyncio.run(refused(str(tmp_path))), "a folder is not a kubeconfig"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "no: [yaml",
        "\x00",
        "{}",
        "current-context: a\ncontexts: [{name: b}]",
        "current-context: a\ncontexts: [{name: a, context: {cluster: c}}]",
    ],
    ids=["empty", "a list", "no yaml", "binary", "nothing in it", "no context", "no cluster"],
)
def test_a_kubeconfig_is_broken(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    message = asyncio.run(refused(str(path)))
    assert message.startswith(f"the kubeconfig {path} cannot be used: ")
    assert "`kubectl config get-contexts` lists what is in it." in message


@pytest.mark.parametrize(
    "cluster",
    [
        {"certificate-authority": "missing.crt"},
        {"certificate-authority-data": "no base64!"},
        {"certificate-authority-data": base64.b64encode(b"no certificate").decode()},
    ],
    ids=["missing", "no base64", "no certificate"],
)
def test_a_certificate_is_broken(tmp_path: Path, cluster: dict[str, Any]) -> None:
    path = kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", cluster=cluster)
    assert f"the kubeconfig {path} cannot be used: " in asyncio.run(refused(path))


def test_one_of_two_kubeconfigs_is_broken(tmp_path: Path) -> None:
    good, broken = tmp_path / "good", tmp_path / "broken"
    kubeconfig(good, "https://127.0.0.1:1")
    broken.write_text("[]")
    assert "cannot be used" in asyncio.run(refused(f"{good}:{broken}"))


def test_a_context_may_be_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(OK) as server:
            path = kubeconfig(tmp_path / "kubeconfig", server.url, current="gone")
            assert "gone" in await refused(path)
            assert "elsewhere" in await refused(path, "elsewhere")
            async with connected(path, "here") as kube:
                await ask(kube)
                assert kube.in_cluster is False

    asyncio.run(main())


@pytest.mark.parametrize("where", ["~/.kube/config", "KUBECONFIG", "second of two"])
def test_a_kubeconfig_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    path = tmp_path / ".kube" / "config" if where[0] == "~" else tmp_path / "other"
    path.parent.mkdir(exist_ok=True)
    if where == "KUBECONFIG":
        monkeypatch.setenv("KUBECONFIG", str(path))
    elif where == "second of two":
        monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{path}")

    async def main() -> None:
        async with serving(OK) as server:
            kubeconfig(path, server.url)
            async with connected() as kube:
                await ask(kube)
            assert server.tokens() == ["secret"]

    asyncio.run(main())


# Through proxies, past other passwords


@pytest.mark.parametrize(
    ("no_proxy", "proxied"), [("", True), ("127.0.0.1", False), ("example.com", True)]
)
def test_a_proxy_of_the_environment_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_proxy: str, proxied: bool
) -> None:
    async def main() -> None:
        async with serving(OK) as server, serving(OK) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            monkeypatch.setenv("no_proxy", no_proxy)
            async with connected(kubeconfig(tmp_path / "kubeconfig", server.url)) as kube:
                await ask(kube)
            assert (len(proxy.seen), len(server.seen)) == (proxied, not proxied)

    asyncio.run(main())


def test_passwords_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    """One for any host would otherwise be sent to the API server, in place of the token."""
    netrc = tmp_path / ".netrc"
    netrc.write_text("default login me password mine\n")
    netrc.chmod(0o600)

    async def main() -> None:
        async with serving(only("secret")) as server:
            async with connected(kubeconfig(tmp_path / "kubeconfig", server.url)) as kube:
                await ask(kube)
            assert server.tokens() == ["secret"]

    asyncio.run(main())


# Credentials that change


class Source:
    """Where the token comes from; at first it is `old`."""

    def __init__(self, folder: Path) -> None:
        self._token = folder / "token"
        self._script = folder / "plugin.py"
        self._asked = folder / "asked"
        self.tell("old")

    def tell(self, token: str) -> None:
        """Have another one from now on; a plugin fails at `nothing`, and waits at `later`."""
        fresh = self._token.with_suffix(".new")
        fresh.write_text(token)
        fresh.replace(self._token)  # never half written

    def asked(self) -> int:
        return len(self._asked.read_text()) if self._asked.exists() else 0

    def file(self) -> dict[str, Any]:
        return {"tokenFile": str(self._token)}

    def plugin(self) -> dict[str, Any]:
        version = "client.authentication.k8s.io/v1"
        self._script.write_text(
            "import json, pathlib, sys, time\n"
            f"with open({str(self._asked)!r}, 'a') as asked: asked.write('x')\n"
            f"file = pathlib.Path({str(self._token)!r})\n"
            "while (token := file.read_text()) == 'later': time.sleep(0.01)\n"
            "if token == 'nothing': sys.exit('log in first')\n"
            f"told = {{'apiVersion': {version!r}, 'kind': 'ExecCredential'}}\n"
            "print(json.dumps({**told, 'status': {'token': token}}))\n"
        )
        command = {"command": sys.executable, "args": [str(self._script)]}
        return {"exec": {"apiVersion": version, **command}}


Rotating = Callable[[KubeClient, Server, Source], Awaitable[None]]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


@pytest.fixture(params=[Source.plugin, Source.file], ids=["plugin", "file"])
def run(
    request: pytest.FixtureRequest, source: Source, tmp_path: Path
) -> Callable[[Rotating], None]:
    """Runs the body of a test with a token that comes from elsewhere."""

    def run(body: Rotating) -> None:
        async def main() -> None:
            async with serving(only("old")) as server:
                path = kubeconfig(tmp_path / "kubeconfig", server.url, request.param(source))
                async with connected(path) as kube:
                    await body(kube, server, source)

        asyncio.run(main())

    return run


def test_a_token_that_has_expired_is_replaced(run: Callable[[Rotating], None]) -> None:
    async def body(kube: KubeClient, server: Server, source: Source) -> None:
        await ask(kube)
        source.tell("new")
        server.answers = [only("new")]
        assert await kube.send(Request("POST", PODS, body={})) == LIST
        await ask(kube)
        assert server.tokens() == ["old", "old", "new", "new"]

    run(body)


def test_many_requests_replace_a_token_once(run: Callable[[Rotating], None]) -> None:
    async def body(kube: KubeClient, server: Server, source: Source) -> None:
        source.tell("new")
        server.answers = [only("new")]
        await asyncio.gather(*(ask(kube) for _ in range(16)))
        assert server.tokens().count("new") == 16
        assert source.asked() in (0, 2), "a plugin at the start, and now"

    run(body)


def test_a_request_that_was_late_uses_what_others_have_loaded(
    run: Callable[[Rotating], None],
) -> None:
    async def body(kube: KubeClient, server: Server, source: Source) -> None:
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def late(request: web.Request) -> web.StreamResponse:
            arrived.set()
            await go_on.wait()
            return await UNAUTHORIZED(request)

        server.answers = [late, only("new")]
        asking = asyncio.ensure_future(ask(kube))
        await arrived.wait()
        source.tell("new")
        await ask(kube)
        source.tell("nothing")
        go_on.set()
        await asking
        assert server.tokens() == ["old", "old", "new", "new"]

    run(body)


def test_tokens_are_replaced_again_and_again(run: Callable[[Rotating], None]) -> None:
    async def body(kube: KubeClient, server: Server, source: Source) -> None:
        for token in ("1", "2", "3", "4"):
            source.tell(token)
            server.answers = [only(token)]
            await ask(kube)
        assert server.tokens() == ["old", "1", "1", "2", "2", "3", "3", "4"]

    run(body)


def test_who_stays_unauthorized_is_told(run: Callable[[Rotating], None]) -> None:
    async def body(kube: KubeClient, server: Server, source: Source) -> None:
        server.answers = [UNAUTHORIZED]
        with pytest.raises(ApiError, match="Unauthorized") as error:
            await ask(kube)
        assert error.value.status == 401
        assert len(server.seen) == 2

    run(body)


def test_a_watch_outlives_the_token_that_it_began_with(run: Callable[[Rotating], None]) -> None:
    async def body(kube: KubeClient, server: Server, source: Source) -> None:
        opened, go_on = asyncio.Event(), asyncio.Event()

        async def wait(request: web.Request) -> web.StreamResponse:
            opened.set()
            await go_on.wait()
            return await stream(LINE)(request)

        server.answers = [wait, only("new")]
        watching = asyncio.ensure_future(watched(kube))
        await opened.wait()
        source.tell("new")
        await ask(kube)
        go_on.set()
        assert await watching == [{"type": "ADDED"}]

    run(body)


def test_a_watch_with_an_expired_token_has_a_new_one_next_time(
    run: Callable[[Rotating], None],
) -> None:
    async def body(kube: KubeClient, server: Server, source: Source) -> None:
        source.tell("new")
        server.answers = [UNAUTHORIZED, stream(LINE)]
        with pytest.raises(ApiError, match="Unauthorized"):
            await watched(kube)
        assert await watched(kube) == [{"type": "ADDED"}]
        assert server.tokens() == ["old", "new"]

    run(body)


def test_a_plugin_that_gives_nothing_is_named(tmp_path: Path, source: Source) -> None:
    source.tell("nothing")
    path = kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", source.plugin())
    message = asyncio.run(refused(path))
    assert message.startswith(f"the credential plugin {sys.executable} gave no credentials. ")


def test_a_plugin_that_fails_later_is_named(tmp_path: Path, source: Source) -> None:
    async def main() -> None:
        async with serving(only("old"), only("new")) as server:
            path = kubeconfig(tmp_path / "kubeconfig", server.url, source.plugin())
            async with connected(path) as kube:
                source.tell("nothing")
                await ask(kube)
                words = "^Unauthorized; credentials cannot be loaded again: .* gave no credentials"
                with pytest.raises(ApiError, match=words) as error:
                    await ask(kube)
                assert error.value.status == 401

    asyncio.run(main())


def test_a_plugin_that_takes_long_is_not_run_twice(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serving(only("new")) as server:
            path = kubeconfig(tmp_path / "kubeconfig", server.url, source.plugin())
            async with connected(path) as kube:
                monkeypatch.setattr(client, "LOAD_SECONDS", 0.1)
                source.tell("later")
                for _ in range(3):
                    with pytest.raises(ApiError, match="does not end") as error:
                        await ask(kube)
                    assert error.value.status == 401
                source.tell("new")
                monkeypatch.setattr(client, "LOAD_SECONDS", PATIENCE_SECONDS)
                await ask(kube)
                assert source.asked() == 2
                assert server.tokens() == ["old"] * 4 + ["new"]

    asyncio.run(main())


# TLS


@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "not trusted"])
def test_a_certificate_must_be_trusted(tmp_path: Path, trusted: bool) -> None:
    data = base64.b64encode(CERTIFICATE.encode()).decode()
    cluster = {"certificate-authority-data": data} if trusted else {}

    async def main() -> None:
        async with serving(OK, tls=True, folder=tmp_path) as server:
            path = kubeconfig(tmp_path / "kubeconfig", server.url, cluster=cluster)
            async with connected(path) as kube:
                if trusted:
                    await ask(kube)
                    server.answers = [stream(LINE, then=silence)]
                    async for event in kube.watch(PODS, query={}, silence=600):
                        assert event == {"type": "ADDED"}
                        break
                else:
                    with pytest.raises(UnreachableError, match="certificate verify failed"):
                        await ask(kube)

    asyncio.run(main())


def test_requests_that_were_given_up_leave_no_connection_behind(tmp_path: Path) -> None:
    def connections(server: Server) -> int:
        port = int(server.url.rpartition(":")[2])
        found = psutil.Process().net_connections("tcp")
        return sum(bool(each.raddr) and each.raddr.port == port for each in found)

    async def main() -> None:
        async with serving(silence, tls=True, folder=tmp_path) as server:
            cluster = {"insecure-skip-tls-verify": True}
            path = kubeconfig(tmp_path / "kubeconfig", server.url, cluster=cluster)
            async with connected(path) as kube:
                asking = [asyncio.ensure_future(ask(kube)) for _ in range(8)]
                asking += [asyncio.ensure_future(watched(kube)) for _ in range(8)]
                await server.until_seen(16)
                for each in asking:
                    each.cancel()
                await asyncio.gather(*asking, return_exceptions=True)
            assert connections(server) == 0

    asyncio.run(main())


class Pod:
    """What a pod has of its service account."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.token = folder / "token"
        self.authority, _ = tls_files(folder)
        self.tell("old")
        monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(self.token))
        monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(self.authority))
        self._setenv = monkeypatch.setenv
        self.at("https://127.0.0.1:1")

    def tell(self, token: str) -> None:
        self.token.write_text(token)

    def at(self, url: str) -> None:
        host, _, port = url.removeprefix("https://").partition(":")
        self._setenv("KUBERNETES_SERVICE_HOST", host)
        self._setenv("KUBERNETES_SERVICE_PORT", port)


@pytest.fixture
def in_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    return Pod(folder, monkeypatch)


def test_in_a_pod_the_service_account_is_used(in_pod: Pod, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(only("old"), tls=True, folder=tmp_path) as server:
            in_pod.at(server.url)
            async with connected() as kube:
                assert kube.in_cluster is True
                await ask(kube)
                in_pod.tell("new")
                server.answers = [only("new")]
                await asyncio.gather(*(ask(kube) for _ in range(16)))
                server.answers = [stream(LINE)]
                assert await watched(kube) == [{"type": "ADDED"}]
            assert server.tokens()[-1] == "new"

    asyncio.run(main())


def test_in_a_pod_without_a_service_account_a_kubeconfig_is_needed(in_pod: Pod) -> None:
    in_pod.token.unlink()
    assert "there is no kubeconfig" in asyncio.run(refused(None))


def test_in_a_pod_a_kubeconfig_may_be_named_all_the_same(in_pod: Pod, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(only("secret")) as server,
            connected(kubeconfig(tmp_path / "kubeconfig", server.url)) as kube,
        ):
            assert kube.in_cluster is False
            await ask(kube)

    asyncio.run(main())


@pytest.mark.parametrize("broken", ["token", "authority"])
def test_a_broken_service_account_is_told(in_pod: Pod, broken: str) -> None:
    getattr(in_pod, broken).write_text("")
    message = asyncio.run(refused(None))
    assert "the pod's service account cannot be used: " in message
    assert "automountServiceAccountToken" in message


# For kopf, which has a client of its own


async def for_kopf(*paths: str) -> kopf.ConnectionInfo:
    async with connected(*paths) as kube:
        return kopf.ConnectionInfo(**await kube.credentials())


def test_kopf_is_given_the_same_access(tmp_path: Path) -> None:
    certificate, key = map(str, tls_files(tmp_path))
    path = kubeconfig(
        tmp_path / "kubeconfig",
        "https://127.0.0.1:1",
        {"token": "secret", "client-certificate": certificate, "client-key": key},
        {"certificate-authority": certificate, "proxy-url": "http://127.0.0.1:2"},
    )
    given = asyncio.run(for_kopf(path))
    assert given.server == "https://127.0.0.1:1"
    assert given.as_http_headers() == {"Authorization": "Bearer secret"}
    assert given.ca_path == certificate
    assert (given.certificate_path, given.private_key_path) == (certificate, key)
    assert given.proxy_url == "http://127.0.0.1:2"
    assert not given.insecure
    given.as_ssl_context()


@pytest.mark.parametrize(
    ("user", "headers"),
    [
        ({"username": "me", "password": "mine"}, {"Authorization": "Basic bWU6bWluZQ=="}),
        ({}, {}),
    ],
    ids=["password", "nothing"],
)
def test_kopf_is_given_whatever_there_is(
    tmp_path: Path, user: dict[str, Any], headers: dict[str, str]
) -> None:
    cluster = {"insecure-skip-tls-verify": True}
    path = kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", user, cluster)
    given = asyncio.run(for_kopf(path))
    assert given.as_http_headers() == headers
    assert given.insecure


def test_kopf_is_given_new_credentials_when_it_asks_again(in_pod: Pod) -> None:
    async def main() -> None:
        async with connected() as kube:
            first = kopf.ConnectionInfo(**await kube.credentials())
            in_pod.tell("new")
            second = kopf.ConnectionInfo(**await kube.credentials())
        headers = [each.as_http_headers()["Authorization"].lower() for each in (first, second)]
        assert headers == ["bearer old", "bearer new"]

    asyncio.run(main())
