"""Random LoRA adapters in PEFT's format, the same numbers on every machine."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tiny_models import F32, Dtype, tiny_weights, write_safetensors

if TYPE_CHECKING:  # scripts/golden runs without the project
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


def tiny_shapes(variant: str, targets: Iterable[str] = ALL) -> dict[str, tuple[int, int]]:
    """Those of a model of tests/tiny_models.py."""
    ends = tuple(f"{target}.weight" for target in targets)
    weights = tiny_weights(variant).items()
    return {
        name.removesuffix(".weight"): (values.shape[0], values.shape[1])
        for name, values in weights
        if name.endswith(ends)
    }


def demo_shapes(targets: Iterable[str] = ALL) -> dict[str, tuple[int, int]]:
    """Those of the demo model."""
    from interlingua.engine.native.load import find_family
    from interlingua.engine.native.weights import open_checkpoint
    from interlingua.hub import resolve

    files = resolve("smollm2-135m-instruct")
    return module_shapes(find_family(files).config_from_gguf(files.config, open_checkpoint(files)), targets)


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


@dataclass(frozen=True)
class Case:
    """An adapter of a tiny model: which modules have matrices, of which rank, and what the configuration says."""

    variant: str
    modules: Callable[[str], bool] = lambda module: True
    rank: int | Callable[[str], int] = 8
    config: dict[str, Any] = field(default_factory=dict)


CASES = {
    "all": Case("mha_untied", config={"lora_alpha": 12}),
    "all_linear": Case("gqa_tied", config={"target_modules": "all-linear"}),
    "attention_padded_heads": Case("narrow_head", lambda module: "self_attn" in module),
    "rank_stabilised": Case(
        "biases", lambda module: module.endswith("q_proj"), 17, {"use_rslora": True, "lora_alpha": 5}
    ),
    "pattern": Case(
        "mqa_three_heads",
        lambda module: ".1.mlp." in module,
        33,
        {"target_modules": r"model\.layers\.1\.mlp\.(gate|up|down)_proj", "lora_alpha": 33},
    ),
    "some_layers": Case(
        "gqa_tied",
        lambda module: ".layers.1." in module and not module.endswith("o_proj"),
        config={
            "target_modules": list(ALL),
            "layers_to_transform": 1,
            "layers_pattern": "layers",
            "exclude_modules": ["o_proj"],
        },
    ),
    "patterns_of_rank_and_alpha": Case(
        "gqa_tied",
        rank=lambda module: (
            40 if "q_proj" in module else 3 if "k_proj" in module else 17 if ".1.mlp.up" in module else 8
        ),
        config={
            "r": 8,
            "lora_alpha": 4,
            "rank_pattern": {"self_attn.q_proj": 40, "k_proj": 3, r"layers\.1\.mlp\.up_proj": 17},
            "alpha_pattern": {"q_proj": 20, r"layers\.0\.mlp\..*": 2.5, "mlp.up_proj": 9},
        },
    ),
}


def write_case(name: str, folder: Path) -> Path:
    """Writes the adapter of `CASES[name]` into `folder`."""
    case = CASES[name]
    shapes = {module: shape for module, shape in tiny_shapes(case.variant).items() if case.modules(module)}
    return write_adapter(folder, adapter_weights(shapes, name, case.rank), **case.config)
