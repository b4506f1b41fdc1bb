"""Emits the flat program of a model: reads like a forward pass, runs once at load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

import numpy as np
import numpy.typing as npt

from interlingua.engine.native._native import Epilogue, Model, WeightKind

Buffer = NewType("Buffer", int)  # float32 [rows, width] in the native model
Activations = NewType("Activations", int)  # inputs of linear layers, quantised or rounded


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A linear layer of the checkpoint inside a packed weight, in the layout of its Hugging Face module."""

    module: str  # model.layers.0.self_attn.q_proj
    rows: npt.NDArray[np.int32]  # [outputs]: which output of the packed weight each one is
    inputs: int
    columns: npt.NDArray[np.int32] | None = None  # [inputs]: the same for its inputs; None = they stay


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A packed weight with what the program must know of it."""

    weight: int
    kind: WeightKind
    outputs: int
    inputs: int
    bias: int = -1
    parts: tuple[Part, ...] = ()  # what adapters may change


@dataclass(frozen=True, slots=True, eq=False)
class AdaptableLinear:
    """A linear operation of the program that adapters may change. Its parts share the inputs."""

    op: int
    outputs: int
    inputs: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """What a family's `build` made."""

    kind: WeightKind  # of the layers
    adaptable: tuple[AdaptableLinear, ...]


class Program:
    """Operations over handles. Every method appends one operation that `Model.step` will run for all rows."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._adaptable: list[AdaptableLinear] = []

    @property
    def adaptable(self) -> tuple[AdaptableLinear, ...]:
        return tuple(self._adaptable)

    def buffer(self, width: int) -> Buffer:
        return Buffer(self._model.add_buffer(width))

    def activations(self, width: int, consumers: Sequence[Linear]) -> Activations:
        """Room for the inputs of `consumers`, in each form (integer, bf16) that one of them needs."""
        bf16 = any(layer.kind == WeightKind.BF16 for layer in consumers)
        integer = any(layer.kind != WeightKind.BF16 for layer in consumers)
        return Activations(self._model.add_activations(width, integer, bf16))

    def embed(self, table: Linear, out: Buffer, scale: float = 1.0) -> None:
        self._model.op_embed(table.weight, out, scale)

    def norm(self, source: Buffer, weight: int, eps: float, out: Activations) -> None:
        """RMSNorm (Zhang & Sennrich 2019) into the form that the next linear layers take."""
        self._model.op_prepare(source, weight, eps, out)

    def prepare(self, source: Buffer, out: Activations) -> None:
        """The same without a norm."""
        self._model.op_prepare(source, -1, 0.0, out)

    def linear(self, source: Activations, layer: Linear, out: Buffer) -> None:
        self._linear(source, layer, out, Epilogue.STORE)

    def linear_add(self, source: Activations, layer: Linear, out: Buffer) -> None:
        """out += layer(source): the residual connection, without a pass of its own."""
        self._linear(source, layer, out, Epilogue.ADD)

    def linear_silu_gate(self, source: Activations, layer: Linear, out: Buffer) -> None:
        """out = silu(gate) * up, where 16-blocks of the layer's outputs alternate gate, up (`interleave`)."""
        self._linear(source, layer, out, Epilogue.SILU_GATE)

    def _linear(self, source: Activations, layer: Linear, out: Buffer, epilogue: Epilogue) -> None:
        op = self._model.op_linear(source, layer.weight, out, epilogue, layer.bias, 0)
        if layer.parts:
            self._adaptable.append(AdaptableLinear(op, -(-layer.outputs // 16) * 16, layer.inputs, layer.parts))

    def rope_and_store(self, qkv: Buffer, layer: int, heads: int, rotary: int, cos: int, sin: int) -> None:
        """Rotates q and k of `qkv` (columns: q heads, k heads, v heads) and writes k and v into the KV pool."""
        self._model.op_rope_store(qkv, layer, heads, rotary, cos, sin)

    def attention(self, qkv: Buffer, layer: int, heads: int, window: int, scale: float, out: Buffer) -> None:
        self._model.op_attention(qkv, out, layer, heads, window, scale)

    def narrow(self, *buffers: Buffer) -> None:
        """Leaves out the rows whose logits nobody wants, which are read again only as keys and values. What follows may
        read these buffers alone."""
        self._model.op_narrow(list(buffers))

    def logits(self, source: Buffer, norm: int, eps: float, head: Linear, vocab: int) -> None:
        """Final norm and head for the rows that want logits, then the choice of tokens."""
        self._model.op_logits(source, norm, eps, head.weight, vocab)


def interleave(rows: int, offset: int) -> npt.NDArray[np.int32]:
    """Output rows of a gate (offset 0) or up (offset 16) matrix in a fused weight whose 16-blocks alternate."""
    index = np.arange(rows, dtype=np.int32)
    return np.asarray(index // 16 * 32 + index % 16 + offset, np.int32)
