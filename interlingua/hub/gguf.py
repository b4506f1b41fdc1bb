"""A small memory-mapped reader of GGUF files, versions 2 and 3.

Opening walks the metadata once without decoding it: strings and arrays are noted by their place and decoded when asked
for. So a file with two arrays of 50,000 strings opens in some tens of milliseconds, and nothing of the weights is read.

Layout, all little-endian (the GGUF specification in ggml's docs/gguf.md)::

    magic "GGUF" | u32 version | u64 tensors | u64 pairs
    pairs:   string key | u32 type | value          string = u64 length, bytes; array = u32 type, u64 length, items
    tensors: string name | u32 dims | u64 dim[dims], innermost first | u32 ggml type | u64 offset
    padding to `general.alignment` (32 if absent), then the data; a tensor's offset counts from here
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from interlingua.contract.errors import ModelError

MetadataValue = int | float | bool | str | list[str] | npt.NDArray[Any]

_DEFAULT_ALIGNMENT: Final = 32
_HEADER: Final = 24  # bytes before the metadata
_MAX_DIMS: Final = 4  # GGML_MAX_DIMS
_STRING: Final = 8
_ARRAY: Final = 9

# Value type of the format -> little-endian numpy type of its scalars.
_SCALARS: Final[dict[int, np.dtype[Any]]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class GgmlType:
    """How ggml stores one tensor type: every `block` elements of a row take `bytes` bytes."""

    name: str
    block: int
    bytes: int
    dtype: np.dtype[Any] | None = None  # of one element, where the type is plain numbers


GGML_TYPES: Final[dict[int, GgmlType]] = {
    0: GgmlType("F32", 1, 4, np.dtype("<f4")),
    1: GgmlType("F16", 1, 2, np.dtype("<f2")),
    2: GgmlType("Q4_0", 32, 18),
    3: GgmlType("Q4_1", 32, 20),
    6: GgmlType("Q5_0", 32, 22),
    7: GgmlType("Q5_1", 32, 24),
    8: GgmlType("Q8_0", 32, 34),
    10: GgmlType("Q2_K", 256, 84),
    11: GgmlType("Q3_K", 256, 110),
    12: GgmlType("Q4_K", 256, 144),
    13: GgmlType("Q5_K", 256, 176),
    14: GgmlType("Q6_K", 256, 210),
    15: GgmlType("Q8_K", 256, 292),
    16: GgmlType("IQ2_XXS", 256, 66),
    17: GgmlType("IQ2_XS", 256, 74),
    18: GgmlType("IQ3_XXS", 256, 98),
    19: GgmlType("IQ1_S", 256, 50),
    20: GgmlType("IQ4_NL", 32, 18),
    21: GgmlType("IQ3_S", 256, 110),
    22: GgmlType("IQ2_S", 256, 82),
    23: GgmlType("IQ4_XS", 256, 136),
    24: GgmlType("I8", 1, 1, np.dtype("i1")),
    25: GgmlType("I16", 1, 2, np.dtype("<i2")),
    26: GgmlType("I32", 1, 4, np.dtype("<i4")),
    27: GgmlType("I64", 1, 8, np.dtype("<i8")),
    28: GgmlType("F64", 1, 8, np.dtype("<f8")),
    29: GgmlType("IQ1_M", 256, 56),
    30: GgmlType("BF16", 1, 2, np.dtype("<u2")),
    34: GgmlType("TQ1_0", 256, 54),
    35: GgmlType("TQ2_0", 256, 66),
    39: GgmlType("MXFP4", 32, 17),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of the file.

    `shape` is in numpy's order: rows first, the contiguous dimension last (the file lists it the other way round).
    `data` is a read-only view into the mapping, nothing is copied: for plain types an array of `shape` (BF16 as its
    uint16 bits), for block types uint8 of `shape[:-1] + (bytes of one row,)`.
    """

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    offset: int  # bytes from the beginning of the file
    nbytes: int
    data: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value lies: `start` is its first byte (of an array: of its first item)."""

    kind: int  # value type; of an array: of its items
    start: int
    count: int | None = None  # None: not an array


class GgufFile:
    """A GGUF file, open for reading. The mapping lives as long as this object or any view taken from it.

    Raises ModelError, naming the file and what is wrong, if the file cannot be opened, is no GGUF, is cut short, or
    contradicts itself. The place of every value and tensor is checked here, so later reads stay inside the file.
    """

    def __init__(self, path: Path | str) -> None:
        self.path: Final = Path(path)
        try:
            with self.path.open("rb") as file:
                self._map: Final = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ModelError(f"{self.path}: the file is empty") from None
        except OSError as error:
            raise ModelError(f"{self.path}: cannot be read ({error.strerror})") from None
        self._size: Final = len(self._map)

        if self._map[:4] != b"GGUF":
            self._fail("not a GGUF file (it does not begin with GGUF)")
        self.version: Final = self._unpack("<I", 4)
        if self.version not in (2, 3):
            swapped = int.from_bytes(self.version.to_bytes(4, "little"), "big")
            kind = "big-endian file" if swapped in (2, 3) else f"version {self.version}"
            self._fail(f"{kind} of GGUF is not supported; versions 2 and 3, little-endian, are")
        tensor_count = self._unpack("<Q", 8)
        pair_count = self._unpack("<Q", 16)

        places, position = self._walk_metadata(_HEADER, pair_count)
        self._metadata_end: Final = position
        self.metadata: Final[Mapping[str, MetadataValue]] = _Metadata(self, places)
        self.tensors: Final[Mapping[str, GgufTensor]] = self._read_tensors(position, tensor_count)

    @property
    def architecture(self) -> str:
        """`general.architecture`, such as "llama". Raises ModelError if the file does not say."""
        value = self.metadata.get("general.architecture")
        if not isinstance(value, str):
            self._fail("general.architecture is missing")
        return value

    def metadata_bytes(self) -> bytes:
        """The metadata as it stands in the file, to recognise it by."""
        return self._map[_HEADER : self._metadata_end]

    def drop_pages(self) -> None:
        """Gives the resident pages of the mapping back to the system; a later read fetches them again."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def _fail(self, problem: str) -> NoReturn:
        raise ModelError(f"{self.path}: {problem}")

    def _unpack(self, form: str, position: int) -> int:
        try:
            value: int = struct.unpack_from(form, self._map, position)[0]
        except (struct.error, OverflowError):
            self._fail(f"the file is cut short or corrupt: its header goes on past its end ({self._size} bytes)")
        return value

    def _read_string(self, position: int, what: str) -> tuple[str, int]:
        """The string at `position` and the position after it."""
        start = position + 8
        end = start + self._unpack("<Q", position)
        self._inside(end, what)
        try:
            return self._map[start:end].decode(), end
        except UnicodeDecodeError:
            self._fail(f"{what} is not valid UTF-8")

    def _inside(self, end: int, what: str) -> None:
        if end > self._size:
            self._fail(f"the file is cut short or corrupt: {what} would end at byte {end} of {self._size}")

    def _walk_metadata(self, position: int, count: int) -> tuple[dict[str, _Place], int]:
        places: dict[str, _Place] = {}
        for index in range(count):
            key, position = self._read_string(position, f"key {index} of the metadata")
            if key in places:
                self._fail(f"metadata key {key} stands twice")
            kind = self._unpack("<I", position)
            position += 4
            if kind != _ARRAY:
                places[key] = _Place(kind, position)
                position = self._skip(kind, 1, position, key)
                continue
            kind = self._unpack("<I", position)
            length = self._unpack("<Q", position + 4)
            position += 12
            places[key] = _Place(kind, position, length)
            position = self._skip(kind, length, position, key)
        return places, position

    def _skip(self, kind: int, count: int, position: int, key: str) -> int:
        """The position after `count` values of one type. Strings have to be walked: each length leads to the next."""
        dtype = _SCALARS.get(kind)
        if dtype is not None:
            position += count * dtype.itemsize
        elif kind == _STRING:
            self._inside(position + 8 * count, key)
            length_at = struct.Struct("<Q").unpack_from
            data = self._map
            try:
                for _ in range(count):
                    position += 8 + length_at(data, position)[0]
            except (struct.error, OverflowError):
                self._inside(max(position, self._size + 1), key)
        else:
            self._fail(f"metadata key {key} has value type {kind}, which is unknown or an array of arrays")
        self._inside(position, key)
        return position

    def _decode(self, key: str, place: _Place) -> MetadataValue:
        if place.kind == _STRING:
            if place.count is None:
                return self._read_string(place.start, key)[0]
            return self._decode_strings(key, place)
        dtype = _SCALARS[place.kind]
        array = np.frombuffer(self._map, dtype, 1 if place.count is None else place.count, place.start)
        if place.count is not None:
            return array
        value: int | float | bool = array[0].item()
        return value

    def _decode_strings(self, key: str, place: _Place) -> list[str]:
        length_at = struct.Struct("<Q").unpack_from
        data = self._map
        position = place.start
        result: list[str] = []
        append = result.append
        try:
            for _ in range(place.count or 0):
                start = position + 8
                position = start + length_at(data, position)[0]
                append(data[start:position].decode())
        except UnicodeDecodeError:
            self._fail(f"{key}[{len(result)}] is not valid UTF-8")
        return result

    def _read_tensors(self, position: int, count: int) -> dict[str, GgufTensor]:
        headers: list[tuple[str, tuple[int, ...], GgmlType, int]] = []
        for index in range(count):
            name, position = self._read_string(position, f"the name of tensor {index}")
            dims = self._unpack("<I", position)
            if dims > _MAX_DIMS:
                self._fail(f"tensor {name} has {dims} dimensions; at most {_MAX_DIMS} are possible")
            shape = tuple(self._unpack("<Q", position + 4 + 8 * dim) for dim in reversed(range(dims)))
            position += 4 + 8 * dims
            type_id = self._unpack("<I", position)
            kind = GGML_TYPES.get(type_id)
            if kind is None:
                self._fail(f"tensor {name} has ggml type {type_id}, which is not known")
            headers.append((name, shape, kind, self._unpack("<Q", position + 4)))
            position += 12

        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            self._fail(f"general.alignment is {alignment}; a power of two from 8 is expected")
        base = (position + alignment - 1) // alignment * alignment

        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in headers:
            if name in tensors:
                self._fail(f"tensor {name} stands twice")
            if offset % alignment:
                self._fail(f"tensor {name} begins at {offset}, which is not aligned to {alignment}")
            tensors[name] = self._view(name, shape, kind, base + offset)
        return tensors

    def _view(self, name: str, shape: tuple[int, ...], kind: GgmlType, offset: int) -> GgufTensor:
        row = shape[-1] if shape else 1
        if row % kind.block:
            self._fail(f"tensor {name}: rows of {row} elements cannot hold {kind.name} blocks of {kind.block}")
        row_bytes = row // kind.block * kind.bytes
        nbytes = math.prod(shape[:-1]) * row_bytes
        self._inside(offset + nbytes, f"tensor {name}")
        if kind.dtype is not None:
            data = np.frombuffer(self._map, kind.dtype, nbytes // kind.bytes, offset).reshape(shape)
        else:
            data = np.frombuffer(self._map, np.uint8, nbytes, offset).reshape((*shape[:-1], row_bytes))
        return GgufTensor(name, shape, kind, offset, nbytes, data)


class _Metadata(Mapping[str, MetadataValue]):
    """The pairs of a file, in its order. A value is decoded on first access and kept; numeric arrays are views."""

    def __init__(self, file: GgufFile, places: dict[str, _Place]) -> None:
        self._file = file
        self._places = places
        self._decoded: dict[str, MetadataValue] = {}

    def __getitem__(self, key: str) -> MetadataValue:
        if key not in self._decoded:
            self._decoded[key] = self._file._decode(key, self._places[key])
        return self._decoded[key]

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
