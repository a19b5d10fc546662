"""The objects below a prefix of a bucket, and the errors of its store in terms that users know.

A thin shell around obstore, which supports the stores of S3, Google and Azure. obstore finds
credentials like the stores' own tools: in the environment, in files, from the machine. Each error
is an OSError. An object is complete or absent, and only `create` needs a request that succeeds for a
single process. This module does not depend on snapshots.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.storage.base import SMALL_BYTES, FileInfo

obstore: Any = None
with contextlib.suppress(ImportError):  # an image without obstore still supports directories
    import obstore
    import obstore.exceptions
    import obstore.store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ddpjob_trainer.collectives import StorageGroup

REQUEST_TIMEOUT = timedelta(seconds=60)  # limit for the retries of one request

PART_BYTES = 16 << 20  # of an upload
PARTS = 8  # concurrent parts of an upload
MOST_PARTS = 9_000  # parts of one object; S3 allows 10,000

# Patterns of the library's error text, with cause and remedy. The first match counts.
_MEANINGS: tuple[tuple[str, str, str], ...] = (
    (
        r"NoSuchBucket|ContainerNotFound|bucket does not exist",
        "there is no such bucket",
        "Make it, or correct the URI.",
    ),
    (
        r"169\.254\.169\.254|metadata\.google|Account must be specified",
        "there are no credentials for it",
        (
            "Give the workers those that its own tools use, such as AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or a service account with a role."
        ),
    ),
    (
        r"Sign\w*DoesNotMatch|InvalidAccessKeyId|UserNotFound|ExpiredToken|InvalidToken|code: 401",
        "the credentials are wrong",
        "Correct those that the job's workers have in their environment.",
    ),
    (
        r"code: 403|AccessDenied",
        "access is denied",
        "Allow these credentials to list, read, write and delete objects there.",
    ),
    (
        r"code: 501|NotImplemented|not yet implemented",
        "the store lacks what is needed: it cannot refuse to replace an object",
        "Use a store that honours If-None-Match, or a directory.",
    ),
)
_UNAVAILABLE = re.compile(
    r"code: (5\d\d|429|408)|error sending request|[Tt]im(eout|ed out)|HTTP error"
)


class StoreError(OSError):
    """A failed request; the text states the reason."""

    def __init__(self, cause: str, remedy: str, *, is_unavailable: bool = False) -> None:
        super().__init__(errno.EIO, f"{cause}. {remedy}" if remedy else cause)
        self.cause = cause
        self.remedy = remedy
        self.is_unavailable = is_unavailable  # a later attempt may succeed without a repair

    def __str__(self) -> str:
        return str(self.strerror)


def connect(scheme: str, bucket: str, prefix: str) -> BucketFiles:
    """Return a client for the objects below a prefix, before any request. Raise SnapshotError."""
    uri = f"{scheme}://{bucket}/{prefix}".rstrip("/")
    if obstore is None:
        raise SnapshotError(
            f"Snapshots in {uri} need another package in this image: pip install obstore"
        )
    kinds = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    if scheme == "s3" and endpoint and not re.match("https?://", endpoint):
        raise SnapshotError(
            f"AWS_ENDPOINT_URL is {endpoint!r}: it has to begin with https:// or http://"
        )
    options: dict[str, Any] = {
        "prefix": prefix or None,
        "retry_config": {"max_retries": 10, "retry_timeout": REQUEST_TIMEOUT},
        # The limit for a whole part, since an overloaded store is slow.
        "client_options": {"timeout": REQUEST_TIMEOUT, "connect_timeout": timedelta(seconds=5)},
    }
    if scheme == "s3" and endpoint.startswith("http://"):
        options["client_options"]["allow_http"] = True  # the user has asked for http
    try:
        store = getattr(obstore.store, kinds[scheme])(bucket, **options)
    except obstore.exceptions.BaseError as error:
        problem = _problem(error)
        raise SnapshotError(f"Cannot use {uri}: {problem}") from error
    return BucketFiles(store, uri)


class BucketFiles:
    """The objects of a prefix, named by their path below it. Each request may raise StoreError."""

    limit: int | None = None
    readers = 8
    passes_errors = False
    how_to_reset = "give another prefix (spec.snapshot.uri)"

    def __init__(self, store: Any, uri: str) -> None:
        """Take obstore's store, and the prefix for log lines and errors."""
        self._store = store
        self.where = uri
        self._is_proven = False  # that one of two creations fails

    def group(self) -> StorageGroup:
        """Return the ranks: all share the store; the first rank of each node reads and sends."""
        from ddpjob_trainer import collectives  # noqa: PLC0415 - a list of snapshots needs no torch

        return collectives.single_group()

    def list(self) -> dict[str, FileInfo]:
        """Return all objects, including each object that a put has completed."""
        listed = self._ask(lambda: [each for some in obstore.list(self._store) for each in some])
        return {
            each["path"]: FileInfo(each["size"], each["last_modified"].timestamp())
            for each in listed
        }

    def get(self, name: str) -> bytes | None:
        """Return a small object; None if there is none. Raise ValueError for a larger one."""
        found = self._ask(lambda: obstore.get(self._store, name), none=True)
        if found is None:
            return None
        if found.meta["size"] > SMALL_BYTES:
            raise ValueError(f"{name} has {found.meta['size']:,} bytes, too many to be read")
        return self._ask(lambda: bytes(found.bytes()), none=True)  # type: ignore[no-any-return]

    def read(self, name: str, begin: int, into: Sequence[memoryview]) -> bool:
        """Fill the memory with an object's bytes from `begin` on; return False if there is none."""
        size = sum(map(len, into))
        if not size:
            return True
        content = self._ask(
            lambda: obstore.get_range(self._store, name, start=begin, end=begin + size), none=True
        )
        if content is None:
            return False
        rest = memoryview(content)
        if len(rest) != size:
            raise ValueError(f"{name} ends early")
        for view in into:
            view[:] = rest[: len(view)]
            rest = rest[len(view) :]
        return True

    def put(self, name: str, content: bytes) -> None:
        """Create or replace an object."""
        self._ask(lambda: obstore.put(self._store, name, content, use_multipart=False))

    def upload(self, name: str, chunks: Iterator[memoryview], size: int) -> None:
        """Create a large object from chunks; it exists completely or not at all."""
        if size <= PART_BYTES:
            self.put(name, b"".join(chunks))
            return
        part = max(PART_BYTES, math.ceil(size / MOST_PARTS))
        self._ask(
            lambda: obstore.put(
                self._store, name, chunks,
                use_multipart=True, chunk_size=part, max_concurrency=PARTS,
            )
        )  # fmt: skip

    def create(self, name: str, content: bytes) -> bool:
        """Create an object; return False if the name is in use. One of several callers succeeds.

        Raise SnapshotError if the store also accepts a second creation.
        """
        if not self._create(name, content):
            return False
        if not self._is_proven and self._create(name, content):
            raise SnapshotError(
                f"The store of {self.where} replaces an object in spite of a request to create it only if "
                "there is none (If-None-Match: *). Without that a process that was cut off could "
                "spoil snapshots. Use a store that honours it, or a directory."
            )
        self._is_proven = True
        return True

    def _create(self, name: str, content: bytes) -> bool:
        try:
            self._ask(lambda: obstore.put(self._store, name, content, mode="create"))
        except FileExistsError:
            return False
        return True

    def delete(self, *names: str) -> None:
        """Delete objects, even if they do not exist."""
        for name in names:
            self._ask(partial(obstore.delete, self._store, name))

    def delete_folder(self, folder: str, names: Sequence[str]) -> None:
        """Delete all objects of a folder in this order."""
        del folder
        self.delete(*names)

    def used(self) -> int:
        """Return 0: a bucket has no limit."""
        return 0

    def explain_error(self, error: OSError, size: int) -> tuple[str, str]:
        """Return the reason why a snapshot could not be saved, and the remedy."""
        del size
        assert isinstance(error, StoreError)
        return error.cause, error.remedy

    def is_transient(self, error: OSError) -> bool:
        """Return whether a later attempt may succeed without a repair."""
        return isinstance(error, StoreError) and error.is_unavailable

    def is_damage(self, error: OSError) -> bool:
        """Return False: the object may be whole, and the request has failed."""
        del error
        return False

    def _ask(self, request: Callable[[], Any], *, none: bool = False) -> Any:
        try:
            return request()
        except obstore.exceptions.AlreadyExistsError:
            raise FileExistsError from None
        except FileNotFoundError as error:
            if none and "NoSuchBucket" not in str(error):
                return None
            raise _problem(error) from error
        except (obstore.exceptions.BaseError, OSError, NotImplementedError) as error:
            raise _problem(error) from error


def _problem(error: Exception) -> StoreError:
    text = str(error).split("\n\nDebug source", maxsplit=1)[0]
    for pattern, cause, remedy in _MEANINGS:
        if re.search(pattern, text):
            return StoreError(cause, remedy)
    if _UNAVAILABLE.search(text):
        return StoreError(f"it cannot be reached: {_short(text)}", "", is_unavailable=True)
    return StoreError(_short(text), "")


def _short(text: str) -> str:
    """Return the innermost of nested causes."""
    code = re.search(r"status code: (\d+ [\w ]+)", text)
    if code:
        return f"it answers {code[1].strip()}"
    return text.splitlines()[0][-200:]
