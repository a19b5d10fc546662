"""One operator at work on an API server, in memory or real, and what a test does to it.

The user acts by `create`, `change`, `delete`; the cluster by `nodes`, which have their turn
whenever the test waits. Nothing here looks inside the operator but at its metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, Protocol

from ddpjob_operator.api import constants
from ddpjob_operator.controller.controller import Controller
from ddpjob_operator.controller.keys.job_keys import JobKeys
from ddpjob_operator.controller.metrics.catalogue import CONTROLLER, DEPTH, PASSES
from ddpjob_operator.controller.reconciler import utc_now
from ddpjob_operator.controller.settings import Settings
from ddpjob_operator.kube.interface import ApiError, ApiServer, UnreachableError
from ddpjob_operator.manifests.network_policy import OperatorPods
from ddpjob_operator.rendezvous.session_pool import Key
from ddpjob_operator.request import Request
from support.keys import OPERATOR_KEY
from support.reconciling.nodes import Nodes
from support.reconciling.training import Service
from support.reconciling.view import View
from support.reconciling.wire import Wire
from support.scraped import value_in

JSON = dict[str, Any]
JOBS = f"/apis/{constants.API_VERSION}/namespaces/{{}}/{constants.PLURAL}"
PATIENCE_SECONDS = 120.0  # generous: a real API server may be slow, and the machine shared
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.2


class Limits(Protocol):
    """Refuses pods in one namespace, as an administrator has it done."""

    async def allow_pods(self, count: int | None) -> None:
        """Limit the number of pods; None: no limit."""


class Stage:
    """All that a test acts with."""

    def __init__(self, kube: ApiServer, namespaces: tuple[str, str], limits: Limits) -> None:
        self.kube = kube
        self.namespace, self.other_namespace = self.namespaces = namespaces
        self.limits = limits
        self.wire = Wire(kube)
        self.nodes = Nodes(kube, namespaces)
        self.operator_pods: OperatorPods | None = None  # None: the operator makes no policies
        self.agent_image = "ddpjob/operator:test"
        self.keys = JobKeys(OPERATOR_KEY)
        self.clock: Callable[[], float] = time.monotonic
        self.now: Callable[[], datetime] = utc_now
        self.patience, self.longest_pause = PATIENCE_SECONDS, LONGEST_PAUSE_SECONDS
        self.controller: Controller  # there is one from start_operator on
        self._tasks: list[asyncio.Task[None]] = []

    # --- the operator -----------------------------------------------------------------------------

    async def start_operator(self) -> None:
        """A new process, which knows nothing."""
        self.wire.dead.clear()
        self.controller, self._tasks = self.run_operator(self.wire)

    def run_operator(self, wire: Wire) -> tuple[Controller, list[asyncio.Task[None]]]:
        """Start an operator with a wire of its own; return it with its tasks."""
        settings = Settings(
            agent_image=self.agent_image,
            namespaces=self.namespaces,
            operator_pods=self.operator_pods,
        )
        controller = Controller(
            wire,
            settings,
            self.keys,
            lambda key, _: self.nodes.way(key, wire),
            clock=self.clock,
            now=self._present,
        )
        parts = (controller.run(), self._kopf(controller))
        return controller, [asyncio.ensure_future(each) for each in parts]

    def _present(self) -> datetime:
        """The time by `now`, which a story may change."""
        return self.now()

    async def stop_operator(self) -> None:
        """Kill the operator: it sends and writes nothing any more."""
        tasks, self._tasks = self._tasks, []
        await ended(tasks)

    async def restart_operator(self) -> None:
        await self.stop_operator()
        await self.start_operator()

    async def _kopf(self, controller: Controller) -> None:
        """Names each changed job to the operator; after our own writes, too."""
        path = f"/apis/{constants.API_VERSION}/{constants.PLURAL}"
        while True:
            events = self.kube.watch(path, query={}, silence=3600)
            assert isinstance(events, AsyncGenerator)
            with contextlib.suppress(ApiError, UnreachableError):
                async with contextlib.aclosing(events):
                    async for event in events:
                        metadata = event["object"]["metadata"]
                        if metadata["namespace"] in self.namespaces:
                            deleted = event["type"] == "DELETED"
                            version = "" if deleted else metadata["resourceVersion"]
                            controller.job_changed(metadata["namespace"], metadata["name"], version)
            await asyncio.sleep(FIRST_PAUSE_SECONDS)  # a CRD that is new may not be served yet

    def hurry(self, name: str = "digits") -> None:
        """Have a report and a pass now where time is real; fake time gets there by itself."""
        if self.clock is time.monotonic:
            self.service(name).end_polls()
            self.controller.changed(self.namespace, name)

    def metric(self, name: str, /, **labels: str) -> float:
        return value_in(self.controller.metrics.page().decode(), name, labels) or 0.0

    # --- the user ---------------------------------------------------------------------------------

    async def create(self, name: str = "digits", namespace: str = "", **spec: Any) -> None:
        own = {} if "template" in spec else {"image": "trainer:1", "command": ["torchrun", "a.py"]}
        body = {
            "apiVersion": constants.API_VERSION,
            "kind": constants.KIND,
            "metadata": {"name": name},
            "spec": {"replicas": 2, "maxReplicas": 9, **own, **spec},
        }
        await self.kube.send(Request("POST", JOBS.format(namespace or self.namespace), body=body))

    async def change(self, name: str = "digits", **spec: Any) -> None:
        """Edit the spec; None removes a field."""
        kind = {"Content-Type": "application/merge-patch+json"}
        path = f"{JOBS.format(self.namespace)}/{name}"
        await self.kube.send(Request("PATCH", path, body={"spec": spec}, headers=kind))

    async def delete(self, name: str = "digits") -> None:
        """The job; the garbage collector deletes what belonged to it."""
        path = f"{JOBS.format(self.namespace)}/{name}"
        job = await self.kube.send(Request("GET", path))
        await self.kube.send(Request("DELETE", path))
        self.nodes.deleted_jobs.add(job["metadata"]["uid"])

    async def delete_pod(self, name: str, *, vanishes: bool = False) -> None:
        """Delete a pod; or remove it at once, with its node."""
        pod = await self.kube.send(Request("GET", self.pod_path(name)))
        if vanishes:
            await self.nodes.remove(self.pod_path(name), pod["metadata"]["uid"])
        else:
            await self.kube.send(Request("DELETE", self.pod_path(name)))

    def pod_path(self, name: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{name}"

    # --- looking ----------------------------------------------------------------------------------

    def service(self, name: str = "digits") -> Service:
        return self.nodes.services[Key(self.namespace, name)]

    async def view(self, name: str = "digits", namespace: str = "") -> View:
        namespace = namespace or self.namespace
        try:
            job = await self.kube.send(Request("GET", f"{JOBS.format(namespace)}/{name}"))
        except ApiError as error:
            if error.status != 404:
                raise
            job = {"metadata": {"name": name}}
        query = {"labelSelector": f"{constants.LABEL_JOB}={name}"}
        base = f"/api/v1/namespaces/{namespace}"
        pods = await self.kube.send(Request("GET", f"{base}/pods", query=query))
        services = await self.kube.send(Request("GET", f"{base}/services", query=query))
        return View(
            job,
            {pod["metadata"]["name"]: pod for pod in pods["items"]},
            [each["metadata"]["name"] for each in services["items"]],
        )

    async def events(self, name: str = "digits") -> list[str]:
        """Reason and message of all events about a job."""
        listed = await self.kube.send(Request("GET", f"/api/v1/namespaces/{self.namespace}/events"))
        mine = [each for each in listed["items"] if each["involvedObject"]["name"] == name]
        return [f"{each['reason']}: {each['message']}" for each in mine]

    async def reasons(self, name: str = "digits") -> list[str]:
        """Reasons of all events about a job, in the order of the alphabet."""
        return sorted(event.partition(":")[0] for event in await self.events(name))

    # --- waiting ----------------------------------------------------------------------------------

    async def until(
        self,
        condition: Callable[[View], object],
        what: str,
        name: str = "digits",
        namespace: str = "",
    ) -> View:
        """Wait until a view of the job meets the condition; the cluster continues meanwhile."""
        view = await self.view(name, namespace)

        async def holds() -> bool:
            nonlocal view
            view = await self.view(name, namespace)
            return bool(condition(view))

        await self.wait(holds, what, lambda: f"{view.status}\n{view.phases()} {view.rendezvous}")
        return view

    async def wait(
        self, holds: Callable[[], Awaitable[bool]], what: str, seen: Callable[[], str] = str
    ) -> None:
        """Wait until it holds; the cluster continues meanwhile."""
        time = asyncio.get_running_loop().time
        deadline, pause = time() + self.patience, FIRST_PAUSE_SECONDS
        while not await holds():
            for task in self._tasks:
                if task.done():
                    await task
            assert time() < deadline, f"never: {what}\n{seen()}"
            if self.wire.dead.is_set():
                await self.restart_operator()
            await self.nodes.turn()
            await asyncio.sleep(pause)
            pause = min(pause * 1.2, self.longest_pause)

    async def calm(self, name: str = "digits") -> View:
        """Wait until passes over the job change nothing any more."""
        quiet = 0
        before = (-1, -1.0)

        async def holds() -> bool:
            nonlocal before, quiet
            own = {"controller": CONTROLLER}
            passes = self.metric(PASSES.name, **own, result="success")
            if passes <= before[1] or self.metric(DEPTH.name, **own, name=CONTROLLER):
                return False
            quiet = quiet + 1 if before[0] == self.wire.changes else 0
            before = (self.wire.changes, passes)
            self.controller.changed(self.namespace, name)
            return quiet > 3

        await self.wait(holds, "nothing left to be written")
        return await self.view(name)


async def ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel the tasks of an operator and wait for their end; raise what one of them raised."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


@contextlib.asynccontextmanager
async def staged(stage: Stage) -> AsyncIterator[Stage]:
    """With an operator that runs; whatever happened, it has patched nothing."""
    await stage.start_operator()
    try:
        yield stage
    finally:
        await stage.stop_operator()
    assert not [call for call in stage.wire.calls if call.method == "PATCH"]


Play = Callable[[Callable[[Stage], Awaitable[None]]], None]
