"""The interface of the files below a directory, or of the objects below a prefix of a bucket.

`directory` and `bucket` implement it. What the files mean is decided above: see `snapshot_storage`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ddpjob_trainer.collectives import StorageGroup

OWN_FOLDERS = ("step-", "fence-")  # how the names of all folders begin


class FileInfo(NamedTuple):
    """The size and the time of a file, by the clock of its storage."""

    size: int
    written: float  # seconds since 1970


SMALL_BYTES = 1 << 30  # of a file that is read at once, such as a manifest


class FileStore(Protocol):
    """Files by their path below the store, such as folder/file. Each method may raise OSError."""

    where: str  # for log lines and errors
    how_to_reset: str  # instruction

    limit: int | None  # bytes of the volume, at which kubelet evicts the pod
    readers: int  # reads at the same time that are faster than one
    passes_errors: bool  # an upload raises the errors of its chunks

    def group(self) -> StorageGroup:
        """Return the ranks with this store. Raise RuntimeError if the group breaks.

        Each rank must call this.
        """

    def list(self) -> dict[str, FileInfo]:
        """Return all complete files, and each empty folder, whose name ends with a slash."""

    def get(self, name: str) -> bytes | None:
        """Return a small file; None if there is none. Raise ValueError if it is too large."""

    def read(self, name: str, begin: int, into: Sequence[memoryview]) -> bool:
        """Fill the memory with a file's bytes from `begin` on; return False if there is no file.

        Raise ValueError if the file ends early.
        """

    def upload(self, name: str, chunks: Iterator[memoryview], size: int) -> None:
        """Write a large file durably, instead of an earlier one; it may be visible before."""

    def put(self, name: str, content: bytes) -> None:
        """Write a file durably into a folder that exists; it is complete or absent."""

    def create(self, name: str, content: bytes) -> bool:
        """Write the only file of a folder durably, complete or absent.

        Return False if the folder exists: of several callers one succeeds. Raise SnapshotError if
        the store cannot promise that.
        """

    def delete(self, *names: str) -> None:
        """Delete files, even if they do not exist."""

    def delete_folder(self, folder: str, names: Sequence[str]) -> None:
        """Delete a folder with its files, which are these: all at once, or in this order."""

    def used(self) -> int:
        """Return the bytes of all files in the volume."""

    def explain_error(self, error: OSError, size: int) -> tuple[str, str]:
        """Return the reason why a snapshot of `size` bytes could not be saved, and the remedy."""

    def is_transient(self, error: OSError) -> bool:
        """Return whether a later attempt may succeed without a repair."""

    def is_damage(self, error: OSError) -> bool:
        """Return whether an error of a read means that the file is lost."""
