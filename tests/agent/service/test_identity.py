"""The service takes each peer for the one that it has proved to be."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from agent.service.serving import Job, hello_of, run
from ddpjob_agent.net.framing import connect
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
