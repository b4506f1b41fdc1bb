"""Random LoRA adapters in PEFT's format, the same numbers on every machine."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tiny_models import F32, Dtype, write_safetensors

from interlingua.engine.native.config import ModelConfig

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ATTENTION = ALL[:4]


def module_shapes(config: ModelConfig, targets: Iterable[str] = ALL) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of the linear layers of a llama-like model by Hugging Face's names."""
    heads, kv_heads = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes = {
        "self_attn.q_proj": (heads, config.hidden),
        "self_attn.k_proj": (kv_heads, config.hidden),
        "self_attn.v_proj": (kv_heads, config.hidden),
        "self_attn.o_proj": (config.hidden, heads),
        "mlp.gate_proj": (config.intermediate, config.hidden),
        "mlp.up_proj": (config.intermediate, config.hidden),
        "mlp.down_proj": (config.hidden, config.intermediate),
    }
    wanted = tuple(targets)
    return {
        f"model.layers.{layer}.{name}": shape
        for layer in range(config.layers)
        for name, shape in shapes.items()
        if name.endswith(wanted)
    }


def adapter_weights(
    shapes: Mapping[str, tuple[int, int]],
    key: str = "adapter",
    rank: int | Callable[[str], int] = 8,
    strength: float = 0.3,
) -> dict[str, tuple[F32, F32]]:
    """(A [rank, inputs], B [outputs, rank]) by module. B A x is about `strength` times a row of x."""
    weights: dict[str, tuple[F32, F32]] = {}
    for module, (outputs, inputs) in shapes.items():
        r = rank if isinstance(rank, int) else rank(module)
        draw = np.random.Generator(np.random.PCG64(zlib.crc32(f"{key} {module}".encode())))
        a = draw.standard_normal((r, inputs)) / inputs**0.5
        b = draw.standard_normal((outputs, r)) * strength / r**0.5
        weights[module] = a.astype(np.float32), b.astype(np.float32)
    return weights


def write_adapter(
    folder: Path, weights: Mapping[str, tuple[F32, F32]], dtype: Dtype = "float32", **config: Any
) -> Path:
    """Writes adapter_config.json (PEFT's defaults, then `config`) and adapter_model.safetensors. Returns `folder`.

    By default the scale is 1: `lora_alpha` = `r` = the rank of the first module.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rank = len(next(iter(weights.values()))[0])
    document = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "inference_mode": True,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "lora_dropout": 0.05,
        "modules_to_save": None,
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": {},
        "alpha_pattern": {},
        "target_modules": sorted({module.rpartition(".")[2] for module in weights}),
        "use_dora": False,
        "use_rslora": False,
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    tensors = {
        f"base_model.model.{module}.lora_{letter}.weight": values
        for module, pair in weights.items()
        for letter, values in zip("AB", pair, strict=True)
    }
    write_safetensors(folder / "adapter_model.safetensors", tensors, dtype)
    return folder
