"""Scheduler, kubelets and rendezvous services of all jobs, for the benchmark of the control plane.

    pretended_nodes.py KUBECONFIG

Each pod gets a node and runs at once. Each rendezvous pod has an address of its own in 127.0.0.0/8
and a service that answers there: with the HTTP API of the real one, and without agents. Once all
expected workers run, they are a membership, whose steps advance with the time.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))  # for `support`

from ddpjob_agent.net.sockets.descriptors import raise_limit
from ddpjob_agent.service.http_api import OperatorApi
from ddpjob_operator.api import constants
from ddpjob_operator.kube.client import KubeClient
from ddpjob_operator.kube.interface import ApiError, UnreachableError
from ddpjob_operator.rendezvous.session_pool import Key
from ddpjob_operator.request import Request
from ddpjob_protocol.keys.credentials import JobKey
from ddpjob_protocol.messages.control import Expectation, Report, ServiceState
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId
from support.builders import make_round
from support.reconciling.nodes import running

AT_ONCE = 32  # requests
FIRST_BYTES = 5  # of a request, as the real service reads them
STEPS_PER_SECOND = 5.0
MERGE = {"Content-Type": "application/merge-patch+json"}

JSON = dict[str, Any]


class PretendedService:
    """The rendezvous service of one job."""

    def __init__(self, term: int, key: JobKey) -> None:
        self.api = OperatorApi(key.operator, self._report_after, self._expect)
        self._report = Report(
            version=1, term=term, boot=1, state=ServiceState.WAITING, reason="waits", workers=()
        )
        self._news = 1
        self._formed_at = 0.0
        self._expected: Expectation | None = None
        self._running: set[str] = set()
        self._changed = asyncio.Event()

    def add(self, workers: set[str]) -> None:
        """Let agents connect."""
        self._running |= workers
        self._look()

    def _expect(self, expectation: Expectation) -> None:
        self._expected = expectation
        self._look()

    def _look(self) -> None:
        if self._expected is None or self._report.membership is not None:
            return
        if not self._expected.workers or not self._running.issuperset(self._expected.workers):
            return
        members = tuple(Member(each, each, "10.0.0.1", 1) for each in self._expected.workers)
        new = Membership(MembershipId(self._report.term, 1, 1), members, Cause.STARTED, "started")
        self._formed_at = time.time()
        self._report = dataclasses.replace(
            self._report,
            state=ServiceState.RUNNING,
            reason="running",
            membership=new,
            workers=tuple(sorted(self._running)),
            memberships=(dataclasses.replace(make_round(new), since=self._formed_at),),
            version=self._report.version + 1,
        )
        self._news = self._report.version
        self._changed.set()

    async def _report_after(self, after: int, seconds: float, only_news: bool) -> Report:
        if only_news and self._news <= after:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            self._changed.clear()
        if self._report.membership is not None:
            self._advance()
        return self._report

    def _advance(self) -> None:
        now = time.time()
        step = int((now - self._formed_at) * STEPS_PER_SECOND)
        if step != self._report.step:
            self._report = dataclasses.replace(
                self._report, step=step, step_at=now, steps_per_second=STEPS_PER_SECOND,
                total_steps=1_000_000, version=self._report.version + 1,
            )  # fmt: skip


class PretendedNodes:
    """All nodes of a cluster."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._seen: set[str] = set()  # UIDs of pods
        self._services: dict[Key, PretendedService] = {}
        self._waiting: defaultdict[Key, set[str]] = defaultdict(set)  # workers without a service
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Let each new pod run, until this process is killed."""
        query = {"labelSelector": constants.LABEL_JOB, "resourceVersion": "0"}
        while True:
            events = self._kube.watch("/api/v1/pods", query=query, silence=600)
            assert isinstance(events, AsyncGenerator)
            with contextlib.suppress(UnreachableError):
                async for event in events:
                    if event["type"] == "ERROR":
                        raise RuntimeError(event)
                    self._begin(event["object"])

    def _begin(self, pod: JSON) -> None:
        if pod["metadata"]["uid"] in self._seen:
            return
        self._seen.add(pod["metadata"]["uid"])
        task = asyncio.ensure_future(self._start(pod, len(self._seen)))
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if error := task.exception():
            print(f"a pod did not start: {error!r}", file=sys.stderr, flush=True)

    async def _start(self, pod: JSON, number: int) -> None:
        metadata = pod["metadata"]
        key = Key(metadata["namespace"], metadata["labels"][constants.LABEL_JOB])
        path = f"/api/v1/namespaces/{key.namespace}/pods/{metadata['name']}"
        address = f"127.{16 + number // 65536}.{number // 256 % 256}.{number % 256}"
        service = None
        if metadata["labels"][constants.LABEL_ROLE] == constants.ROLE_RENDEZVOUS:
            service = await self._serve(pod, key, address)
        status = {**running(pod), "podIP": address, "podIPs": [{"ip": address}]}
        target = {"apiVersion": "v1", "kind": "Node", "name": f"node-{number}"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": metadata["name"]}}
        async with self._gate:
            with contextlib.suppress(ApiError):  # 409: bound before this process started again
                await self._kube.send(
                    Request("POST", f"{path}/binding", body={**binding, "target": target})
                )
            body = {"status": status}
            await self._kube.send(Request("PATCH", f"{path}/status", body=body, headers=MERGE))
        if service is not None:
            self._services[key] = service
            service.add(self._waiting.pop(key, set()))
        elif key in self._services:
            self._services[key].add({metadata["name"]})
        else:
            self._waiting[key].add(metadata["name"])

    async def _serve(self, pod: JSON, key: Key, address: str) -> PretendedService:
        [name] = (
            each["secret"]["secretName"] for each in pod["spec"]["volumes"] if "secret" in each
        )
        path = f"/api/v1/namespaces/{key.namespace}/secrets/{name}"
        secret = await self._kube.send(Request("GET", path))
        keys = JobKey.parse(base64.b64decode(secret["data"]["keys"]).decode())
        service = PretendedService(int(pod["metadata"]["labels"][constants.LABEL_TERM]), keys)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                first = await reader.readexactly(FIRST_BYTES)
                await service.api.serve(first, reader, writer, lambda: None)
            writer.close()

        self._servers.append(await asyncio.start_server(answer, address, constants.SERVICE_PORT))
        return service


async def _main(kubeconfig: str) -> None:
    raise_limit()
    kube = await KubeClient.connect(kubeconfig)
    await PretendedNodes(kube).run()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
