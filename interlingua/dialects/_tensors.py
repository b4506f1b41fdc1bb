"""Tensors of the KServe v2 protocol: checked shapes, and data as JSON or as bytes, both ways.

Of the protocol's datatypes a text model needs three: `BYTES` (text), `BOOL` and `UINT32` (token ids). Binary data is
little-endian and row by row; each element of `BYTES` begins with its length as four bytes.
"""

from __future__ import annotations

import array
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from interlingua.contract.errors import ValidationError
from interlingua.contract.words import counted
from interlingua.dialects._bounds import MAX_IDS
from interlingua.dialects._json import show
from interlingua.dialects._rules import UINT32_MAX

BYTES, BOOL, UINT32 = "BYTES", "BOOL", "UINT32"
_WIDTHS = {BOOL: 1, UINT32: 4}  # bytes of an element
_LENGTH = struct.Struct("<I")
MAX_NAME = 256  # characters
_WORDS = {BYTES: "a string", BOOL: "true or false", UINT32: f"an integer in 0..{UINT32_MAX}"}

Values = Sequence[str] | Sequence[bool] | Sequence[int]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor whose shape and data agree. `values` are flat: str for BYTES, bool for BOOL, int for UINT32.

    `place` is where an input stood in its request, for errors (`inputs[0]`).
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Values
    place: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_json(cls, head: TensorHead, data: object) -> Tensor:
        """Raises ValidationError unless `data` is a list, flat or nested as the shape says, of the right elements."""
        if not isinstance(data, list):
            raise ValidationError(f"{head.place}.data", f"must be an array, got {show(data)}")
        values = _flatten(data, head)
        for at, value in enumerate(values):
            if not _is(head.datatype, value):
                raise ValidationError(f"{head.place}.data[{at}]", f"must be {_WORDS[head.datatype]}, got {show(value)}")
        return cls(head.name, head.datatype, head.shape, values, head.place, head.parameters)

    @classmethod
    def of_binary(cls, head: TensorHead, data: bytes | memoryview) -> Tensor:
        """Raises ValidationError unless `data` has exactly the bytes that shape and datatype ask for."""
        values = _read(head, data)
        return cls(head.name, head.datatype, head.shape, values, head.place, head.parameters)

    def binary(self) -> bytes:
        if self.datatype == BYTES:
            pieces = [str(value).encode() for value in self.values]
            return b"".join(_LENGTH.pack(len(piece)) + piece for piece in pieces)
        if self.datatype == BOOL:
            return bytes(self.values)  # type: ignore[arg-type]
        return _uint32(self.values).tobytes()  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class TensorHead:
    """What an input says of itself before its data. `shape` holds at least one element; `datatype` is one of three."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    place: str
    parameters: Mapping[str, Any]

    @classmethod
    def read(
        cls, place: str, name: object, datatype: object, shape: object, parameters: Mapping[str, Any]
    ) -> TensorHead:
        """Checks all but the data. Raises ValidationError."""
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            given = f"{len(name)} characters" if isinstance(name, str) and name else show(name)
            raise ValidationError(f"{place}.name", f"must be a string of 1 to {MAX_NAME} characters, got {given}")
        if not isinstance(datatype, str) or datatype not in _WORDS:
            raise ValidationError(f"{place}.datatype", f"must be one of {', '.join(_WORDS)}, got {show(datatype)}")
        if not isinstance(shape, list | tuple) or not 1 <= len(shape) <= 2:
            raise ValidationError(f"{place}.shape", f"must be an array of one or two integers, got {show(shape)}")
        for size in shape:
            if type(size) is not int or not 1 <= size <= MAX_IDS:
                raise ValidationError(f"{place}.shape", f"must hold integers in 1..{MAX_IDS}, got {show(size)}")
        if len(shape) == 2 and shape[0] != 1:
            raise ValidationError(f"{place}.shape", f"must be [n] or [1, n]: batches are not taken, got {list(shape)}")
        for key in parameters:
            if key.startswith("shared_memory_"):
                raise ValidationError(f"{place}.parameters.{key}", "is not accepted: shared memory is not supported")
        return cls(name, datatype, tuple(shape), place, parameters)

    @property
    def elements(self) -> int:
        return prod(self.shape)


def single(tensor: Tensor, datatype: str) -> Any:
    """The only element of a tensor of this datatype. Raises ValidationError."""
    check_datatype(tensor, datatype)
    if len(tensor.values) != 1:
        shape = list(tensor.shape)
        raise ValidationError(f"{tensor.place}.shape", f"must be [1] or [1, 1] for `{tensor.name}`, got {shape}")
    return tensor.values[0]


def check_datatype(tensor: Tensor, datatype: str) -> None:
    if tensor.datatype != datatype:
        problem = f"must be {datatype} for `{tensor.name}`, got {tensor.datatype}"
        raise ValidationError(f"{tensor.place}.datatype", problem)


def _is(datatype: str, value: object) -> bool:
    if datatype == BYTES:
        return isinstance(value, str)
    if datatype == BOOL:
        return value is True or value is False
    return type(value) is int and 0 <= value <= UINT32_MAX


def _flatten(data: list[Any], head: TensorHead) -> list[Any]:
    values = data
    if len(head.shape) == 2 and len(data) == 1 and isinstance(data[0], list):
        values = data[0]
    if len(values) != head.elements:
        problem = f"must hold as many elements as its shape, {head.elements}, got {len(values)}"
        raise ValidationError(f"{head.place}.data", problem)
    return values


def _read(head: TensorHead, data: bytes | memoryview) -> Values:
    where = f"{head.place}.data"
    if head.datatype == BYTES:
        return _strings(head, bytes(data), where)
    size = head.elements * _WIDTHS[head.datatype]
    if len(data) != size:
        raise ValidationError(where, f"must have {counted(size, 'byte')} for its shape and datatype, got {len(data)}")
    if head.datatype == UINT32:
        return _uint32_from(data)
    for at, value in enumerate(bytes(data)):
        if value > 1:
            raise ValidationError(f"{where}[{at}]", f"must be a byte of 0 or 1, got {value}")
    return [value == 1 for value in bytes(data)]


def _strings(head: TensorHead, data: bytes, where: str) -> list[str]:
    values: list[str] = []
    at = 0
    while at < len(data):
        start = at + _LENGTH.size
        if start > len(data):
            raise ValidationError(where, f"must hold a length of 4 bytes before each element, got {len(data) - at}")
        (length,) = _LENGTH.unpack_from(data, at)
        at = start + length
        if at > len(data):
            problem = f"must hold its elements whole: one says {counted(length, 'byte')}, {len(data) - start} are left"
            raise ValidationError(where, problem)
        if len(values) == head.elements:
            raise ValidationError(where, f"must hold as many elements as its shape, {head.elements}, got more")
        try:
            values.append(data[start:at].decode())
        except UnicodeDecodeError as problem:
            raise ValidationError(
                f"{where}[{len(values)}]", f"must be valid UTF-8, got an invalid byte at {problem.start}"
            ) from None
    if len(values) != head.elements:
        raise ValidationError(where, f"must hold as many elements as its shape, {head.elements}, got {len(values)}")
    return values


def _uint32(values: Iterable[int]) -> array.array[int]:
    numbers = array.array("I", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _uint32_from(data: bytes | memoryview) -> list[int]:
    numbers = array.array("I")
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
