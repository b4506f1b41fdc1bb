"""Tiny random models of the llama family, the same numbers on every machine.

`write_tiny_model(name, folder)` writes a Hugging Face folder (config.json, model.safetensors or shards with
their index) for one of `VARIANTS`, each of which exercises one feature of the family. The logits that
transformers computes for them in float32 are in data/golden/tiny_logits.npz; scripts/golden/README.md says
how that file is made and laid out.

Every weight is exact in bfloat16 and in float16, so whatever the folder's dtype, the weights are the same.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Dtype = Literal["float32", "bfloat16", "float16"]
F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

PROMPT_LENGTH = 80
"""Tokens of a variant's golden prompt: longer than its sliding window or original context."""

_GRID = 4096.0
"""Weights are multiples of 1/4096: with bfloat16's 8 significant bits, float16 holds them exactly."""

_SAFETENSORS_DTYPE: dict[Dtype, str] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True)
class TinyModel:
    """One variant: what differs from `_BASE` in config.json, and how its file is stored by default."""

    config: dict[str, Any] = field(default_factory=dict)
    dtype: Dtype = "float32"
    shards: int = 1


_BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "vocab_size": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

# How transformers reads the scaled kinds of rotary embedding, past the original context:
# - linear, llama3 and yarn depend on the configuration alone: the frequencies are the same at every length.
#   Yarn also multiplies cos and sin by attention_factor (by default 0.1 ln(factor) + 1), at every length.
# - dynamic depends on the length so far: a pass over n > max_position_embeddings tokens takes for all of them
#   base * (factor * n / max - (factor - 1)) ** (d / (d - 2)). In one pass over the whole prompt the early
#   tokens are therefore rotated by the last one's base, while token by token with a cache each keeps the base
#   of its own length. Golden logits exist for both.
VARIANTS: dict[str, TinyModel] = {
    "mha_untied": TinyModel({"num_key_value_heads": 4, "intermediate_size": 128, "vocab_size": 128}),
    "gqa_tied": TinyModel({"tie_word_embeddings": True, "rms_norm_eps": 1e-6}),
    "mqa_three_heads": TinyModel({"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 96}),
    "wide_head": TinyModel({"head_dim": 32}),
    "narrow_head": TinyModel({"head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1}),
    "rope_linear": TinyModel({"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "rope_dynamic": TinyModel({"max_position_embeddings": 48, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    "rope_llama3": TinyModel(
        {
            "head_dim": 32,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        }
    ),
    "rope_yarn": TinyModel(
        {
            "head_dim": 32,
            "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32},
        }
    ),
    "rope_yarn_options": TinyModel(  # in the layout that transformers 5 writes: rope_theta inside
        {
            "head_dim": 32,
            "rope_theta": None,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 50000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "attention_factor": 1.25,
                "beta_fast": 4.0,
                "beta_slow": 0.5,
                "truncate": False,
            },
        }
    ),
    "sliding_window": TinyModel(  # a token sees itself and the 23 before it
        {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 24}
    ),
    "biases": TinyModel({"attention_bias": True, "mlp_bias": True}),
    "large_theta": TinyModel({"rope_theta": 1000000.0}),
    "sharded_bf16": TinyModel({"tie_word_embeddings": True, "vocab_size": 128}, dtype="bfloat16", shards=3),
    "fp16": TinyModel({}, dtype="float16"),
}
"""The variants by name."""


def tiny_config(name: str, dtype: Dtype | None = None) -> dict[str, Any]:
    """The variant's config.json, `dtype` overriding the variant's own."""
    variant = VARIANTS[name]
    merged = {**_BASE, **variant.config, "torch_dtype": dtype or variant.dtype}
    return {key: value for key, value in merged.items() if value is not None}


def tiny_prompt(name: str, length: int = PROMPT_LENGTH) -> I32:
    """The variant's fixed random prompt: token ids int32 [length], none of them special."""
    vocabulary = int(tiny_config(name)["vocab_size"])
    drawn = _random_words(f"{name} prompt", length) % np.uint64(vocabulary - 3)
    return drawn.astype(np.int32) + np.int32(3)


def tiny_weights(name: str) -> dict[str, F32]:
    """The variant's weights by their names in the file: float32 [out, in], norms and biases [out]."""
    config = tiny_config(name)
    hidden, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    heads, kv_heads = int(config["num_attention_heads"]), int(config["num_key_value_heads"])
    head = int(config.get("head_dim", hidden // heads))
    weights = {"model.embed_tokens.weight": _embedding(name, config)}
    if not config["tie_word_embeddings"]:
        shape = (int(config["vocab_size"]), hidden)
        weights["lm_head.weight"] = _random(f"{name} lm_head", shape, 1.5 / hidden**0.5)
    weights["model.norm.weight"] = _norm(f"{name} norm", hidden)
    linears = {
        "self_attn.q_proj": (heads * head, hidden, 1.5, "attention_bias"),
        "self_attn.k_proj": (kv_heads * head, hidden, 1.5, "attention_bias"),
        "self_attn.v_proj": (kv_heads * head, hidden, 1.0, "attention_bias"),
        "self_attn.o_proj": (hidden, heads * head, 1.0, "attention_bias"),
        "mlp.gate_proj": (inner, hidden, 1.5, "mlp_bias"),
        "mlp.up_proj": (inner, hidden, 1.0, "mlp_bias"),
        "mlp.down_proj": (hidden, inner, 1.0, "mlp_bias"),
    }
    for layer in range(int(config["num_hidden_layers"])):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}.{norm}.weight"] = _norm(f"{name} {layer} {norm}", hidden)
        for linear, (outputs, inputs, gain, bias) in linears.items():
            key = f"{name} {layer} {linear}"
            weights[f"{prefix}.{linear}.weight"] = _random(key, (outputs, inputs), gain / inputs**0.5)
            if config[bias]:
                weights[f"{prefix}.{linear}.bias"] = _random(f"{key} bias", (outputs,), 0.3)
    return weights


def write_tiny_model(name: str, folder: Path, *, dtype: Dtype | None = None, shards: int | None = None) -> Path:
    """Write variant `name` into `folder` (made if missing) and return it.

    `dtype` and `shards` override how the variant stores its weights, never their values.
    """
    variant = VARIANTS[name]
    stored, pieces = dtype or variant.dtype, shards or variant.shards
    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps(tiny_config(name, stored), indent=2) + "\n"
    (folder / "config.json").write_text(config, encoding="utf-8")
    weights = tiny_weights(name)
    if pieces == 1:
        write_safetensors(folder / "model.safetensors", weights, stored)
        return folder
    names = list(weights)
    where: dict[str, str] = {}
    for piece in range(pieces):
        file = f"model-{piece + 1:05d}-of-{pieces:05d}.safetensors"
        part = {key: weights[key] for key in names[piece::pieces]}
        write_safetensors(folder / file, part, stored)
        where.update(dict.fromkeys(part, file))
    total = sum(array.size for array in weights.values()) * (4 if stored == "float32" else 2)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return folder


def write_safetensors(path: Path, tensors: dict[str, F32], dtype: Dtype) -> None:
    """Write float32 arrays as `dtype`. (safetensors.numpy has no bfloat16, hence the format by hand.)"""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    chunks: list[bytes] = []
    offset = 0
    for key, array in tensors.items():
        data = _to_bytes(array, dtype)
        header[key] = {
            "dtype": _SAFETENSORS_DTYPE[dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        chunks.append(data)
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))


def to_bfloat16(array: F32) -> npt.NDArray[np.uint16]:
    """The bits of each finite value rounded to bfloat16, to nearest, ties to even."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def _to_bytes(array: F32, dtype: Dtype) -> bytes:
    if dtype == "bfloat16":
        return to_bfloat16(array).astype("<u2").tobytes()
    return array.astype("<f2" if dtype == "float16" else "<f4").tobytes()


def _random_words(key: str, count: int) -> npt.NDArray[np.uint64]:
    """`count` raw 64-bit words of a generator seeded by `key`: numpy promises the same on every machine."""
    return np.random.PCG64(zlib.crc32(key.encode())).random_raw(count)


def _random(key: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> F32:
    """Bell-shaped weights (four 16-bit numbers added), rounded so that every dtype holds them exactly."""
    quarters = _random_words(key, int(np.prod(shape))).view(np.uint16).reshape(-1, 4)
    unit = (quarters.astype(np.float64).sum(axis=1) / 65536.0 - 2.0) * 3.0**0.5
    coarse = (np.round((unit * std + mean) * _GRID) / _GRID).astype(np.float32)
    exact = (to_bfloat16(coarse).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return exact.reshape(shape)


def _norm(key: str, size: int) -> F32:
    return _random(key, (size,), 0.2, mean=1.0)


def _embedding(name: str, config: dict[str, Any]) -> F32:
    """A tied embedding is small, since the logits are products with it."""
    shape = (int(config["vocab_size"]), int(config["hidden_size"]))
    return _random(f"{name} embedding", shape, 0.2 if config["tie_word_embeddings"] else 1.0)
