"""Whether a pickle is whole, and what torch.save wrote with `_use_new_zipfile_serialization=False`.

That is five pickles, the content of the tensors after them, each with its length. Nothing that a
pickle names is imported or called: stand-ins take whatever it says.
May not: return what it reads.
"""

from __future__ import annotations

import collections
import io
import logging
import pickle
import struct
from typing import IO, Any

log = logging.getLogger("ddpjob.files")

STOP = b"."
TORCH_MAGIC = 0x1950A86A20F9469CFC6C
# The bytes of one element of torch's older kinds of storage; of every other kind the length counts bytes.
WIDTHS = {
    **dict.fromkeys(("ComplexDoubleStorage",), 16),
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    **dict.fromkeys(("FloatStorage", "IntStorage", "QInt32Storage"), 4),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
}


def find_pickle_corruption(file: IO[bytes], size: int, *, deep: bool) -> str:
    """What is wrong with this pickle; not `deep`: its end only is looked at. Raises OSError."""
    try:
        file.seek(0)
        if _is_legacy_torch(file):
            return _find_legacy_corruption(file, size)
        file.seek(size - 1)
        if file.read(1) != STOP:
            return "its last pickle is cut short"
        file.seek(0)
        while deep and file.tell() < size:
            _Hollow(file).load()
    except (EOFError, struct.error) as error:
        return f"its pickle is cut short: {error}"
    except pickle.UnpicklingError as error:
        return "" if "NEWOBJ" in str(error) else f"its pickle is damaged: {error}"
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - what a class of the script's own would have taken
        log.debug("a pickle that cannot be followed to its end: %r", error)
    return ""


def _is_legacy_torch(file: IO[bytes]) -> bool:
    magic = pickle.dumps(TORCH_MAGIC, protocol=2)
    start = file.read(len(magic))
    file.seek(0)
    return magic.startswith(start)


def _find_legacy_corruption(file: IO[bytes], size: int) -> str:
    for _ in range(3):  # the magic number, the version, facts about the machine
        _Hollow(file).load()
    reader = _Hollow(file)
    reader.load()
    keys = _Hollow(file).load()
    at = file.tell()
    for key in keys:
        file.seek(at)
        (count,) = struct.unpack("<q", file.read(8))
        at += 8 + count * reader.widths[key]
    return "" if at == size else f"it has {size} of {at} bytes"


class _Anything(dict):  # type: ignore[type-arg]
    """Stands for whatever a pickle makes."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __call__(self, *_: Any, **__: Any) -> _Anything:
        return _Anything()

    def __setstate__(self, _: object) -> None:
        pass

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def append(self, _: object) -> None:
        pass

    extend = add = append


class _Hollow(pickle.Unpickler):
    """Reads a pickle without making anything of it but plain containers."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(io.BufferedReader(file) if isinstance(file, io.RawIOBase) else file)
        self.widths: dict[str, int] = {}  # by key, of the storages that it names

    def find_class(self, module: str, name: str) -> Any:
        """A stand-in."""
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        return type(name, (_Anything,), {"__module__": module})

    def persistent_load(self, pid: Any) -> Any:
        """Of torch's pickles: a tensor's content, that comes later."""
        if pid[0] == "module":
            return pid[1]
        if pid[0] == "storage":
            self.widths[str(pid[2])] = WIDTHS.get(pid[1].__name__, 1)
        return _Anything()
