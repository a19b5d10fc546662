"""The service takes each peer for the one that it has proved to be."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

from agent.service.serving import PATIENCE_SECONDS, PATIENT, Job, hello_of, run, until
from ddpjob_agent.net.framing import connect
from ddpjob_operator.rendezvous.client import ServiceUnavailableError
from ddpjob_protocol.keys.signed_http import PROOF_HEADER, RequestSigner
from support.keys import KEY, credential

if TYPE_CHECKING:
    from pathlib import Path


def test_a_worker_does_not_register_as_another(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a", "b")
        impostor = await connect("127.0.0.1", job.service.port, credential("b"))
        impostor.send(hello_of("a"))
        assert await impostor.receive() is None, "the session ends"
        impostor.close()
        job.agent("a")
        job.agent("b")
        await job.formed(1)

    run(body, tmp_path)


OLD, NEW, OTHER = "digits-worker-001-1", "digits-worker-001-2", "digits-worker-000-1"


async def refusal(job: Job, worker: str) -> str:
    """Register with the key of this worker; return the reason if the service refuses it."""
    connection = await connect("127.0.0.1", job.service.port, credential(worker))
    connection.send(hello_of(worker))
    answer = await connection.receive()
    connection.close()
    assert answer is not None
    return str(answer["reason"]) if answer["type"] == "refused" else ""


def test_the_key_of_a_replaced_worker_is_refused(tmp_path: Path) -> None:
    """While its pod is being deleted, the operator still names it as a worker that leaves."""

    async def body(job: Job) -> None:
        await job.expect(OTHER, OLD)
        assert await refusal(job, OLD) == ""
        await job.expect(OTHER, NEW)
        assert await refusal(job, OLD) == f"{OLD} was replaced by {NEW}, so its key is not valid"
        job.agent(OTHER)
        job.agent(NEW)
        await job.formed(1)
        assert await refusal(job, OLD) != ""
        assert (await job.report()).workers == (OTHER, NEW)

    run(body, tmp_path)


@pytest.mark.parametrize(
    "worker",
    ["digits-worker-001-3", "digits-worker-002-1", "digits-gpu-001-1", "digits-worker-0010-1", "w"],
)
def test_a_worker_that_may_be_expected_soon_is_not_refused(tmp_path: Path, worker: str) -> None:
    """A pod may be faster than the operator's next expectation."""

    async def body(job: Job) -> None:
        await job.expect(OTHER, NEW)
        assert await refusal(job, worker) == ""

    run(body, tmp_path)


def test_a_member_that_was_replaced_returns_until_the_next_membership(tmp_path: Path) -> None:
    """The others may wait for its last step."""

    async def body(job: Job) -> None:
        patient = dataclasses.replace(PATIENT, reconnect_grace=PATIENCE_SECONDS)
        await job.expect(OTHER, OLD, policy=patient)
        first, old = job.agent(OTHER), job.agent(OLD)
        await job.formed(1)
        for agent in (first, old):
            agent.task.cancel()
            await asyncio.wait([agent.task])
        await job.service.kill()
        job.service.start()
        await job.expect(OTHER, NEW, policy=patient)
        old.task = asyncio.ensure_future(old.link.run())

        async def is_back() -> None:
            if old.task.done():
                old.task.result()
            if OLD not in (await job.client.report()).workers:
                raise ServiceUnavailableError

        await until(is_back)

    run(body, tmp_path)


async def put(port: int, headers: str, body: bytes) -> tuple[str, dict[str, object]]:
    """Send an expectation; return the status line and the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"PUT /expected HTTP/1.1\r\n{headers}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    status, _, rest = answer.partition(b"\r\n")
    return status.decode(), json.loads(rest.partition(b"\r\n\r\n")[2])


def test_a_changed_body_is_refused(tmp_path: Path) -> None:
    """And no body of a request without the challenge has an effect."""

    async def body(job: Job) -> None:
        await job.expect("a")
        signer, told, other = (
            RequestSigner(KEY.operator),
            {"workers": ["a", "b"]},
            b'{"workers":[]}',
        )
        proof = signer.sign("PUT", "/expected", {}, told, "1")[PROOF_HEADER]
        _, answer = await put(
            job.service.port, f"{PROOF_HEADER}: {proof}", json.dumps(told).encode()
        )
        assert signer.open(answer, "1") is None
        proof = signer.sign("PUT", "/expected", {}, told, "2")[PROOF_HEADER]
        status, answer = await put(job.service.port, f"{PROOF_HEADER}: {proof}", other)
        assert "403" in status
        assert "not the one that was proven" in str(answer)
        job.agent("a")
        await job.formed(1)

    run(body, tmp_path)
