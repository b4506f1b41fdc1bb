"""LoRA adapters in PEFT's format: read, checked against the loaded model, and packed for its step.

y += scale * B A x. The scale goes into B before both are rounded to bf16, whatever the base weights' form.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from interlingua.contract.errors import ModelError
from interlingua.contract.request import Adapter
from interlingua.engine.native._native import LoraAdapter, Model
from interlingua.engine.native.memory import available_memory
from interlingua.engine.native.ops import AdaptableLinear, Part
from interlingua.engine.native.weights import F32, Tensor, safetensors_in, widen
from interlingua.engine.peft import WEIGHTS_FILE, LoraConfig, read_config

_PREFIX = "base_model.model."
_TENSOR = re.compile(r"(.+)\.lora_([AB])\.weight")
_HEADER_ROOM = 16 << 20  # bytes of an adapter's file beside its numbers
_LANES = 16
_BF16_MAX = 3.38e38


@dataclass(frozen=True, slots=True, eq=False)
class Lora:
    """A loaded adapter. Sequences that run on it keep it alive after it is unloaded."""

    info: Adapter
    native: LoraAdapter

    @property
    def salt(self) -> bytes:
        """What the prefix cache must tell apart: KV depends on the adapter and on its version."""
        return hashlib.sha256(f"adapter {self.info.version} {self.info.name}".encode()).digest()


def read_adapter(
    folder: Path, model: Model, adaptable: Sequence[AdaptableLinear], max_rank: int
) -> tuple[LoraAdapter, int]:
    """An adapter ready for the steps of `model`, and its highest rank. May run beside the engine's thread.

    Raises:
        ModelError: no PEFT adapter of this model, a truncated or corrupt file, a kind of adapter that is not
            supported, a rank over `max_rank`, values that are not finite, no memory.
    """
    config = read_config(folder, max_rank)
    parts = {part.module: part for linear in adaptable for part in linear.parts}
    ranks = {module: config.rank_of(module) for module in parts if config.changes(module)}  # patterns may be slow: once
    if not ranks:
        raise ModelError(f"{folder}: the configuration targets no linear layer of this model")
    path = folder / WEIGHTS_FILE
    tensors = _matrices(path, _read(path, parts, ranks), parts, ranks, config)
    adapter = LoraAdapter()
    try:
        for linear in adaptable:
            if any(part.module in tensors for part in linear.parts):
                _pack(adapter, model, linear, tensors)
    except MemoryError:
        raise ModelError(f"{folder}: not enough memory for the adapter") from None
    return adapter, config.highest_rank


def _read(path: Path, parts: Mapping[str, Part], ranks: Mapping[str, int]) -> bytes:
    """The file, read as a whole: a mapped file that somebody cuts short would end the process."""
    most = 4 * sum(rank * (parts[module].inputs + len(parts[module].rows)) for module, rank in ranks.items())
    try:
        if not path.is_file():
            raise ModelError(f"{path}: is missing; adapters are read from safetensors alone")
        size = path.stat().st_size
        if size > most + _HEADER_ROOM:
            raise ModelError(f"{path}: has {size} bytes, and an adapter of this rank and model at most {most}")
        if 4 * size > available_memory():  # as float32 and as padded bf16
            raise ModelError(f"{path}: not enough memory for an adapter of {size / 1e6:.0f} MB")
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from None


def _matrices(
    path: Path, data: bytes, parts: Mapping[str, Part], ranks: Mapping[str, int], config: LoraConfig
) -> dict[str, tuple[F32, F32]]:
    """(A [rank, inputs], scale * B [outputs, rank]) by module, complete and of the right shapes."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in safetensors_in(path, data).items():
        match = _TENSOR.fullmatch(name.removeprefix(_PREFIX))
        if match is None or match[1] not in parts:
            raise ModelError(f"{path}: tensor {name} is no LoRA matrix of a linear layer of this model")
        if match[1] not in ranks:
            raise ModelError(f"{path}: tensor {name} belongs to no module that the configuration targets")
        found.setdefault(match[1], {})[match[2]] = tensor
    matrices: dict[str, tuple[F32, F32]] = {}
    for module, rank in ranks.items():
        part, pair = parts[module], found.get(module, {})
        a = _matrix(path, module, "A", pair.get("A"), (rank, part.inputs))
        b = _matrix(path, module, "B", pair.get("B"), (len(part.rows), rank))
        with np.errstate(over="ignore"):
            matrices[module] = a, _finite(path, module, "B", b * np.float32(config.scale_of(module)))
    return matrices


def _matrix(path: Path, module: str, letter: str, tensor: Tensor | None, shape: tuple[int, int]) -> F32:
    name = f"{module}.lora_{letter}.weight"
    if tensor is None:
        raise ModelError(f"{path}: tensor {name} is missing")
    if tensor.shape != shape:
        raise ModelError(f"{path}: tensor {name} has shape {tensor.shape}; model and configuration say {shape}")
    return _finite(path, module, letter, widen(tensor))


def _finite(path: Path, module: str, letter: str, values: F32) -> F32:
    if not (np.abs(values) < _BF16_MAX).all():  # NaN is not below it either
        raise ModelError(f"{path}: {module}.lora_{letter}.weight holds values that are not finite, scale included")
    return values


def _pack(adapter: LoraAdapter, model: Model, linear: AdaptableLinear, matrices: Mapping[str, tuple[F32, F32]]) -> None:
    """Lays A and B out in the packed order of a linear operation; parts without an adapter stay zero."""
    pairs = [matrices.get(part.module) for part in linear.parts]
    ranks = [0 if pair is None else len(pair[0]) for pair in pairs]
    room = -(-max(ranks) // _LANES) * _LANES
    a = np.zeros((len(pairs) * room, linear.inputs), np.float32)
    b = np.zeros((linear.outputs, room), np.float32)
    slices = np.zeros(linear.outputs // _LANES, np.int32)
    for index, (part, pair) in enumerate(zip(linear.parts, pairs, strict=True)):
        slices[part.rows // _LANES] = index
        if pair is not None:
            columns = slice(None) if part.columns is None else part.columns
            a[index * room : index * room + ranks[index], columns] = pair[0]
            b[part.rows, : ranks[index]] = pair[1]
    model.add_lora(adapter, linear.op, ranks, slices.tolist(), a, b)
