"""A GGUF of the llama family as a folder of bf16 safetensors with config.json and tokenizer.json."""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from interlingua.engine.native.models.llama import GGUF, SAFETENSORS, config_from_gguf
from interlingua.engine.native.weights import F32, open_checkpoint, widen
from interlingua.hub import resolve
from interlingua.text.tokenizer import Tokenizer

U16 = npt.NDArray[np.uint16]

_PER_LAYER = ("attention_norm", "mlp_norm", "q", "k", "v", "o", "gate", "up", "down")


def bf16(values: F32) -> U16:
    """The upper halves of float32 values, rounded to nearest even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_tensors(path: Path, tensors: Mapping[str, U16]) -> None:
    """One file of bf16 tensors: the length of a JSON header, the header, the bytes (safetensors' format)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, values in tensors.items():
        header[name] = {"dtype": "BF16", "shape": values.shape, "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(values.tobytes())


def half_split(rows: F32, heads: int) -> F32:
    """Rows of q or k whose rotary pairs stand side by side (GGUF), moved half a head apart."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def write(folder: Path, model: str, kv_heads: int | None = None) -> None:
    """Writes the folder.

    `kv_heads` over the model's own adds heads of zeros, which change no answer: workers that share a model want heads
    in numbers that they can divide.
    """
    files = resolve(model)
    checkpoint = open_checkpoint(files)
    assert files.gguf is not None, "the model is no GGUF"
    config = config_from_gguf(files.gguf.metadata, checkpoint)
    tensors: dict[str, U16] = {}
    kv_heads = max(kv_heads or 0, config.kv_heads)
    heads = kv_heads * (config.heads // config.kv_heads)
    widths = {name: count * config.head_dim for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))}

    def copy(source: str, target: str, name: str = "") -> None:
        values = widen(checkpoint.get(source + ".weight"))
        if name in ("q", "k"):
            values = half_split(values, config.heads if name == "q" else config.kv_heads)
        if name in widths:
            values = np.pad(values, ((0, widths[name] - values.shape[0]), (0, 0)))
        elif name == "o":
            values = np.pad(values, ((0, 0), (0, widths["q"] - values.shape[1])))
        tensors[target + ".weight"] = bf16(values)

    copy(GGUF.embedding, SAFETENSORS.embedding)
    copy(GGUF.final_norm, SAFETENSORS.final_norm)
    tied = not checkpoint.has(GGUF.head + ".weight")
    if not tied:
        copy(GGUF.head, SAFETENSORS.head)
    for layer in range(config.layers):
        for name in _PER_LAYER:
            copy(getattr(GGUF, name).format(layer), getattr(SAFETENSORS, name).format(layer), name)
    tokenizer = Tokenizer.load(files)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "model.safetensors", tensors)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    about = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": tied,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": sorted(tokenizer.eos_ids),
        "torch_dtype": "bfloat16",
    }
    words = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.bos_text or None,
        "eos_token": tokenizer.eos_text or None,
        "chat_template": tokenizer.chat_template,
        "model_max_length": config.context,
    }
    (folder / "config.json").write_text(json.dumps(about, indent=2))
    (folder / "tokenizer_config.json").write_text(json.dumps(words, indent=2))
    generation = {"eos_token_id": sorted(tokenizer.eos_ids), "bos_token_id": tokenizer.bos_id}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--kv-heads", type=int, help="add heads of zeros up to so many")
    arguments = parser.parse_args()
    write(arguments.folder, arguments.model, arguments.kv_heads)


if __name__ == "__main__":
    main()
