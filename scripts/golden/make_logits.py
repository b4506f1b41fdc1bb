"""Write the golden files: logits of an implementation that shares no code with the engine.

The reference is Hugging Face transformers on PyTorch, all in float32 on the CPU, eager attention, on the
dequantised weights of the file the engine runs. The project itself needs neither package: run this in a
virtual environment of its own.

    python -m venv golden && . golden/bin/activate
    pip install torch==2.13.0 transformers==5.24.0 gguf==0.19.0 safetensors==0.8.0 numpy==2.4.6 \
        tokenizers==0.23.3 sentencepiece accelerate
    python scripts/golden/make_logits.py --gguf smollm2-135m-instruct.gguf    # smollm2_logits.npz
    python scripts/golden/make_logits.py --tiny                               # tiny_logits.npz
    python scripts/golden/make_logits.py --gguf FILE.gguf --measure MINE.npz  # figures of other logits

Those versions (the CPU build of PyTorch) wrote the committed files, with two threads. The same machine and
versions write the same bytes; another machine may differ in the last bits of a float32.

File formats are described in README.md beside this script.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import gguf
import numpy as np
import numpy.typing as npt
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "golden"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
THREADS = 2
CONTINUATION = 64
"""Tokens that follow each prompt and that the reference scores."""
BUCKETS = 96
"""Tokens per position whose reference log probability is stored; the rest of the vocabulary is one bucket."""
MODES = ("greedy", "sampled")

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

PROMPTS: tuple[tuple[str, str], ...] = (
    (
        "encyclopedia",
        "The Great Barrier Reef is the world's largest coral reef system, composed of over 2,900 individual "
        "reefs and 900 islands stretching for over 2,300 kilometres off the coast of Queensland. It is home "
        "to",
    ),
    (
        "chat",
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nExplain to a ten-year-old, in several sentences, why the sky is blue during the "
        "day but red in the evening.<|im_end|>\n<|im_start|>assistant\n",
    ),
    (
        "python",
        "import heapq\n\n\n"
        "def shortest_path(graph: dict[str, list[tuple[str, float]]], source: str, target: str) -> float:\n"
        '    """Return the length of the shortest path from source to target (Dijkstra).\n\n'
        "    graph maps a node to its list of (neighbour, weight) pairs. Returns infinity when target is "
        'not\n    reachable.\n    """\n'
        "    distance = {source: 0.0}\n    queue = [(0.0, source)]\n    while queue:\n",
    ),
    (
        "story",
        "Once upon a time, in a village at the edge of the forest, there lived an old clockmaker who had not "
        "spoken a word in twenty years. One evening a girl knocked at his door, holding a watch that ran "
        "backwards.",
    ),
    (
        "mathematics",
        "Question: A train leaves the station at 9:15 and travels 180 km at an average speed of 72 km/h. It "
        "then waits for 25 minutes and returns at 90 km/h. At what time is it back?\nAnswer: Let us work "
        "through this step by step.",
    ),
    (
        "markdown table",
        "# Planets of the Solar System\n\n| Planet | Diameter (km) | Moons | Orbital period |\n"
        "|---|---|---|---|\n| Mercury | 4,879 | 0 | 88 days |\n| Venus | 12,104 | 0 | 225 days |\n"
        "| Earth | 12,756 | 1 | 365 days |\n| Mars |",
    ),
    (
        "french",
        "Le petit marché du dimanche s'installe sur la place dès six heures du matin. Les marchands y "
        "vendent des légumes, du fromage et",
    ),
    (
        "dialogue",
        "“You cannot be serious,” said Dr. Alvarez, putting down her cup. “The samples were sealed. Nobody "
        "but the two of us has had the key since Tuesday — and yet the label on number 7 has changed.”\n\n"
        "Her assistant shrugged. “Perhaps",
    ),
)
"""Name and text of each prompt, 25 to 150 tokens long."""


@dataclass(frozen=True)
class Sequence:
    """One scored sequence: `ids` int32 [prompt + CONTINUATION], its prompt being the first `prompt`."""

    name: str
    ids: I32
    prompt: int


# --- the model and its tokenizer ----------------------------------------------------------------------------


def check_sha256(path: Path) -> None:
    """Refuse any other file than the one the golden file was made from."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SMOLLM2_SHA256:
        raise SystemExit(f"{path}: SHA-256 {digest}, expected {SMOLLM2_SHA256}")


def undo_permutation(rows: F32, heads: int) -> F32:
    """Rows of a q or k projection [heads * head_dim, in] from GGUF's order into transformers' order.

    GGUF's llama files interleave a head's rotated pairs (x0 y0 x1 y1 …); transformers keeps its two halves
    one after the other (x0 x1 … y0 y1 …).
    """
    halves = rows.reshape(heads, -1, 2, rows.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def expected_weights(path: Path) -> dict[str, F32]:
    """The file's weights, dequantised by `gguf` and under transformers' names and row order."""
    reader = gguf.GGUFReader(path)
    heads = int(reader.fields["llama.attention.head_count"].contents())
    kv_heads = int(reader.fields["llama.attention.head_count_kv"].contents())
    plain = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    inner = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    weights: dict[str, F32] = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        parts = tensor.name.split(".")
        if parts[0] != "blk":
            weights[f"{plain[parts[0]]}.weight"] = values
            continue
        if parts[2] in ("attn_q", "attn_k"):
            values = undo_permutation(values, heads if parts[2] == "attn_q" else kv_heads)
        weights[f"model.layers.{parts[1]}.{inner[parts[2]]}.weight"] = values
    return weights


def load_reference(path: Path) -> Any:
    """The GGUF file as a float32 transformers model whose every weight equals `gguf`'s dequantised one."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    expected = expected_weights(path)
    parameters = dict(model.named_parameters())  # a tied head is listed once, as the embedding
    if set(parameters) != set(expected):
        raise SystemExit(f"weights differ by name: {sorted(set(parameters) ^ set(expected))}")
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32 or not np.array_equal(parameter.detach().numpy(), expected[name]):
            raise SystemExit(f"{name} is not what gguf dequantises")
    return model


def load_tokenizer(path: Path) -> Tokenizer:
    """SmolLM2's tokenizer out of the GGUF file: byte-level BPE that splits digits one by one, no BOS."""
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


# --- running it ---------------------------------------------------------------------------------------------


def all_logits(model: Any, ids: I32) -> F32:
    """Float32 logits [len(ids), vocabulary] of one sequence in one pass, without a cache."""
    tokens = torch.from_numpy(ids.astype(np.int64))[None]
    with torch.inference_mode():
        return model(tokens, use_cache=False).logits[0].numpy()  # type: ignore[no-any-return]


def next_logits(model: Any, tokens: list[int], cache: Any) -> F32:
    """Float32 logits [vocabulary] after `tokens`, which follow those in `cache` and are added to it."""
    with torch.inference_mode():
        logits = model(torch.tensor([tokens]), cache=cache, use_cache=True).logits
    return logits[0, -1].numpy()  # type: ignore[no-any-return]


def log_softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Natural log probabilities over the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))  # type: ignore[no-any-return]


def continue_prompt(model: Any, prompt: list[int], rng: np.random.Generator | None) -> I32:
    """`prompt` and CONTINUATION more tokens: the likeliest ones, or with `rng` drawn at temperature 1.

    Generation runs on past end-of-sequence tokens.
    """
    cache = transformers.DynamicCache(config=model.config)
    ids, step = list(prompt), list(prompt)
    for _ in range(CONTINUATION):
        logits = next_logits(model, step, cache)
        if rng is None:
            token = int(logits.argmax())
        else:
            cumulative = np.exp(log_softmax(logits)).cumsum()
            token = int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
        ids.append(token)
        step = [token]
    return np.array(ids, np.int32)


def make_sequences(model: Any, tokenizer: Tokenizer) -> list[Sequence]:
    """Both continuations of every prompt: all greedy ones first, then all sampled ones."""
    sequences = []
    for mode in MODES:
        for index, (name, text) in enumerate(PROMPTS):
            prompt = tokenizer.encode(text, add_special_tokens=False).ids
            rng = np.random.Generator(np.random.PCG64(index)) if mode == "sampled" else None
            ids = continue_prompt(model, prompt, rng)
            sequences.append(Sequence(f"{mode} {name}", ids, len(prompt)))
    return sequences


def prompt_logprobs(logits: F32, ids: I32, prompt: int) -> F32:
    """Natural log probability [prompt] of each prompt token given those before it; NaN for the first."""
    scores = log_softmax(logits[: prompt - 1])[np.arange(prompt - 1), ids[1:prompt]]
    return np.concatenate([[np.nan], scores]).astype(np.float32)


def continuation_logprobs(logits: F32, prompt: int) -> npt.NDArray[np.float64]:
    """Log probabilities [CONTINUATION, vocabulary]; row i is the distribution of continuation token i."""
    return log_softmax(logits[prompt - 1 : prompt - 1 + CONTINUATION])


# --- golden files -------------------------------------------------------------------------------------------


def versions() -> npt.NDArray[np.str_]:
    """What the file was made with, as "package version" strings."""
    found = {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__}
    return np.array([f"{package} {version}" for package, version in found.items()])


def save(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Write a compressed .npz and say its size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1024:.0f} KiB")


def pad(rows: list[npt.NDArray[Any]], value: float) -> npt.NDArray[Any]:
    """Rows of differing length as one array [len(rows), longest], filled up with `value`."""
    longest = max(len(row) for row in rows)
    return np.stack([np.pad(row, (0, longest - len(row)), constant_values=value) for row in rows])


def top_buckets(scores: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.uint16], F32]:
    """The likeliest tokens of each row, likeliest first: ids and log probabilities [rows, BUCKETS]."""
    order = np.argsort(-scores, axis=-1, kind="stable")[:, :BUCKETS]
    return order.astype(np.uint16), np.take_along_axis(scores, order, axis=-1).astype(np.float32)


def write_smollm2(path: Path) -> None:
    """Write smollm2_logits.npz from the GGUF file at `path`."""
    model, tokenizer = load_reference(path), load_tokenizer(path)
    sequences = make_sequences(model, tokenizer)
    arrays: dict[str, list[npt.NDArray[Any]]] = {
        key: [] for key in ("top_ids", "top_logprobs", "continuation_logprobs", "prompt_logprobs")
    }
    for sequence in sequences:
        logits = all_logits(model, sequence.ids)
        scores = continuation_logprobs(logits, sequence.prompt)
        top_ids, top_scores = top_buckets(scores)
        chosen = sequence.ids[sequence.prompt :]
        arrays["top_ids"].append(top_ids)
        arrays["top_logprobs"].append(top_scores)
        arrays["continuation_logprobs"].append(scores[np.arange(CONTINUATION), chosen].astype(np.float32))
        arrays["prompt_logprobs"].append(prompt_logprobs(logits, sequence.ids, sequence.prompt))
    save(
        GOLDEN / "smollm2_logits.npz",
        {
            "names": np.array([sequence.name for sequence in sequences]),
            "prompt_texts": np.array([text for _ in MODES for _, text in PROMPTS]),
            "prompt_lengths": np.array([sequence.prompt for sequence in sequences], np.int32),
            "prompt_ids": pad([sequence.ids[: sequence.prompt] for sequence in sequences], -1),
            "continuation_ids": np.stack([sequence.ids[sequence.prompt :] for sequence in sequences]),
            "prompt_logprobs": pad(arrays.pop("prompt_logprobs"), np.nan),
            **{key: np.stack(rows) for key, rows in arrays.items()},
            "gguf_sha256": np.array(SMOLLM2_SHA256),
            "versions": versions(),
        },
    )


def stepwise_logits(model: Any, ids: I32) -> F32:
    """Float32 logits [len(ids), vocabulary], token by token with a cache of the keys as first rotated."""
    cache = transformers.DynamicCache(config=model.config)
    return np.stack([next_logits(model, [int(token)], cache) for token in ids])


def load_tiny(name: str, folder: Path) -> Any:
    """A variant of tests/tiny_models.py as a float32 transformers model."""
    import tiny_models

    tiny_models.write_tiny_model(name, folder)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    if any(info.values()):
        raise SystemExit(f"{name}: {info}")
    expected = tiny_models.tiny_weights(name)
    for key, parameter in model.named_parameters():
        if not np.array_equal(parameter.detach().numpy(), expected[key]):
            raise SystemExit(f"{name}: {key} did not survive the file")
    return model.eval()


def write_tiny() -> None:
    """Write tiny_logits.npz: the full logits of every tiny variant on its prompt."""
    import tiny_models

    arrays: dict[str, npt.NDArray[Any]] = {}
    for name in tiny_models.VARIANTS:
        with tempfile.TemporaryDirectory() as folder:
            model = load_tiny(name, Path(folder))
        ids = tiny_models.tiny_prompt(name)
        logits = all_logits(model, ids)
        arrays[f"{name}.ids"], arrays[f"{name}.logits"] = ids, logits
        if name == "rope_dynamic":
            arrays[f"{name}.stepwise_logits"] = stepwise_logits(model, ids)
        print(f"{name}: logits of standard deviation {logits.std():.2f}")
    save(GOLDEN / "tiny_logits.npz", {**arrays, "versions": versions()})


# --- measuring other logits ---------------------------------------------------------------------------------


def bucketed(scores: npt.NDArray[np.float64], ids: npt.NDArray[np.uint16]) -> npt.NDArray[np.float64]:
    """Probabilities [rows, BUCKETS + 1] of the tokens `ids` of each row and of all the others together."""
    kept = np.exp(np.take_along_axis(scores, ids.astype(np.int64), axis=-1))
    return np.concatenate([kept, np.maximum(1.0 - kept.sum(axis=-1, keepdims=True), 1e-12)], axis=-1)


def measure(gguf_path: Path, theirs: Path) -> None:
    """Print how the float32 `logits` [sequence, position, vocabulary] of the file `theirs` differ.

    Position i is the distribution of continuation token i. KL is that from the reference to the other, in
    nats over the full vocabulary and, in brackets, over the golden file's buckets only.
    """
    golden = np.load(GOLDEN / "smollm2_logits.npz")
    other = np.load(theirs)["logits"]
    model = load_reference(gguf_path)
    lengths = golden["prompt_lengths"]
    wanted = (len(lengths), CONTINUATION, model.config.vocab_size)
    if other.shape != wanted:
        raise SystemExit(f"logits has shape {other.shape}, expected {wanted}")
    full, coarse, equal = (np.zeros(wanted[:2]) for _ in range(3))
    for i, length in enumerate(lengths):
        ids = np.concatenate([golden["prompt_ids"][i, :length], golden["continuation_ids"][i]])
        ours = continuation_logprobs(all_logits(model, ids), int(length))
        mine = log_softmax(other[i])
        full[i] = (np.exp(ours) * (ours - mine)).sum(axis=-1)
        p, q = (bucketed(scores, golden["top_ids"][i]) for scores in (ours, mine))
        coarse[i] = (p * np.log(p / q)).sum(axis=-1)
        equal[i] = ours.argmax(axis=-1) == mine.argmax(axis=-1)
    half = len(lengths) // len(MODES)
    for index, mode in enumerate(MODES):
        rows = slice(index * half, (index + 1) * half)
        means = f"{full[rows].mean():.2e} ({coarse[rows].mean():.2e})"
        largest = f"{full[rows].max():.2e} ({coarse[rows].max():.2e})"
        agreement = 100 * equal[rows].mean()
        print(f"{mode}: mean KL {means}, largest {largest}, top token equal {agreement:.2f} %")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Write the golden logits, or measure other logits.")
    parser.add_argument("--gguf", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--tiny", action="store_true", help="write tiny_logits.npz")
    parser.add_argument("--measure", type=Path, metavar="FILE.npz", help="compare FILE's logits instead")
    args = parser.parse_args()
    if not args.tiny and args.gguf is None:
        parser.error("give --gguf or --tiny")
    torch.set_num_threads(THREADS)
    transformers.utils.logging.disable_progress_bar()
    sys.path.insert(0, str(ROOT / "tests"))
    if args.gguf is not None:
        check_sha256(args.gguf)
    if args.measure is not None:
        measure(args.gguf, args.measure)
    elif args.gguf is not None:
        write_smollm2(args.gguf)
    if args.tiny:
        write_tiny()


if __name__ == "__main__":
    main()
