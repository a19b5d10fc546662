"""Walks through the instructions of pickles, to see whether the last one ends with the data.

Only lengths are read: an instruction is stepped over, neither executed nor copied, so a length or an
index in a pickle takes no memory. May not: do I/O, execute an instruction.
"""

from __future__ import annotations

import pickle
import pickletools

_STOP = pickle.STOP[0]
_CUT = "it is cut short"

# Arguments after an instruction, by the numbers of `pickletools`: a length and its bytes, or lines.
_LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: (1, False),
    pickletools.TAKEN_FROM_ARGUMENT4: (4, True),
    pickletools.TAKEN_FROM_ARGUMENT4U: (4, False),
    pickletools.TAKEN_FROM_ARGUMENT8U: (8, False),
}  # bytes of the length, and whether the length has a sign
_ARGUMENTS = {
    ord(opcode.code): (opcode.arg.n, opcode.arg.name) if opcode.arg else (0, "")
    for opcode in pickletools.opcodes
}


class _DamageError(Exception):
    pass


def find_damage(data: bytes) -> str:
    """Return the damage of consecutive pickles, or an empty text."""
    at, code = 0, _STOP
    try:
        while at < len(data):
            code = data[at]
            at = _step_over(data, at + 1, code)
    except _DamageError as error:
        return f"{error}, at byte {at}"
    return "" if code == _STOP and at == len(data) else _CUT


def _step_over(data: bytes, at: int, code: int) -> int:
    """Return the start of the instruction after the one with this code and arguments."""
    if code not in _ARGUMENTS:
        raise _DamageError(f"there is the unknown instruction {code:#x}")
    size, name = _ARGUMENTS[code]
    if size >= 0:
        return at + size
    if size != pickletools.UP_TO_NEWLINE:
        width, signed = _LENGTHS[size]
        length = int.from_bytes(data[at : at + width], "little", signed=signed)
        if length < 0:
            raise _DamageError("there is a negative length")
        return at + width + length
    for _ in range(2 if name.endswith("_pair") else 1):
        at = data.find(b"\n", at) + 1
        if at == 0:
            raise _DamageError(_CUT)
    return at
