"""The sampler against a plain numpy reading of each rule: which tokens survive, and how often each is drawn."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from interlingua.engine.native._native import SamplingParams, choose, kernel_names, philox_uniform

F64 = npt.NDArray[np.float64]
PROMPT = np.array([1, 2, 2, 5], np.int32)
DRAWS = 20_000


def softmax(scores: F64) -> F64:
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum())


def reference(logits: npt.NDArray[np.float32], params: dict[str, Any]) -> F64:
    """Probabilities after every processor, in the documented order (float64)."""
    s = logits.astype(np.float64)
    seen = Counter(PROMPT.tolist())
    r = params.get("repetition_penalty", 1.0)
    for token, times in seen.items():
        s[token] = s[token] * r if s[token] < 0 else s[token] / r
        if not params.get("frequency_over_output"):
            s[token] -= params.get("frequency_penalty", 0.0) * times / len(PROMPT)
    for token, bias in params.get("logit_bias", []):
        s[token] += bias
    s /= params.get("temperature", 1.0)
    k = params.get("top_k", 0)
    if 0 < k < len(s):
        s[s < np.sort(s)[-k]] = -np.inf
    if params.get("top_p", 1.0) < 1:
        p, order = softmax(s), np.argsort(-s, kind="stable")
        reached = np.cumsum(p[order]) >= params["top_p"]
        s[order[int(np.argmax(reached)) + 1 :]] = -np.inf
    if params.get("typical_p", 1.0) < 1:  # Meister et al. 2023
        p = softmax(s)
        surprise = np.where(p > 0, -np.log(np.where(p > 0, p, 1)), np.inf)
        entropy = (p[p > 0] * surprise[p > 0]).sum()
        order = np.argsort(np.abs(surprise - entropy), kind="stable")
        reached = np.cumsum(p[order]) >= params["typical_p"]
        s[order[int(np.argmax(reached)) + 1 :]] = -np.inf
    p = softmax(s)
    if params.get("min_p", 0.0) > 0:
        p[p < params["min_p"] * p.max()] = 0
    return np.asarray(p / p.sum())


CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 5},
    {"top_k": 5_000_000},
    {"top_p": 0.7},
    {"top_p": 0.001},
    {"typical_p": 0.4},
    {"min_p": 0.2},
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 0.5},
    {"frequency_penalty": 1.5},
    {"logit_bias": [(7, 3.0), (0, -4.0)]},
    {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "typical_p": 0.8, "repetition_penalty": 1.2},
]


@pytest.mark.parametrize("params", CASES, ids=str)
@pytest.mark.parametrize("vocab", [30, 1000])
def test_draws_follow_the_reference(params: dict[str, Any], vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = rng.normal(0, 2, vocab).astype(np.float32)
    expected = reference(logits, params)
    drawn = choose("", logits, PROMPT, SamplingParams(do_sample=True, seed=99, **params), 0, DRAWS)
    counts = np.bincount(drawn, minlength=vocab)
    assert not counts[expected == 0].any(), "a token that was filtered out has been drawn"
    big = expected * DRAWS >= 5
    chi2 = ((counts[big] - expected[big] * DRAWS) ** 2 / (expected[big] * DRAWS)).sum()
    rest = expected[~big].sum() * DRAWS
    if rest >= 5:
        chi2 += (counts[~big].sum() - rest) ** 2 / rest
    freedom = max(int(big.sum()) - 1 + (rest >= 5), 1)
    # Wilson-Hilferty: about one chance in a million; seeds are fixed, so this never flickers.
    z = ((chi2 / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert z < 4.8, f"chi-square {chi2:.1f} over {freedom} degrees of freedom"


def test_ties_with_the_kth_stay() -> None:
    logits = np.array([1, 3, 2, 2, 2, 0], np.float32)
    drawn = set(choose("", logits, PROMPT[:1], SamplingParams(do_sample=True, top_k=2, seed=1), 0, 500))
    assert drawn == {1, 2, 3, 4}


def test_tiny_temperature_is_greedy() -> None:
    logits = np.random.default_rng(3).normal(0, 2, 500).astype(np.float32)
    for temperature in (1e-4, 1e-30, 1e-45):
        params = SamplingParams(do_sample=True, temperature=temperature, seed=4)
        assert set(choose("", logits, PROMPT, params, 0, 50)) == {int(logits.argmax())}


def test_extreme_logits() -> None:
    logits = np.full(100, -1e4, np.float32)
    logits[17] = 1e4
    for params in CASES:
        assert choose("", logits, PROMPT, SamplingParams(do_sample=True, seed=2, **params), 0, 3) == [17] * 3


def test_every_tier_draws_the_same() -> None:
    logits = np.random.default_rng(5).normal(0, 3, 4099).astype(np.float32)
    for params in CASES:
        drawn = [
            choose(tier, logits, PROMPT, SamplingParams(do_sample=True, seed=12, **params), 5, 40)
            for tier in kernel_names()
        ]
        assert all(tokens == drawn[0] for tokens in drawn), params


def test_positions_and_seeds() -> None:
    """A draw depends on seed and position alone, not on what was drawn before."""
    logits = np.zeros(64, np.float32)
    whole = choose("", logits, PROMPT, SamplingParams(do_sample=True, seed=8), 0, 50)
    assert choose("", logits, PROMPT, SamplingParams(do_sample=True, seed=8), 20, 30) == whole[20:]
    assert choose("", logits, PROMPT, SamplingParams(do_sample=True, seed=2**64 - 1), 0, 50) != whole


def test_philox_known_answers() -> None:
    """Philox4x32-10 of the all-zero counter and key starts 6627e8d5 e169c58d (Random123's known-answer file)."""
    assert philox_uniform(0, 0) == ((0x6627E8D5 << 32 | 0xE169C58D) >> 11) / 2**53


def mask_of(ids: list[int], vocab: int) -> np.ndarray:
    bits = np.zeros(-(-vocab // 32) * 32, np.uint8)
    bits[ids] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("vocab", [64, 75])  # a whole number of words, and not
def test_a_mask_leaves_the_allowed_ids_and_their_proportions(vocab: int):
    logits = np.random.default_rng(5).normal(size=vocab).astype(np.float32)
    allowed = sorted({0, 31, 32, 40, vocab - 1} - {int(logits.argmax())})
    mask = mask_of(allowed, vocab)
    best = allowed[int(logits[allowed].argmax())]
    assert choose("", logits, PROMPT, SamplingParams(), 0, 1, mask) == [best]
    whole = np.exp(logits[allowed].astype(np.float64))
    for params in ({}, {"top_k": vocab - 1}, {"top_p": 0.999999}, {"typical_p": 0.999999}, {"min_p": 1e-9}):
        drawn = choose("", logits, PROMPT, SamplingParams(do_sample=True, seed=3, **params), 0, 20_000, mask)
        counts = np.array([drawn.count(i) for i in allowed])
        assert counts.sum() == len(drawn), params
        assert np.abs(counts / len(drawn) - whole / whole.sum()).max() < 0.015, params
    one = mask_of([int(logits.argmin())], vocab)
    for temperature in (1e-4, 1.0, 1e4):
        params = SamplingParams(do_sample=True, temperature=temperature, top_k=3, top_p=0.5, seed=1)
        assert set(choose("", logits, PROMPT, params, 0, 50, one)) == {int(logits.argmin())}
