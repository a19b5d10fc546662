"""A service that is older than the membership of an agent ends; and the count of its starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.service.serving import Job, run
from ddpjob_agent.service.boot_count import next_boot
from ddpjob_protocol.exit_codes import Exit
from ddpjob_protocol.messages.membership import Cause, Membership, MembershipId
from support.keys import SEAL

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("held", [(2, 1, 1), (1, 2, 1)], ids=["term", "boot"])
def test_a_service_that_no_agent_would_obey_ends(
    tmp_path: Path, held: tuple[int, int, int], capfd: pytest.CaptureFixture[str]
) -> None:
    """Otherwise it reports Running, while the agents ignore its orders."""

    async def body(job: Job) -> None:
        await job.expect("a", "b")
        job.agent("a")
        b = job.agent("b")
        b.membership = Membership(MembershipId(*held), (b.member,), Cause.STARTED, "")
        b.seal = SEAL.of(b.membership)
        b.running = True
        assert await job.service.ended() == Exit.SUPERSEDED

    run(body, tmp_path)
    name = ".".join(map(str, held))
    said = f"b has the membership {name} of a service of a higher term or boot than 1.1"
    assert said in capfd.readouterr().err


def test_starts_are_counted(tmp_path: Path) -> None:
    path = str(tmp_path / "boot")
    assert [next_boot(path) for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("content", ["", "7x", "-3", "9" * 19], ids=["empty", "text", "-", "long"])
def test_a_damaged_count_is_no_crash_loop(tmp_path: Path, content: str) -> None:
    """After a power loss the file may be empty; the next numbers are above all counts."""
    path = tmp_path / "boot"
    path.write_text(content)
    first = next_boot(str(path))
    assert first > 10**9
    assert next_boot(str(path)) == first + 1
    assert MembershipId.parse(f"1.{first}.1") == (1, first, 1)


def test_the_count_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power loss leaves an empty file in place of the count."""
    done: list[str] = []
    for name in ("fsync", "replace"):
        monkeypatch.setattr(f"os.{name}", lambda *_, name=name: done.append(name))
    next_boot(str(tmp_path / "boot"))
    assert done[:2] == ["fsync", "replace"]
