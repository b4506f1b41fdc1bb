"""What vLLM lacks, as one logits processor in its workers: typical-p, watermark, TGI's frequency penalty, grammars, and
parameters together whose order is ours (docs/decoding.md). Rows that ask for none of this are not touched.

Such a row is changed here in all that it asks for; vLLM is told neutral values and draws. The order is the native
sampler's (`csrc/sampler.cpp`), the arithmetic torch's on the row's own device: equal within float tolerance.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.sample.logits_processor.interface import BatchUpdate, LogitsProcessor, MoveDirectionality

from interlingua.contract.request import Grammar
from interlingua.engine.native._native import green_list
from interlingua.engine.native.guide import CACHED
from interlingua.engine.vllm import EXTRA

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig

    from interlingua.engine.native.guide import Guide, Guides

Green = Callable[[int, float], torch.Tensor]

_MASKS = 4096  # green lists that are kept, by last id and gamma
_NEVER = float("-inf")


@dataclass(slots=True)
class _Row:
    """A request in vLLM's batch. `output` is vLLM's own list, which grows."""

    wanted: dict[str, Any]
    prompt: list[int]
    output: list[int]
    guide: Guide | None = None
    guided: int = 0  # tokens of the output that the guide has taken


class Processor(LogitsProcessor):
    """One per worker. Every worker of a tensor-parallel group comes to the same logits."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Nothing to do: what arrives was prepared by `VllmEngine`."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._model = str(vllm_config.model_config.model)
        self._vocab = int(vllm_config.model_config.get_vocab_size())
        self._device = device
        self._rows: dict[int, _Row] = {}
        self._masks: OrderedDict[tuple[int, float], torch.Tensor] = OrderedDict()
        self._guides: Guides | None = None
        self._compiled: dict[Grammar, Guide] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, prompt, output in batch_update.added:
            wanted = (params.extra_args or {}).get(EXTRA) if params is not None else None
            self._rows.pop(index, None)
            if wanted is not None:
                self._rows[index] = self._begin(_Row(wanted, list(prompt or ()), output))
        for first, second, direction in batch_update.moved:
            one, other = self._rows.pop(first, None), self._rows.pop(second, None)
            if one is not None:
                self._rows[second] = one
            if other is not None and direction is MoveDirectionality.SWAP:
                self._rows[first] = other

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """logits float32 [rows, vocabulary], changed in place."""
        for index, row in self._rows.items():
            scores = change(logits[index], row.wanted, row.prompt, row.output, self._green)
            if row.guide is not None:
                scores = self._guided(scores, row)
            if row.wanted["do_sample"]:
                scores = warp(scores, row.wanted)
            logits[index] = scores
        return logits

    def _begin(self, row: _Row) -> _Row:
        if row.wanted["grammar"] is not None:
            kind, value = row.wanted["grammar"]
            row.guide = self._guide(Grammar(kind, value))
        return row

    def _guide(self, grammar: Grammar) -> Guide:
        """A guide at the beginning of a grammar that the server has compiled already, and so knows to be good."""
        if self._guides is None:
            from interlingua.engine.native.guide import Guides
            from interlingua.hub import resolve
            from interlingua.text.tokenizer import Tokenizer

            self._guides = Guides(Tokenizer.load(resolve(self._model)), self._vocab, lambda: None)
        if grammar not in self._compiled:
            if len(self._compiled) >= CACHED:
                self._compiled.clear()
            self._compiled[grammar] = self._guides.compile(grammar)
        return self._compiled[grammar].copy()

    def _guided(self, scores: torch.Tensor, row: _Row) -> torch.Tensor:
        guide = row.guide
        assert guide is not None
        for token in row.output[row.guided :]:
            if not guide.failed:
                guide.advance(token)
        row.guided = len(row.output)
        bits = np.unpackbits(guide.allowed[:-1].view(np.uint8), bitorder="little")[: scores.shape[-1]].astype(bool)
        if guide.failed:
            # The server follows the same grammar and ends the request at the first token that is none of it.
            outside = np.flatnonzero(~bits)
            bits = np.zeros_like(bits)
            bits[outside[:1]] = True
        allowed = torch.from_numpy(bits).to(self._device)
        if allowed.shape[0] < scores.shape[-1]:
            allowed = torch.nn.functional.pad(allowed, (0, scores.shape[-1] - allowed.shape[0]))
        return scores.masked_fill(~allowed, _NEVER)

    def _green(self, last: int, gamma: float) -> torch.Tensor:
        mask = self._masks.get((last, gamma))
        if mask is None:
            mask = green_mask(last, self._vocab, gamma).to(self._device)
            self._masks[last, gamma] = mask
            if len(self._masks) > _MASKS:
                self._masks.popitem(last=False)
        self._masks.move_to_end((last, gamma))
        return mask


def green_mask(last: int, vocab: int, gamma: float) -> torch.Tensor:
    """Which ids the watermark favours after `last`: bool [vocab]."""
    bits = np.unpackbits(green_list(last, vocab, gamma), count=vocab, bitorder="little")
    return torch.from_numpy(bits.astype(bool))


def change(
    scores: torch.Tensor, wanted: dict[str, Any], prompt: list[int], output: list[int], green: Green
) -> torch.Tensor:
    """What comes before the temperature: watermark, penalties, bias, what min_new_tokens suppresses.

    Args:
        scores: float32 [vocabulary] of one row.
        green: gives the bool [vocabulary] of a last id and a gamma.
    """
    scores = scores.clone()
    device = scores.device
    if wanted["watermark"] is not None:
        gamma, delta = wanted["watermark"]
        last = output[-1] if output else prompt[-1]
        favoured = green(last, gamma)
        scores[: favoured.shape[0]] += delta * favoured
    seen, counts = np.unique(np.array(prompt + output, np.int64), return_counts=True)
    ids = torch.from_numpy(seen).to(device)
    values = scores[ids]
    repetition = wanted["repetition_penalty"]
    if repetition != 1:
        values = torch.where(values < 0, values * repetition, values / repetition)
    if wanted["frequency_over_output"]:
        made = np.bincount(np.searchsorted(seen, np.array(output, np.int64)), minlength=len(seen))
        written = torch.from_numpy(made).to(device)
        values = values - wanted["frequency_penalty"] * written - wanted["presence_penalty"] * (written > 0)
    elif wanted["frequency_penalty"] != 0:
        share = torch.from_numpy((counts / (len(prompt) + len(output))).astype(np.float32)).to(device)
        values = values - wanted["frequency_penalty"] * share
    scores[ids] = values.to(scores.dtype)
    for token, bias in wanted["logit_bias"]:
        scores[token] += bias
    if len(output) < wanted["min_new_tokens"]:
        scores[wanted["stop_token_ids"]] = _NEVER
    return scores


def warp(scores: torch.Tensor, wanted: dict[str, Any]) -> torch.Tensor:
    """Temperature and filters: scores over the temperature, -inf for what may not be drawn. float32 [vocabulary]."""
    scores = (scores / wanted["temperature"]).clamp(min=-3.0e38) if wanted["temperature"] != 1 else scores
    keep = scores > _NEVER
    k = wanted["top_k"]
    if 0 < k < scores.shape[-1]:
        keep &= scores >= torch.topk(scores, k).values[-1]  # ties with the k-th stay
    weights = torch.softmax(scores.double(), -1) * keep
    if wanted["top_p"] < 1:
        keep &= _smallest(-weights, weights, wanted["top_p"])
        weights = weights * keep
    if wanted["typical_p"] < 1:
        p = weights / weights.sum()
        surprise = -torch.log(p.clamp(min=1e-300))
        entropy = (p * surprise).sum()
        distance = torch.where(p > 0, (surprise - entropy).abs(), torch.full_like(p, float("inf")))
        keep &= _smallest(distance, weights, wanted["typical_p"])
        weights = weights * keep
    if wanted["min_p"] > 0:
        keep &= weights >= wanted["min_p"] * weights.max()
    return scores.masked_fill(~keep, _NEVER)


def _smallest(rank: torch.Tensor, weights: torch.Tensor, share: float) -> torch.Tensor:
    """The entries of the smallest `rank` whose weight first reaches `share` of all; equal ranks stay together."""
    order = torch.argsort(rank)
    mass = torch.cumsum(weights[order], -1)
    last = int(torch.searchsorted(mass, share * mass[-1]).clamp(max=len(order) - 1))
    return rank <= rank[order[last]]
