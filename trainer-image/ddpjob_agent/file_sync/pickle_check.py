"""Detects incomplete pickles, also those of torch.save before 1.6.

torch.save with `_use_new_zipfile_serialization=False` writes five pickles, then the content of each
tensor after its length. The check imports and calls nothing that a pickle names: stand-ins replace
all classes and functions.
May not: return the content of a pickle.
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
# Bytes of one element in torch's older kinds of storage. For other kinds the length is in bytes.
WIDTHS = {
    **dict.fromkeys(("ComplexDoubleStorage",), 16),
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    **dict.fromkeys(("FloatStorage", "IntStorage", "QInt32Storage"), 4),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
}


def find_pickle_corruption(file: IO[bytes], size: int, *, deep: bool) -> str:
    """Return the corruption, or an empty text; not `deep`: check only the end. Raises OSError."""
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
    except Exception as error:  # noqa: BLE001 - only the script's own class knows its state
        log.debug("a pickle that cannot be followed to its end: %r", error)
    return ""


def _is_legacy_torch(file: IO[bytes]) -> bool:
    magic = pickle.dumps(TORCH_MAGIC, protocol=2)
    start = file.read(len(magic))
    file.seek(0)
    return magic.startswith(start)


def _find_legacy_corruption(file: IO[bytes], size: int) -> str:
    for _ in range(3):  # magic number, version, properties of the machine
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
    """A stand-in for any object of a pickle."""

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
    """An unpickler that creates only plain containers and stand-ins."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(io.BufferedReader(file) if isinstance(file, io.RawIOBase) else file)
        self.widths: dict[str, int] = {}  # bytes per element, by key of a storage

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in for a class or function."""
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        return type(name, (_Anything,), {"__module__": module})

    def persistent_load(self, pid: Any) -> Any:
        """Record a storage of torch, whose content follows the pickles."""
        if pid[0] == "module":
            return pid[1]
        if pid[0] == "storage":
            self.widths[str(pid[2])] = WIDTHS.get(pid[1].__name__, 1)
        return _Anything()
