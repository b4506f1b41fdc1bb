"""Checkpoint tensors: where they come from, and how they become packed weights of the native model."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from interlingua.contract.errors import ModelError
from interlingua.engine.native._native import Model, SourceFormat, WeightKind
from interlingua.hub.files import ModelFiles

Quantize = Literal["auto", "none", "int8", "int4"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

_BLOCK_FORMATS = {"Q4_0": SourceFormat.Q4_0, "Q4_1": SourceFormat.Q4_1, "Q8_0": SourceFormat.Q8_0}
_KEPT = {"Q4_0": WeightKind.INT4, "Q4_1": WeightKind.INT4, "Q8_0": WeightKind.INT8}
_PLAIN = {"F32": SourceFormat.F32, "F16": SourceFormat.F16, "BF16": SourceFormat.BF16}
_CHUNK_VALUES = 1 << 24  # values widened at once while packing


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a checkpoint. `data` is a view of the file: plain numbers, or bytes of ggml blocks by row."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # ggml's names: F32, F16, BF16, Q4_1, Q6_K, ...
    data: npt.NDArray[Any]


class Checkpoint(Protocol):
    """Reads tensors by their name in the file. Raises ModelError when one is missing."""

    def get(self, name: str) -> Tensor: ...

    def has(self, name: str) -> bool: ...

    def drop_pages(self) -> None:
        """Gives the file's pages back to the system; reading again fetches them anew."""
        ...


class GgufCheckpoint:
    def __init__(self, files: ModelFiles) -> None:
        assert files.gguf is not None
        if len(files.paths) > 1:
            raise ModelError(f"{files.paths[0]}: a GGUF split over several files cannot be served; join it first")
        self._file = files.gguf

    def get(self, name: str) -> Tensor:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            raise ModelError(f"{self._file.path}: tensor {name} is missing")
        return Tensor(name, tensor.shape, tensor.type.name, tensor.data)

    def has(self, name: str) -> bool:
        return name in self._file.tensors

    def drop_pages(self) -> None:
        self._file.drop_pages()


_SAFETENSORS_TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def safetensors_in(path: Path, data: bytes | mmap.mmap) -> dict[str, Tensor]:
    """The tensors of a safetensors file (8-byte length, JSON header, numbers) as views of `data`, its content.

    Raises:
        ModelError: truncated, corrupt, or a dtype that is not supported. `path` is for the message.
    """
    import orjson

    start = 8 + int.from_bytes(data[:8], "little")
    try:
        if start > len(data):
            raise ValueError
        header = orjson.loads(data[8:start])
        entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
        return {name: _tensor(path, data, start, name, entry) for name, entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ModelError(f"{path}: not a whole safetensors file (truncated or corrupt header)") from None


def _tensor(path: Path, data: bytes | mmap.mmap, start: int, name: str, entry: Mapping[str, Any]) -> Tensor:
    dtype = _SAFETENSORS_TYPES.get(entry["dtype"])
    if dtype is None:
        raise ModelError(
            f"{path}: tensor {name} has dtype {entry['dtype']}; supported: {', '.join(_SAFETENSORS_TYPES)}"
        )
    shape = tuple(int(n) for n in entry["shape"])
    begin, end = entry["data_offsets"]
    count = int(np.prod(shape, dtype=np.int64))
    if end - begin != count * dtype.itemsize or start + end > len(data):
        raise ModelError(f"{path}: tensor {name} reaches past the end of the file (truncated?)")
    values = np.frombuffer(data, dtype, count, start + begin).reshape(shape)
    return Tensor(name, shape, entry["dtype"], values)


class SafetensorsCheckpoint:
    """Maps the files itself: the library's numpy interface knows no bfloat16."""

    def __init__(self, files: ModelFiles) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._maps: list[mmap.mmap] = []
        for path in files.paths:
            try:
                with path.open("rb") as file:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise ModelError(f"{path}: cannot be read ({error})") from None
            self._tensors |= safetensors_in(path, mapped)
            self._maps.append(mapped)

    def get(self, name: str) -> Tensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ModelError(f"tensor {name} is missing from the checkpoint")
        return tensor

    def has(self, name: str) -> bool:
        return name in self._tensors

    def drop_pages(self) -> None:
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    return GgufCheckpoint(files) if files.kind == "gguf" else SafetensorsCheckpoint(files)


def widen(tensor: Tensor, first: int = 0, last: int | None = None) -> F32:
    """Rows [first, last) of a tensor as float32 [rows, columns] (or [n] for a vector)."""
    rows = tensor.data[first:last]
    if tensor.dtype == "F32":
        return np.ascontiguousarray(rows, np.float32)
    if tensor.dtype == "F16":
        return rows.astype(np.float32)
    if tensor.dtype == "BF16":
        return (rows.astype(np.uint32) << 16).view(np.float32)
    from gguf import GGMLQuantizationType  # block formats are widened by their own reference code
    from gguf.quants import dequantize

    return np.asarray(dequantize(rows, GGMLQuantizationType[tensor.dtype]), np.float32)


@dataclass(frozen=True, slots=True)
class Placement:
    """A checkpoint tensor and the outputs of a packed weight that its rows become.

    `columns` (optional) moves inputs: column c of the tensor is input `columns[c]` of the weight. Only widened
    weights can have it.
    """

    tensor: Tensor
    rows: I32
    columns: I32 | None = None


class WeightLoader:
    """Packs checkpoint tensors into a native model.

    Args:
        quantize: "auto" keeps Q4_0, Q4_1 and Q8_0 as they are and widens all else to bf16; "none" widens all;
            "int8" and "int4" requantise everything in groups of 32.
    """

    def __init__(self, model: Model, quantize: Quantize, progress: Callable[[int], None] | None = None) -> None:
        self._model = model
        self._quantize = quantize
        self._progress = progress

    def kind_of(self, tensors: Sequence[Tensor], columns_move: bool = False) -> WeightKind:
        """The form that one packed weight made of these tensors takes: one kind for all its rows."""
        if self._quantize == "int8":
            return WeightKind.INT8
        if self._quantize == "int4":
            return WeightKind.INT4
        kinds = {_KEPT.get(tensor.dtype, WeightKind.BF16) for tensor in tensors}
        if self._quantize == "none" or columns_move or len(kinds) > 1:
            return WeightKind.BF16
        return kinds.pop()

    def pack(self, kind: WeightKind, outputs: int, inputs: int, placements: Sequence[Placement]) -> int:
        """A packed weight [outputs, inputs]; rows that no placement fills stay zero. Returns its handle."""
        weight = self._model.add_weight(kind, outputs, inputs)
        for placement in placements:
            self._fill(weight, kind, inputs, placement)
            if self._progress is not None:
                self._progress(placement.tensor.data.nbytes)
        return weight

    def _fill(self, weight: int, kind: WeightKind, inputs: int, placement: Placement) -> None:
        tensor, rows, columns = placement.tensor, placement.rows, placement.columns
        if self._quantize == "auto" and tensor.dtype in _KEPT and kind == _KEPT[tensor.dtype] and columns is None:
            self._model.fill_weight(weight, _BLOCK_FORMATS[tensor.dtype], _bytes(tensor.data), rows)
            return
        if tensor.dtype in _PLAIN and columns is None:
            self._model.fill_weight(weight, _PLAIN[tensor.dtype], _bytes(tensor.data), rows)
            return
        step = max(1, _CHUNK_VALUES // max(inputs, 1))
        for first in range(0, len(rows), step):
            values = widen(tensor, first, first + step)
            if columns is not None:
                moved = np.zeros((len(values), inputs), np.float32)
                moved[:, columns] = values
                values = moved
            self._model.fill_weight(weight, SourceFormat.F32, _bytes(values), rows[first : first + step])

    def values(self, values: F32) -> int:
        """A float32 vector (a norm's weight, a fused bias, a table). Returns its handle."""
        return self._model.add_vector(values)


def vector(checkpoint: Checkpoint, name: str, size: int) -> F32:
    """A vector of the checkpoint as float32 [size]. Raises ModelError if it has another shape, or is missing."""
    tensor = checkpoint.get(name)
    if tensor.shape != (size,):
        raise ModelError(f"tensor {name} has shape {tensor.shape}; the configuration says {(size,)}")
    return widen(tensor)


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
