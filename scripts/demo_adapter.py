"""A LoRA adapter of random numbers in PEFT's format: it changes a model's answers, to nothing in particular.

The same numbers on every machine. No training stands behind them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from demo_safetensors import U16, bf16, write_tensors

from interlingua.contract.errors import ModelError
from interlingua.engine.native.load import read_config
from interlingua.hub import resolve

_SEED = 20
_RANK = 4


def write(folder: Path, model: str, strength: float) -> None:
    """Writes the folder: queries and values of every layer. B A x is about `strength` times a row of x."""
    files = resolve(model)
    config = read_config(files)
    outputs = {"q_proj": config.heads * config.head_dim, "v_proj": config.kv_heads * config.head_dim}
    draw = np.random.Generator(np.random.PCG64(_SEED))
    tensors: dict[str, U16] = {}
    for layer in range(config.layers):
        for name, rows in outputs.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            a = draw.standard_normal((_RANK, config.hidden)) / config.hidden**0.5
            b = draw.standard_normal((rows, _RANK)) * strength / _RANK**0.5
            tensors[f"{place}.lora_A.weight"] = bf16(a.astype(np.float32))
            tensors[f"{place}.lora_B.weight"] = bf16(b.astype(np.float32))
    about = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": files.name,
        "bias": "none",
        "r": _RANK,
        "lora_alpha": _RANK,  # scale 1
        "target_modules": list(outputs),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/demo-adapter", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--strength", type=float, default=0.3, help="how far it bends what it is beside; default 0.3")
    arguments = parser.parse_args()
    try:
        write(arguments.folder, arguments.model, arguments.strength)
    except ModelError as problem:
        parser.exit(2, f"scripts/demo-adapter: {problem.message}\n")


if __name__ == "__main__":
    main()
