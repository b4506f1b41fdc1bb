"""Models from GGUF files of every supported tensor type, against the same weights as safetensors.

The safetensors path is held against transformers in test_golden.py; what is left to show here is that reading,
permuting and widening a GGUF gives the same model.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from native_runner import F32, Runner, load, load_folder, log_softmax
from tiny_models import write_safetensors

from interlingua.hub.files import ModelFiles, from_gguf

HIDDEN, INNER, HEADS, KV_HEADS, HEAD, VOCAB, LAYERS = 256, 512, 8, 4, 32, 96, 2
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": VOCAB,
}
LINEARS = {
    "attn_q": ("self_attn.q_proj", HEADS * HEAD, HIDDEN),
    "attn_k": ("self_attn.k_proj", KV_HEADS * HEAD, HIDDEN),
    "attn_v": ("self_attn.v_proj", KV_HEADS * HEAD, HIDDEN),
    "attn_output": ("self_attn.o_proj", HIDDEN, HEADS * HEAD),
    "ffn_gate": ("mlp.gate_proj", INNER, HIDDEN),
    "ffn_up": ("mlp.up_proj", INNER, HIDDEN),
    "ffn_down": ("mlp.down_proj", HIDDEN, INNER),
}
K_QUANT_SCALES = {Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208,), Q.Q3_K: (108,), Q.Q2_K: (80, 82)}


def encode(values: F32, kind: Q, rng: np.random.Generator) -> np.ndarray:
    """Rows in a tensor type; K-quants, for which there is no Python encoder, are random blocks with small scales."""
    if kind in K_QUANT_SCALES:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        raw = rng.integers(0, 256, (values.shape[0], values.shape[1] // block, size), np.uint8)
        for at in K_QUANT_SCALES[kind]:
            half = np.float16(0.0004 if kind != Q.Q6_K else 0.00004).tobytes()
            raw[:, :, at : at + 2] = np.frombuffer(half, np.uint8)
        return raw.reshape(values.shape[0], -1)
    return gguf.quants.quantize(values, kind)


def permute(rows: F32, heads: int) -> F32:
    """Half-split rotary rows to side-by-side pairs, as GGUF keeps them."""
    return rows.reshape(heads, 2, HEAD // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def write_pair(folder: Path, kinds: dict[str, Q], default: Q) -> tuple[ModelFiles, Path]:
    """The same random model as a GGUF file and as a folder of float32 safetensors."""
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    plain: dict[str, F32] = {}

    def add(name: str, theirs: str, values: F32, kind: Q, heads: int = 0) -> None:
        data = encode(permute(values, heads) if heads else values, kind, rng)
        writer.add_tensor(name, data, raw_dtype=kind)
        known = np.asarray(gguf.quants.dequantize(data, kind), np.float32).reshape(values.shape)
        if heads:  # and back
            known = known.reshape(heads, HEAD // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
        plain[theirs] = known

    add("token_embd.weight", "model.embed_tokens.weight", rng.normal(0, 1, (VOCAB, HIDDEN)).astype(np.float32), Q.F32)
    add("output.weight", "lm_head.weight", rng.normal(0, 0.1, (VOCAB, HIDDEN)).astype(np.float32), default)
    plain["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    writer.add_tensor("output_norm.weight", plain["model.norm.weight"])
    for layer in range(LAYERS):
        for ours, theirs in (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")):
            plain[f"model.layers.{layer}.{theirs}.weight"] = np.ones(HIDDEN, np.float32)
            writer.add_tensor(f"blk.{layer}.{ours}.weight", np.ones(HIDDEN, np.float32))
        for ours, (theirs, outputs, inputs) in LINEARS.items():
            values = rng.normal(0, inputs**-0.5, (outputs, inputs)).astype(np.float32)
            heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(ours, 0)
            add(
                f"blk.{layer}.{ours}.weight",
                f"model.layers.{layer}.{theirs}.weight",
                values,
                kinds.get(ours, default),
                heads,
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    twin = folder / "twin"
    twin.mkdir()
    (twin / "config.json").write_text(json.dumps(CONFIG))
    write_safetensors(twin / "model.safetensors", plain, "float32")
    return from_gguf(folder / "model.gguf", "tiny", None), twin


WIDENED = [Q.F32, Q.F16, Q.BF16, Q.Q5_0, Q.Q5_1, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K]


@pytest.mark.parametrize("kind", WIDENED, ids=lambda kind: kind.name)
def test_widened_types(kind: Q, tmp_path: Path) -> None:
    """What is widened to bf16 gives the very bits of the same weights from safetensors."""
    files, twin = write_pair(tmp_path, {}, kind)
    ids = np.random.default_rng(1).integers(3, VOCAB, 40).tolist()
    assert np.array_equal(Runner(load(files)).sequence(ids), Runner(load_folder(twin)).sequence(ids))


@pytest.mark.parametrize("kind", [Q.Q4_0, Q.Q4_1, Q.Q8_0], ids=lambda kind: kind.name)
def test_kept_types(kind: Q, tmp_path: Path) -> None:
    """What keeps its bits differs from widened weights by the rounding of bf16 alone."""
    files, twin = write_pair(tmp_path, {}, kind)
    ids = np.random.default_rng(1).integers(3, VOCAB, 40).tolist()
    loaded = load(files, activations="int16")
    assert loaded.info.dtype == ("int8" if kind == Q.Q8_0 else "int4")
    ours = log_softmax(Runner(loaded).sequence(ids))
    theirs = log_softmax(Runner(load_folder(twin)).sequence(ids))
    assert (np.exp(theirs) * (theirs - ours)).sum(1).mean() < 2e-4


def test_mixed_types(tmp_path: Path) -> None:
    """Parts of one fused weight in different types: widened together (a Q4_K_M file mixes like this)."""
    files, twin = write_pair(tmp_path, {"attn_v": Q.Q6_K, "ffn_down": Q.Q8_0, "attn_q": Q.Q4_1}, Q.Q4_K)
    ids = np.random.default_rng(1).integers(3, VOCAB, 40).tolist()
    ours = log_softmax(Runner(load(files, activations="int16")).sequence(ids))
    theirs = log_softmax(Runner(load_folder(twin)).sequence(ids))
    assert (np.exp(theirs) * (theirs - ours)).sum(1).mean() < 2e-4
