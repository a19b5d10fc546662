"""Work on files below a folder in which others may plant links: no link on the way is followed.

Each call walks from the folder down, with one handle for each part of the name (`openat`). A link
in the way is an error, and so is a file that is not a regular one. May not: know of replicas.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FOLDER = os.O_PATH | os.O_DIRECTORY  # needs no right to read the folder
_LINK = "a symbolic link is in the way; name the file or folder that it points to instead"


class Place(NamedTuple):
    """A file or folder: links are followed in `root`, and nowhere in `name`."""

    root: str
    name: str

    @property
    def path(self) -> str:
        """The path, for messages and for readers that follow links."""
        return os.path.join(self.root, self.name)

    @property
    def base(self) -> str:
        """Last part of the name."""
        return os.path.basename(self.name)

    @property
    def folder(self) -> Place:
        """The folder of this place."""
        return Place(self.root, os.path.dirname(self.name))

    def below(self, name: str) -> Place:
        """Return a place in this folder."""
        return Place(self.root, os.path.join(self.name, name))


@contextlib.contextmanager
def opened(folder: Place, *, make: bool = False) -> Iterator[int]:
    """Open a folder; create the missing ones of its name if `make`. Raises OSError.

    An OSError of the body gets the whole path, and the remedy for a link.
    """
    handle, reached = os.open(folder.root, _FOLDER), folder.root
    try:
        for part in _parts(folder):
            inner = _enter(handle, part, make=make)
            os.close(handle)
            handle, reached = inner, os.path.join(reached, part)
        yield handle
    except OSError as error:
        error.filename = os.path.join(reached, error.filename or "")
        if error.errno == errno.ELOOP:
            error.strerror = _LINK
        raise
    finally:
        os.close(handle)


def check(folder: Place, *, make: bool = False) -> None:
    """Raise OSError unless a folder is there, or was created now if `make`."""
    with opened(folder, make=make):
        pass


def _parts(place: Place) -> list[str]:
    parts = [part for part in place.name.split("/") if part not in ("", ".")]
    if ".." in parts or os.path.isabs(place.name):
        raise OSError(errno.EINVAL, "its name leaves its folder", place.path)
    return parts


def _enter(handle: int, part: str, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=handle)
    try:
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=handle)
    except NotADirectoryError:
        found = os.stat(part, dir_fd=handle, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            raise OSError(errno.ELOOP, _LINK, part) from None
        raise


def create(place: Place) -> IO[bytes]:
    """Create an empty file, instead of whatever file or link is there. Raises OSError."""
    with opened(place.folder) as folder:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place.base, dir_fd=folder)
        how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        return os.fdopen(os.open(place.base, how, 0o666, dir_fd=folder), "wb")


def open_to_read(place: Place) -> IO[bytes]:
    """Open a regular file. Raises OSError."""
    with opened(place.folder) as folder:
        how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.fdopen(os.open(place.base, how, dir_fd=folder), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is not a regular file", place.path)


def complete(place: Place, mode: int | None = None) -> None:
    """Flush a file that this process created, and set its permissions if given. Raises OSError."""
    with open_to_read(place) as file:
        if os.fstat(file.fileno()).st_nlink != 1:
            raise OSError(errno.EMLINK, "another name of this file was created", place.path)
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def sync_folder(folder: Place) -> None:
    """Flush the names in a folder to the disk. Raises OSError."""
    with opened(folder) as handle:
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=handle)
        try:
            os.fsync(readable)
        finally:
            os.close(readable)


def move(source: Place, target: Place) -> None:
    """Rename a file or folder; replace the target. Raises OSError."""
    with opened(source.folder) as old, opened(target.folder) as new:
        os.replace(source.base, target.base, src_dir_fd=old, dst_dir_fd=new)


def exists(place: Place) -> bool:
    """Return whether there is a file, a folder or a link of this name."""
    try:
        with opened(place.folder) as folder:
            os.stat(place.base, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


def names_in(folder: Place) -> list[str]:
    """Return the names in a folder. Raises OSError."""
    with opened(folder) as handle:
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=handle)
        try:
            return os.listdir(readable)
        finally:
            os.close(readable)


def sizes(folder: Place, names: Sequence[str]) -> list[int]:
    """Return the size of each of these regular files; -1 of anything else. Raises OSError."""
    with opened(folder) as handle:
        found = [os.stat(name, dir_fd=handle, follow_symlinks=False) for name in names]
    return [each.st_size if stat.S_ISREG(each.st_mode) else -1 for each in found]


def make_folder(place: Place) -> None:
    """Create a folder. Raises OSError, also if there is something of this name."""
    with opened(place.folder) as folder:
        os.mkdir(place.base, dir_fd=folder)


def remove(place: Place) -> None:
    """Delete a file, or a link itself. Raises OSError."""
    with opened(place.folder) as folder:
        os.unlink(place.base, dir_fd=folder)


def remove_folder(place: Place) -> None:
    """Delete an empty folder. Raises OSError."""
    with opened(place.folder) as folder:
        os.rmdir(place.base, dir_fd=folder)


def remove_tree(place: Place) -> None:
    """Delete a folder with everything in it, as far as possible; a link in it is deleted itself."""
    with contextlib.suppress(OSError, RecursionError), opened(place.folder) as parent:
        walk = os.fwalk(place.base, topdown=False, dir_fd=parent)
        for _, folders, files, handle in walk:
            for name in (*folders, *files):
                _discard(name, handle)
        _discard(place.base, parent)


def _discard(name: str, folder: int) -> None:
    with contextlib.suppress(OSError):
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            os.rmdir(name, dir_fd=folder)
