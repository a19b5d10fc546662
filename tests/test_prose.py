"""The check of English: sentences that it must find, and sentences that it must accept."""

from __future__ import annotations

import pytest
from tools.prose import Text, check

# Sentences of an early state of this project.
FOUND = [
    "A field that does not act yet is refused with a message, never ignored.",
    "A job that failed is continued likewise; one that completed starts anew, and its run is kept as `NAME.previous`. Restarts are counted per run.",
    "Known are the steps of scripts that load through `Snapshots` and ask `due` or call `step_done` after every step, by what the processes of all surviving workers had done, whatever of it was reported before they died.",
    "Where a process is stopped, or holds the interpreter's lock, its worker is started again and joins. Either is told: event `ProcessStuck`, `status.stuck`",
    "what is whole on disk counts, though it had no second to be quiet; what is torn is replaced by the last copy",
    "… was ended before it had done and saved its last step: 30 s were too few. Nothing but what came after the last snapshot is lost.",
    "a process did not come out of a collective of membership 1.1.3, which had broken. It was ended; another one goes on with its state, of step 7",
    "How many workers the job cannot do without, of whichever group; those that an extra group cannot do without come on top.",
    "When a new worker is let in: Auto at the cheapest moment, Immediate at once, Never only at a change that happens anyway.",
    "How long no further worker must have come before a start.",
    "Joins of a job without snapshots are at least so far apart.",
    "Required; in an extra group absent: as the main group, with its args.",
    "Last epoch whose service was seen; only such a service may form memberships.",
    "'./' stands for all that is there; name what the script saves to",
    "'x' is no bucket with a prefix; give one as in s3://bucket/jobs/digits (s3, gs or az)",
    "must be longer than nothing, not a list",
    "--fresh leaves what is in s3://… alone: give another prefix",
    "membership 1.1.4 has gone on from step 100 in DIR: membership 1.1.3 was overtaken, and what it saves would not count.",
    "no end of a step or save in 30 s: the processes are ended",
    "stood still for 2.1 s; nobody's silence in it counts",
    "OvertakenError only while `owner` is who saved: it has gone on by new right otherwise.",
    "a service that says nothing for so long has lost us, or we it",
    "From now on nobody else adds to the place; whether somebody just did. Not `for_good`: perhaps this is only to look at, and who saves goes on.",
    "who says nothing for so long, of what it says every second, leaves none",
    "Who still chooses from which one is not bound by a fence of its own.",
    "How many workers the job cannot do without, of whichever group; those that an extra group cannot do without come on top. Absent: 1, or 0 when the main group has no workers.",
    "How long no further worker must have come before a start.",
    "Joins of a job without snapshots are at least so far apart.",
    "A worker that is silent for so long is lost. At least 2. Absent: 10, and 3 where processes stay.",
    "What starts the processes of a worker: torchrun, which the command has to run; python: the command itself is the process, or starts its own; or mpi: …",
    "GPUs of each worker. Absent: none; in an extra group: as the main group.",
    "What the user wants. / What was observed. / Training state. / What failures may cost.",
    "What makes saving worse than it could be, and what to do.",
    "Reasons of warnings that are told once.",
    "… was ended before it had done and saved its last step: 30 s were too few. Nothing but what came after the last snapshot is lost.",
    "a process did not come out of a collective of membership 1.1.3, which had broken. It was ended; another one goes on with its state, of step 900",
    "look at the logs there, or at the stacks with `py-spy dump`; nothing is restarted, and if this is an evaluation or a long save, nothing is wrong",
    "lost digits-spot-000-1; others in doubt",
    "the script's files cannot be put in place: nobody gave them within 120 s",
    "--nnodes=2 pins the number of workers; remove it: ddpjob sets it anew whenever the workers change",
    "python runs train.py as a single process that knows of no other one; use [torchrun, train.py], or launcher: python if it finds the others by itself",
    "'../x' leads out with '..'; write the path without",
    "only --local is there yet: ddpjob run --local x.yaml",
    "stopped; to go on from the last snapshot: …",
    "step 901 is the first one, after 1.5 s",
    "kill=30% was never due",
    "'400%' never comes; write at most 100%",
    "what lies in a directory or an object store, whether it is whole; prune, export. Changes nothing but what it is told to; a running job is not disturbed.",
    "job a/b membership 1.1.3 has gone on from step 900 in …: 1.1.2 is an earlier one, and may not.",
    "A field that does not act yet is refused with a message, never ignored.",
    "**Who gets nothing** (a short batch of 2 over 3 processes) does what the first process does, with the weight 0, because all must take part in the exchange of gradients.",
    "Where the image is: `ddpjob/operator`, or the same in your registry.",
    "sagemaker.model is not given: what is left in SM_MODEL_DIR is gone with its pod",
]

ACCEPTED = [
    "Running a failed job again resumes it.",
    "There is no kubeconfig at /root/.kube/config.",
    "A file on disk is complete or absent: a rename is atomic.",
    "'x' is not a resource of Kubernetes; use cpu or memory.",
    "The pod is no longer needed.",
]


@pytest.mark.parametrize("sentence", FOUND)
def test_private_english_is_found(sentence: str) -> None:
    assert list(check(Text(1, sentence, is_docstring=True)))


@pytest.mark.parametrize("sentence", ACCEPTED)
def test_plain_english_is_accepted(sentence: str) -> None:
    assert not list(check(Text(1, sentence)))


def test_a_long_sentence_is_found_at_its_line() -> None:
    text = Text(10, "Short.\n" + "word " * 31 + "end.")
    assert [line for line, _ in check(text)] == [11]
