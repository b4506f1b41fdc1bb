"""Reads tests/data/tokens, which scripts/golden/make_tokens.py makes."""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data" / "tokens"


def read_corpus() -> list[str]:
    texts: list[str] = json.loads(lzma.decompress((DATA / "corpus.json.xz").read_bytes()))
    return texts


def read_arrays(name: str) -> dict[str, np.ndarray]:
    """The arrays of one file: lines `name length`, each followed by that many 32-bit numbers as four byte planes."""
    blob = lzma.decompress((DATA / f"{name}.xz").read_bytes())
    arrays: dict[str, np.ndarray] = {}
    position = 0
    while position < len(blob):
        line_end = blob.index(b"\n", position)
        key, length = blob[position:line_end].decode().split()
        planes = np.frombuffer(blob, np.uint8, 4 * int(length), line_end + 1).reshape(4, -1)
        arrays[key] = np.ascontiguousarray(planes.T).view("<u4").ravel()
        position = line_end + 1 + 4 * int(length)
    return arrays


def gguf_metadata(tokenizer: Mapping[str, Any], pre: str | None) -> dict[str, Any]:
    """What a GGUF file would say of a tokenizer.json: byte-level with the rule `pre`, or SentencePiece if that is None.

    A piece's score is the rank of the first merge that makes it, which is where converted files have theirs from.
    """
    model = tokenizer["model"]
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    by_id = {index: token for token, index in model["vocab"].items()}
    size = max(*by_id, *added) + 1
    tokens = [added[index]["content"] if index in added else by_id.get(index, f"[PAD{index}]") for index in range(size)]
    types = np.ones(size, np.int32)
    for index, token in added.items():
        types[index] = 3 if token["special"] else 4
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    common = {"tokens": tokens, "token_type": types, "add_bos_token": False}
    if pre is not None:
        fields = {**common, "model": "gpt2", "pre": pre, "merges": merges}
    else:
        scores = np.full(size, -1e9, np.float32)
        for rank, merge in enumerate(merges):
            piece = model["vocab"][merge.replace(" ", "")]
            scores[piece] = max(scores[piece], -float(rank))
        for index, token in enumerate(tokens):
            if types[index] == 4:  # converters write those as they stand in a text
                tokens[index] = token.replace("▁", " ")
            if len(token) == 6 and token.startswith("<0x"):
                types[index] = 6
        prefix = "Prepend" in json.dumps(tokenizer["normalizer"])
        unknown = model["vocab"][model["unk_token"]]
        fields = {**common, "model": "llama", "scores": scores, "add_space_prefix": prefix, "unknown_token_id": unknown}
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


def digest(ids: Sequence[int]) -> int:
    """32 bits that stand for a list of ids."""
    raw = np.asarray(ids, "<u4").tobytes()
    return int.from_bytes(hashlib.blake2b(raw, digest_size=4).digest(), "little")
