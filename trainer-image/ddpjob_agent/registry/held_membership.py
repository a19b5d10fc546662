"""The membership that an agent holds when it registers, accepted if a service has formed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpjob_protocol.codec import DecodeError
from ddpjob_protocol.parsers.report_check import check_membership

if TYPE_CHECKING:
    from ddpjob_protocol.keys.membership_seal import MembershipSeal
    from ddpjob_protocol.messages.agent import Message
    from ddpjob_protocol.messages.membership import Membership


def without_forged(
    hello: Message, seal: MembershipSeal, current: Membership | None
) -> tuple[Message, str]:
    """Return a hello without a membership that no service has formed, and the problem.

    The service knows its own membership, so it opens no seal for that one.
    """
    held = hello.get("membership")
    if held is None:
        return hello, ""
    if current is not None and isinstance(held, dict) and held.get("id") == str(current.id):
        return hello, ""
    try:
        membership = check_membership(held)
    except DecodeError as error:
        problem = str(error)
    else:
        if seal.is_genuine(membership, hello.get("seal")):
            return hello, ""
        problem = f"the membership {membership.id} has no seal of a service of this job"
    return {**hello, "membership": None}, problem
