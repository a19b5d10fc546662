"""The keys of jobs, derived from the operator's key or from an earlier one.

All pods of a job have keys of one job key. While a live pod has one of an earlier operator's key,
the job keeps that one, so that a rotation replaces no pod. A job without pods begins with the
present key. Nothing of this is stored: it is read from the labels of the pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpjob_operator.manifests.parse import Pod
from ddpjob_protocol.keys.credentials import JobKey


class JobKeys:
    """The keys of all jobs."""

    def __init__(self, key: bytes, previous: Sequence[bytes] = ()) -> None:
        """`key` is the operator's key; `previous` are those before it."""
        self._keys = (key, *previous)

    def key_of(self, uid: str, pods: Iterable[Pod]) -> JobKey:
        """Return the key of the job with this UID and these pods."""
        keys = [JobKey.of(each, uid) for each in self._keys]
        known = {each.fingerprint: each for each in keys}
        live = [each for each in pods if each.live]
        services = [each.rendezvous.key for each in live if each.rendezvous]
        workers = [each.worker.key for each in live if each.worker]
        held = (known[each] for each in (*services, *workers) if each in known)
        return next(held, keys[0])
