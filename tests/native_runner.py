"""Drives a native model without the engine's thread: logits of chosen chunks, and the KV they leave behind."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path

import numpy as np
import numpy.typing as npt

from interlingua.engine.native._native import KV_BLOCK, LoraAdapter
from interlingua.engine.native.engine import NativeOptions
from interlingua.engine.native.load import LoadedModel, load_model
from interlingua.hub.files import ModelFiles, from_folder

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]


def load(files: ModelFiles, **options: object) -> LoadedModel:
    defaults: dict[str, object] = {"kv_memory": 256 << 20, "max_batch_tokens": 2048}
    return load_model(files, NativeOptions(**{**defaults, **options}))  # type: ignore[arg-type]


def load_folder(folder: Path, **options: object) -> LoadedModel:
    return load(from_folder(folder, folder.name), **options)


class Runner:
    """Sequences over fixed, disjoint ranges of blocks; block 0 is left alone to catch stray reads."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.model = loaded.model
        self.vocab = loaded.info.vocab_size
        self._next = 1

    def blocks(self, tokens: int) -> list[int]:
        count = -(-tokens // KV_BLOCK)
        out = list(range(self._next, self._next + count))
        self._next += count
        return out[::-1]  # descending: nothing may depend on blocks being neighbours

    def step(
        self,
        work: Seq[tuple[Seq[int], int, list[int]]],
        last_only: bool = False,
        adapters: Seq[LoraAdapter | None] = (),
        wanted: Seq[Seq[int]] | None = None,
    ) -> list[F32]:
        """One step. Each item: (ids, first position, blocks); returns the logits [len(ids), vocab] of each.

        `adapters`, if any, has one entry for each item; None = the base model. `wanted` says whose logits are asked
        for: for each item numbers of its ids, in any order. With `last_only` each item's last alone.
        """
        tokens = [t for ids, _, _ in work for t in ids]
        positions = [first + i for ids, first, _ in work for i in range(len(ids))]
        offsets = np.cumsum([0] + [len(ids) for ids, _, _ in work])
        tables = np.zeros((len(work), max(len(b) for _, _, b in work)), np.int32)
        for row, (_, _, blocks) in enumerate(work):
            tables[row, : len(blocks)] = blocks
        if wanted is None:
            wanted = [range(len(ids))[-1:] if last_only else range(len(ids)) for ids, _, _ in work]
        index = [int(offset) + i for offset, numbers in zip(offsets[:-1], wanted, strict=True) for i in numbers]
        n = len(index)
        known = list(dict.fromkeys(adapter for adapter in adapters if adapter is not None))
        logits = np.empty((n, self.vocab), np.float32)
        self.model.step(
            np.array(tokens, np.int32),
            np.array(positions, np.int32),
            offsets.astype(np.int32),
            tables,
            np.array(index, np.int32),
            np.full(n, -1, np.int32),
            np.zeros(n, np.int32),
            np.empty(n, np.int32),
            np.empty(n, np.float32),
            logits,
            adapters=known,
            adapter_of=np.array([known.index(a) if a is not None else -1 for a in adapters], np.int32)
            if known
            else None,
        )
        return np.split(logits, np.cumsum([len(numbers) for numbers in wanted])[:-1])

    def sequence(self, ids: Seq[int], chunk: int = 1 << 30, adapter: LoraAdapter | None = None) -> F32:
        """Logits of every position of one sequence, computed in chunks."""
        blocks = self.blocks(len(ids))
        steps = [[(ids[at : at + chunk], at, blocks)] for at in range(0, len(ids), chunk)]
        return np.concatenate([self.step(step, adapters=[adapter])[0] for step in steps])

    def kv(self, blocks: Seq[int], layers: int) -> list[U8]:
        return [np.array(self.model.kv_block(layer, block)) for layer in range(layers) for block in blocks]


def log_softmax(logits: F32) -> npt.NDArray[np.float64]:
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(-1, keepdims=True)))
