"""The log of a pod, as `ddpjob logs -f` shows it."""

from __future__ import annotations

import pytest

from ddpjob_operator.tracebacks import LogFold

AGENT = "2026-11-28 17:28:53,849 ddpjob.agent"
STOPPED = """Traceback (most recent call last):
  File "/usr/lib/torch/distributed/run.py", line 1142, in <module>
    main()
           ^^^^
  File "/usr/lib/torch/distributed/elastic/multiprocessing/api.py", line 86, in handler
    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)
torch.distributed.elastic.multiprocessing.api.SignalException: Process 17 got signal: 15"""
TABLE = """Traceback (most recent call last):
  File "/usr/lib/torch/distributed/launcher/api.py", line 386, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\x20
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
[0]:
  exitcode  : 1 (pid: 24)
============================================================"""
PEER = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/app/train.py", line 9, in <module>
[rank0]:     loss.backward()
[rank0]: RuntimeError: [gloo/tcp/pair.cc:534] Connection closed by peer [10.244.1.5]:3453"""
NETWORK = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/app/train.py", line 3, in <module>
[rank1]: KeyError: 'x'

[rank1]: During handling of the above exception, another exception occurred:

[rank1]: Traceback (most recent call last):
[rank1]:   File "/app/train.py", line 4, in <module>
[rank1]: torch.distributed.DistNetworkError: failed to recv, got 0 bytes
[rank1]: Exception raised from recvBytes at Utils.hpp:704 (most recent call first):
[rank1]: frame #0: c10::Error::Error(c10::SourceLocation) + 0x80 (0x7f in libc10.so)"""
CHAINED = NETWORK.partition("[rank1]: torch.distributed.Dist")[0] + "[rank1]: ValueError: y"
OWN = """Traceback (most recent call last):
  File "/app/train.py", line 20, in <module>
    check(loss)
ValueError: loss is nan"""
DATABASE = """Traceback (most recent call last):
  File "/app/train.py", line 5, in <module>
    connect()
ConnectionRefusedError: [Errno 111] Connection refused"""


def shown(*texts: str, fold: LogFold | None = None) -> list[str]:
    fold = fold or LogFold(set())
    return [line for text in texts for each in text.split("\n") for line in fold.feed(each)]


def change(cause: str) -> str:
    return f"{AGENT} membership 1.1.2 ({cause}): 1 worker, world size 1"


@pytest.mark.parametrize(
    ("traceback", "line"),
    [
        (STOPPED, "torchrun: stopped by a signal (traceback folded; --raw shows it)"),
        (TABLE, "torchrun: ChildFailedError (table of failures folded; --raw shows it)"),
        (
            PEER,
            f"{PEER.rpartition(chr(10))[2]} (traceback folded; --raw shows it)",
        ),
    ],
)
def test_what_a_change_makes_torchrun_print_is_one_line(traceback: str, line: str) -> None:
    after = change("lost")
    assert shown("step 1", traceback, "step 2", after) == ["step 1", line, "step 2", after]


def test_a_chain_of_exceptions_with_frames_of_c_is_one_traceback() -> None:
    first, last = shown(NETWORK, change("lost"))
    assert first.startswith("[rank1]: torch.distributed.DistNetworkError: failed to recv")
    assert last == change("lost")


@pytest.mark.parametrize("traceback", [OWN, CHAINED])
def test_a_failure_of_the_script_is_shown_whole(traceback: str) -> None:
    assert shown(traceback, f"{AGENT} the command ended with exit code 1") == [
        *traceback.split("\n"),
        f"{AGENT} the command ended with exit code 1",
    ]


def test_a_traceback_that_was_folded_is_shown_if_a_failure_is_the_reason() -> None:
    """A script may fail by a connection of its own."""
    folded, *whole = shown(DATABASE, change("failed"))
    assert folded.startswith("ConnectionRefusedError")
    assert whole == [*DATABASE.split("\n"), change("failed")]
    fold = LogFold(set())
    assert len(shown(DATABASE, f"{AGENT} the command ended with exit code 1", fold=fold)) == 2
    assert fold.end() == DATABASE.split("\n")


def test_beside_the_failure_itself_folded_ones_stay_folded() -> None:
    lines = shown(OWN, PEER, change("failed"))
    assert len(lines) == len(OWN.split("\n")) + 2


def test_the_failure_may_be_in_the_log_of_another_worker() -> None:
    failed: set[str] = set()
    mine, other = LogFold(failed), LogFold(failed)
    started = f"{AGENT} membership 1.1.1 (started): 2 workers, world size 2"
    shown(started, OWN, "x", fold=other)
    assert len(shown(started, PEER, change("failed"), fold=mine)) == 3
    assert len(shown(PEER, change("failed"), fold=mine)) == 2 + len(PEER.split("\n"))


def test_a_worker_that_leaves_shows_nothing_at_its_end() -> None:
    fold = LogFold(set())
    assert len(shown(f"{AGENT} received SIGTERM: leaving", PEER, "x", fold=fold)) == 3
    assert fold.end() == []


def test_ranks_print_at_the_same_time() -> None:
    other = PEER.replace("rank0", "rank1")
    pairs = zip(PEER.split("\n"), other.split("\n"), strict=True)
    lines = shown(*(line for pair in pairs for line in pair), change("lost"))
    assert [line[:9] for line in lines[:2]] == ["[rank0]: ", "[rank1]: "]
    assert len(lines) == 3


def test_tracebacks_that_mix_are_shown() -> None:
    own, peer = OWN.split("\n"), DATABASE.split("\n")
    mixed = [own[0], own[1], *peer, *own[2:]]
    assert sorted(shown(*mixed, change("lost"))) == sorted([*mixed, change("lost")])


def test_a_traceback_without_an_end_is_shown_after_a_while() -> None:
    fold = LogFold(set())
    assert shown(*OWN.split("\n")[:2], fold=fold) == []
    assert fold.flush() == OWN.split("\n")[:2]
    assert fold.feed("step 2") == ["step 2"]
