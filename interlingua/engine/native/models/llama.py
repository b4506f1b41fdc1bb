"""The llama family: Llama 2 and 3, SmolLM, Mistral and what shares their layer.

x += o(attention(rope(q, k, v of norm(x)))); x += down(silu(gate(norm(x))) * up(norm(x)))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from interlingua.contract.errors import ModelError
from interlingua.engine.native._native import Model
from interlingua.engine.native.config import ModelConfig, RopeConfig, reading, rotary_tables
from interlingua.engine.native.ops import Built, Linear, Part, Program, interleave
from interlingua.engine.native.weights import Checkpoint, Placement, Tensor, WeightLoader, vector

I32 = npt.NDArray[np.int32]

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")  # config.json
GGUF_ARCHITECTURES = ("llama",)


@reading("config.json")
def config_from_json(config: Mapping[str, Any]) -> ModelConfig:
    """From config.json. Raises ModelError for what the family's layer here does not do."""
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"hidden_act {activation!r} is not supported; supported: silu")
    parameters = config.get("rope_parameters") or {}
    return ModelConfig(
        architecture=str(config["architectures"][0]),
        hidden=hidden,
        intermediate=int(config["intermediate_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        vocab=int(config["vocab_size"]),
        context=int(config["max_position_embeddings"]),
        norm_eps=float(config["rms_norm_eps"]),
        rope=RopeConfig(
            theta=float(parameters.get("rope_theta") or config.get("rope_theta") or 10000.0),
            scaling=dict(parameters or config.get("rope_scaling") or {}),
        ),
        sliding_window=int(config.get("sliding_window") or 0),
    )


@reading("GGUF metadata")
def config_from_gguf(metadata: Mapping[str, Any], checkpoint: Checkpoint) -> ModelConfig:
    """From GGUF metadata (keys of ggml's gguf specification)."""

    def get(name: str, default: Any = None) -> Any:
        value = metadata.get(f"llama.{name}", default)
        if value is None:
            raise ModelError(f"GGUF metadata lacks llama.{name}")
        return value

    heads, hidden = int(get("attention.head_count")), int(get("embedding_length"))
    head_dim = int(get("attention.key_length", hidden // heads))
    if int(get("rope.dimension_count", head_dim)) != head_dim:
        raise ModelError("a rotary part smaller than the head is not supported")
    kind = str(get("rope.scaling.type", "none"))
    scaling: dict[str, Any] = {}
    if kind != "none":
        scaling = {"rope_type": kind, "factor": get("rope.scaling.factor")}
        original = get("rope.scaling.original_context_length", 0)
        if original:
            scaling["original_max_position_embeddings"] = original
    divisors = vector(checkpoint, "rope_freqs.weight", head_dim // 2) if checkpoint.has("rope_freqs.weight") else None
    return ModelConfig(
        architecture="llama",
        hidden=hidden,
        intermediate=int(get("feed_forward_length")),
        layers=int(get("block_count")),
        heads=heads,
        kv_heads=int(get("attention.head_count_kv", heads)),
        head_dim=head_dim,
        vocab=checkpoint.get("token_embd.weight").shape[0],
        context=int(get("context_length")),
        norm_eps=float(get("attention.layer_norm_rms_epsilon")),
        rope=RopeConfig(theta=float(get("rope.freq_base", 10000.0)), scaling=scaling, divisors=divisors),
        sliding_window=int(get("attention.sliding_window", 0)),
    )


@dataclass(frozen=True, slots=True)
class Names:
    """Where a layout of checkpoints keeps its tensors; `{}` stands for the layer."""

    embedding: str
    final_norm: str
    head: str
    attention_norm: str
    mlp_norm: str
    q: str
    k: str
    v: str
    o: str
    gate: str
    up: str
    down: str
    interleaved_rope: bool  # q and k rows hold rotary pairs side by side (GGUF) instead of half a head apart


SAFETENSORS = Names(
    embedding="model.embed_tokens",
    final_norm="model.norm",
    head="lm_head",
    attention_norm="model.layers.{}.input_layernorm",
    mlp_norm="model.layers.{}.post_attention_layernorm",
    q="model.layers.{}.self_attn.q_proj",
    k="model.layers.{}.self_attn.k_proj",
    v="model.layers.{}.self_attn.v_proj",
    o="model.layers.{}.self_attn.o_proj",
    gate="model.layers.{}.mlp.gate_proj",
    up="model.layers.{}.mlp.up_proj",
    down="model.layers.{}.mlp.down_proj",
    interleaved_rope=False,
)
GGUF = Names(
    embedding="token_embd",
    final_norm="output_norm",
    head="output",
    attention_norm="blk.{}.attn_norm",
    mlp_norm="blk.{}.ffn_norm",
    q="blk.{}.attn_q",
    k="blk.{}.attn_k",
    v="blk.{}.attn_v",
    o="blk.{}.attn_output",
    gate="blk.{}.ffn_gate",
    up="blk.{}.ffn_up",
    down="blk.{}.ffn_down",
    interleaved_rope=True,
)


class Weights:
    """Reads one layout of checkpoint into packed, fused weights."""

    def __init__(self, config: ModelConfig, names: Names, checkpoint: Checkpoint, loader: WeightLoader) -> None:
        self.config = config
        self.names = names
        self._checkpoint = checkpoint
        self._loader = loader

    def norm(self, name: str) -> int:
        return self._loader.values(vector(self._checkpoint, name + ".weight", self.config.hidden))

    def embedding(self) -> Linear:
        return self._plain(self.names.embedding, self.config.vocab, self.config.hidden)

    def head(self, embedding: Linear) -> Linear:
        """The output head; a checkpoint without one shares the embedding."""
        if not self._checkpoint.has(self.names.head + ".weight"):
            return embedding
        return self._plain(self.names.head, self.config.vocab, self.config.hidden)

    def qkv(self, layer: int) -> Linear:
        c = self.config
        q_rows, kv_rows = c.heads * c.padded_head, c.kv_heads * c.padded_head
        parts = [
            (self.names.q, self._head_rows(c.heads, rotary=True)),
            (self.names.k, self._head_rows(c.kv_heads, rotary=True) + np.int32(q_rows)),
            (self.names.v, self._head_rows(c.kv_heads, rotary=False) + np.int32(q_rows + kv_rows)),
        ]
        # Adapters come in Hugging Face's layout, whatever the checkpoint's.
        modules = [
            Part(SAFETENSORS.q, self._head_rows(c.heads, rotary=False), c.hidden),
            Part(SAFETENSORS.k, self._head_rows(c.kv_heads, rotary=False) + np.int32(q_rows), c.hidden),
            Part(SAFETENSORS.v, parts[2][1], c.hidden),
        ]
        return self._fused(layer, parts, modules, q_rows + 2 * kv_rows, c.hidden)

    def o(self, layer: int) -> Linear:
        c = self.config
        columns = None if c.padded_head == c.head_dim else self._head_rows(c.heads, rotary=False)
        rows = np.arange(c.hidden, dtype=np.int32)
        module = Part(SAFETENSORS.o, rows, c.heads * c.head_dim, columns)
        return self._fused(layer, [(self.names.o, rows)], [module], c.hidden, c.heads * c.padded_head, columns)

    def gate_up(self, layer: int) -> Linear:
        inner, hidden = self.config.intermediate, self.config.hidden
        gate, up = interleave(inner, 0), interleave(inner, 16)
        modules = [Part(SAFETENSORS.gate, gate, hidden), Part(SAFETENSORS.up, up, hidden)]
        return self._fused(layer, [(self.names.gate, gate), (self.names.up, up)], modules, 2 * inner, hidden)

    def down(self, layer: int) -> Linear:
        hidden, inner = self.config.hidden, self.config.intermediate
        rows = np.arange(hidden, dtype=np.int32)
        return self._fused(layer, [(self.names.down, rows)], [Part(SAFETENSORS.down, rows, inner)], hidden, inner)

    def _head_rows(self, heads: int, rotary: bool) -> I32:
        """For each checkpoint row of `heads` heads the row in the engine's order and padding."""
        c = self.config
        within = np.arange(c.head_dim, dtype=np.int32)
        if rotary and self.names.interleaved_rope:
            within = within // 2 + within % 2 * (c.head_dim // 2)
        starts = np.arange(heads, dtype=np.int32)[:, None] * c.padded_head
        return np.asarray(starts + within[None, :], np.int32).reshape(-1)

    def _plain(self, name: str, outputs: int, inputs: int) -> Linear:
        tensor = self._tensor(name, outputs, inputs)
        kind = self._loader.kind_of([tensor])
        rows = np.arange(outputs, dtype=np.int32)
        return Linear(self._loader.pack(kind, outputs, inputs, [Placement(tensor, rows)]), kind, outputs, inputs)

    def _tensor(self, name: str, outputs: int, inputs: int) -> Tensor:
        tensor = self._checkpoint.get(name + ".weight")
        if tensor.shape != (outputs, inputs):
            raise ModelError(
                f"tensor {tensor.name} has shape {tensor.shape}; the configuration says {(outputs, inputs)}"
            )
        return tensor

    def _fused(
        self,
        layer: int,
        parts: list[tuple[str, I32]],
        modules: list[Part],
        outputs: int,
        inputs: int,
        columns: I32 | None = None,
    ) -> Linear:
        """One weight of several checkpoint tensors. `modules` are the same parts as adapters know them."""
        names = [name.format(layer) for name, _ in parts]
        width = inputs if columns is None else len(columns)
        tensors = [self._tensor(name, len(rows), width) for name, (_, rows) in zip(names, parts, strict=True)]
        kind = self._loader.kind_of(tensors, columns is not None)
        places = [Placement(tensor, rows, columns) for tensor, (_, rows) in zip(tensors, parts, strict=True)]
        weight = self._loader.pack(kind, outputs, inputs, places)
        bias = self._bias(names, [rows for _, rows in parts], outputs)
        placed = tuple(replace(module, module=module.module.format(layer)) for module in modules)
        return Linear(weight, kind, outputs, inputs, bias, placed)

    def _bias(self, names: list[str], places: list[I32], outputs: int) -> int:
        """The fused bias, zero for parts that have none; -1 if no part has one."""
        biased = [(name + ".bias", rows) for name, rows in zip(names, places, strict=True)]
        biased = [(name, rows) for name, rows in biased if self._checkpoint.has(name)]
        if not biased:
            return -1
        values = np.zeros(outputs, np.float32)
        for name, rows in biased:
            values[rows] = vector(self._checkpoint, name, len(rows))
        return self._loader.values(values)


def build(
    model: Model,
    config: ModelConfig,
    checkpoint: Checkpoint,
    loader: WeightLoader,
    positions: int,
    gguf: bool,
) -> Built:
    """Packs the weights and emits the program for contexts up to `positions`."""
    if config.hidden % 32 or config.intermediate % 32 or config.padded_head > 256 or config.heads % config.kv_heads:
        raise ModelError(
            f"hidden size {config.hidden} and MLP size {config.intermediate} must be multiples of 32, heads at most "
            f"256 wide and shared evenly"
        )
    weights = Weights(config, GGUF if gguf else SAFETENSORS, checkpoint, loader)
    program = Program(model)
    heads, dim = config.heads, config.padded_head
    tables = rotary_tables(config.rope, config.head_dim, positions, config.context)
    cos, sin = (loader.values(table.reshape(-1)) for table in tables)
    embedding = weights.embedding()
    head = weights.head(embedding)

    x = program.buffer(config.hidden)
    qkv = program.buffer((heads + 2 * config.kv_heads) * dim)
    attended = program.buffer(heads * dim)
    inner = program.buffer(config.intermediate)
    layers = [(weights.qkv(i), weights.o(i), weights.gate_up(i), weights.down(i)) for i in range(config.layers)]
    normed = program.activations(config.hidden, [part for q, _, g, _ in layers for part in (q, g)])
    o_in = program.activations(heads * dim, [o for _, o, _, _ in layers])
    down_in = program.activations(config.intermediate, [d for *_, d in layers])

    program.embed(embedding, x)
    for i, (qkv_layer, o_layer, gate_up, down) in enumerate(layers):
        program.norm(x, weights.norm(weights.names.attention_norm.format(i)), config.norm_eps, normed)
        program.linear(normed, qkv_layer, qkv)
        program.rope_and_store(qkv, i, heads, config.head_dim, cos, sin)
        if i + 1 == config.layers:
            program.narrow(x, qkv)
        program.attention(qkv, i, heads, config.sliding_window, config.head_dim**-0.5, attended)
        program.prepare(attended, o_in)
        program.linear_add(o_in, o_layer, x)
        program.norm(x, weights.norm(weights.names.mlp_norm.format(i)), config.norm_eps, normed)
        program.linear_silu_gate(normed, gate_up, inner)
        program.prepare(inner, down_in)
        program.linear_add(down_in, down, x)
    program.logits(x, weights.norm(weights.names.final_norm), config.norm_eps, head, config.vocab)
    return Built(layers[0][0].kind, program.adaptable)
