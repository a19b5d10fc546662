"""The warning of an agent that cannot open connections to other members."""

from __future__ import annotations

import asyncio

from ddpjob_agent.net.connectivity import ConnectivityCheck
from ddpjob_operator.local.simulated.rendezvous_process import free_port
from ddpjob_protocol.messages.agent import Message
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId

HOST = "127.0.0.1"
ME, THERE, GONE, OLD = (Member(name, "x", HOST, 1) for name in ("me", "there", "gone", "old"))


def test_an_unreachable_member_is_reported_and_one_without_a_listener_is_not_tried() -> None:
    async def test() -> None:
        heard: asyncio.Queue[Message] = asyncio.Queue()
        mine, others = ConnectivityCheck(heard.put_nowait), ConnectivityCheck(heard.put_nowait)
        await mine.listen(HOST)
        await others.listen(HOST)
        assert mine.port is not None
        assert others.port is not None
        membership = Membership(MembershipId(1, 1, 1), (ME, THERE, GONE, OLD), Cause.STARTED, "")
        ports = {"me": mine.port, "there": others.port, "gone": free_port()}
        mine.check(membership, ME, ports)
        said = await asyncio.wait_for(heard.get(), 60)
        assert (said["type"], said["reason"]) == ("warning", "Unreachable")
        assert said["membership"] == "1.1.1"
        assert said["message"].startswith("cannot reach gone; their processes cannot connect")
        assert heard.empty()
        mine.close()
        others.close()

    asyncio.run(test())


def test_worker_without_its_address_continues() -> None:
    async def test() -> None:
        reach = ConnectivityCheck(lambda _: None)
        await reach.listen("192.0.2.99")  # of no worker
        assert reach.port is None

    asyncio.run(test())
