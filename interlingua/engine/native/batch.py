"""One step as flat arrays. The native model never sees a sequence, only these."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from interlingua.engine.native._native import LoraAdapter, Model
from interlingua.engine.native.scheduler import Chunk

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]


@dataclass(slots=True)
class Batch:
    """Rows of a step, grouped by sequence in the order of `chunks`, and the room for its results.

    rows: tokens, positions int32 [rows]; offsets int32 [sequences + 1]; block_tables int32 [sequences, widest].
    logit rows, chunk by chunk: `scored` prompt tokens, then `choices` rows, the first for the next token and one more
    behind each draft: logit_index, slots, targets int32 [logits]; slot -1 means "score `target`" (a prompt token).
    allowed: a mask or None per logit row (`guide.Guide.allowed`), or nothing where no row is guided.
    adapters: those of the step, each once; adapter_of int32 [sequences]: index in it, or -1.
    results: ids, logprobs [logits]; id LATE: nothing was chosen, the mask was late; DROPPED: nothing was chosen, the
    draft before it was not; UNUSABLE: its logits are not finite; FAILED: the request's
    processors threw.
    """

    chunks: Seq[Chunk]
    scored: list[int]
    choices: list[int]
    tokens: I32
    positions: I32
    offsets: I32
    block_tables: I32
    logit_index: I32
    slots: I32
    targets: I32
    allowed: list[U32 | None]
    ids: I32
    logprobs: F32
    adapters: list[LoraAdapter]
    adapter_of: I32

    def run(self, model: Model, logits: F32 | None = None) -> None:
        """Computes the step. `logits` [logits, vocab], if given, receives the raw values."""
        model.step(
            self.tokens,
            self.positions,
            self.offsets,
            self.block_tables,
            self.logit_index,
            self.slots,
            self.targets,
            self.ids,
            self.logprobs,
            logits,
            self.allowed,
            adapters=self.adapters,
            adapter_of=self.adapter_of,
        )


def build_batch(chunks: Seq[Chunk]) -> Batch:
    """Lays the chunks of a step out as rows; the last row of a completed sequence asks for a token."""
    tokens: list[int] = []
    positions: list[int] = []
    offsets = [0]
    logit_index: list[int] = []
    slots: list[int] = []
    targets: list[int] = []
    allowed: list[U32 | None] = []
    scored: list[int] = []
    choices: list[int] = []
    widest = max(len(chunk.sequence.blocks) for chunk in chunks)
    tables = np.zeros((len(chunks), widest), np.int32)
    for number, chunk in enumerate(chunks):
        sequence, first = chunk.sequence, chunk.sequence.computed
        end = first + chunk.count
        row = len(tokens)
        tokens += sequence.ids[first:end]
        tokens += chunk.drafts
        positions += range(first, first + chunk.rows)
        offsets.append(len(tokens))
        tables[number, : len(sequence.blocks)] = sequence.blocks
        before = len(logit_index)
        if sequence.scores_prompt:
            # Row p scores the prompt token at p + 1; what an earlier attempt has scored is not asked again.
            for position in range(max(first, len(sequence.prompt_logprobs) - 1), min(end, sequence.prompt_length - 1)):
                logit_index.append(row + position - first)
                slots.append(-1)
                targets.append(sequence.ids[position + 1])
        scored.append(len(logit_index) - before)
        choices.append(1 + len(chunk.drafts) if chunk.completes else 0)
        if chunk.completes:
            logit_index += range(row + chunk.count - 1, len(tokens))
            slots += [sequence.slot] * choices[-1]
            targets += [*chunk.drafts, -1]
            if sequence.guide is not None:
                allowed += [None] * (len(slots) - 1 - len(allowed))
                allowed.append(sequence.guide.allowed)
    loras = [chunk.sequence.lora for chunk in chunks]
    adapters = {lora: number for number, lora in enumerate(dict.fromkeys(lora for lora in loras if lora is not None))}
    wanted = len(logit_index)
    if allowed:
        allowed += [None] * (wanted - len(allowed))
    return Batch(
        chunks=chunks,
        scored=scored,
        choices=choices,
        tokens=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32),
        offsets=np.array(offsets, np.int32),
        block_tables=tables,
        logit_index=np.array(logit_index, np.int32),
        slots=np.array(slots, np.int32),
        targets=np.array(targets, np.int32),
        allowed=allowed,
        ids=np.empty(wanted, np.int32),
        logprobs=np.empty(wanted, np.float32),
        adapters=[lora.native for lora in adapters],
        adapter_of=np.array([-1 if lora is None else adapters[lora] for lora in loras], np.int32),
    )
