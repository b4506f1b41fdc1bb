"""The sampler against transformers (scripts/golden/make_sampling.py): what is left, and how often each is drawn."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from interlingua.engine.native._native import (
    UNUSABLE,
    SamplingParams,
    choose,
    distribution,
    kernel_names,
    philox_uniform,
)

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "golden" / "sampling.npz")
CASES: list[dict[str, Any]] = [json.loads(text) for text in GOLDEN["cases"]]
SINGLES = int(GOLDEN["singles"])
PROMPT, OUTPUT = GOLDEN["prompt"], GOLDEN["output"]
NOTHING = np.array([], np.int32)
DRAWS = 100_000


def sampling(case: dict[str, Any], seed: int = 99) -> SamplingParams:
    return SamplingParams(do_sample=True, seed=seed, **case)


def draw(logits: F32, params: SamplingParams, count: int, first: int = 0, tier: str = "") -> list[int]:
    return choose(tier, logits, PROMPT, OUTPUT, params, first, count)


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda i: f"{i} {','.join(CASES[i])}")
@pytest.mark.parametrize("tier", kernel_names())
def test_distribution_is_that_of_transformers(number: int, tier: str) -> None:
    expected = GOLDEN["probabilities"][number]
    ours = distribution(tier, GOLDEN["logits"][number], PROMPT, OUTPUT, sampling(CASES[number]))
    assert not ours[expected == 0].any(), "a token that was filtered out can be drawn"
    assert (ours[expected > 1e-30] > 0).all(), "a token that was kept cannot be drawn"
    np.testing.assert_allclose(ours, expected, rtol=5e-5, atol=1e-9)


@pytest.mark.parametrize("number", [*range(SINGLES), SINGLES, SINGLES + 7], ids=lambda i: f"{i} {','.join(CASES[i])}")
def test_draws_follow_the_distribution(number: int) -> None:
    """Chi-square of 100,000 draws against transformers' probabilities."""
    expected = GOLDEN["probabilities"][number]
    drawn = draw(GOLDEN["logits"][number], sampling(CASES[number]), DRAWS)
    counts = np.bincount(drawn, minlength=len(expected))
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


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda i: f"{i} {','.join(CASES[i])}")
def test_greedy_takes_the_best_after_the_processors(number: int) -> None:
    """Filters keep the best token, so greedy answers ignore them and follow the rest."""
    logits, case = GOLDEN["logits"][number], CASES[number]
    processors = {k: v for k, v in case.items() if k not in ("temperature", "top_k", "top_p", "typical_p", "min_p")}
    best = int(distribution("", logits, PROMPT, OUTPUT, sampling(processors)).argmax())
    assert choose("", logits, PROMPT, OUTPUT, SamplingParams(**case), 0, 1) == [best]


def test_presence_counts_the_output_whatever_frequency_counts() -> None:
    logits, presence = GOLDEN["logits"][0], {"presence_penalty": 1.5}
    plain, alone, over_output = (
        distribution("", logits, PROMPT, OUTPUT, sampling(case))
        for case in ({}, presence, {**presence, "frequency_over_output": True})
    )
    assert (alone == over_output).all() and (alone != plain).any()


def test_ties_with_the_kth_stay() -> None:
    logits = np.array([1, 3, 2, 2, 2, 0], np.float32)
    drawn = set(choose("", logits, NOTHING, NOTHING, SamplingParams(do_sample=True, top_k=2, seed=1), 0, 500))
    assert drawn == {1, 2, 3, 4}


@pytest.mark.parametrize("top_k", [120, 121, 5_000_000, 2**31 - 1])
def test_top_k_of_the_vocabulary_and_more_is_off(top_k: int) -> None:
    logits = GOLDEN["logits"][0]
    off = distribution("", logits, PROMPT, OUTPUT, sampling({}))
    assert (distribution("", logits, PROMPT, OUTPUT, sampling({"top_k": top_k})) == off).all()


@pytest.mark.parametrize("temperature", [1e-4, 1e-6, 1e-12, 1e-30, 1e-45])
def test_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = np.random.default_rng(3).normal(0, 2, 500).astype(np.float32)
    params = SamplingParams(do_sample=True, temperature=temperature, seed=4)
    assert set(choose("", logits, NOTHING, NOTHING, params, 0, 50)) == {int(logits.argmax())}


def test_huge_temperature_is_uniform() -> None:
    logits = GOLDEN["logits"][0]
    probabilities = distribution("", logits, PROMPT, OUTPUT, sampling({"temperature": 3.0e38}))
    np.testing.assert_allclose(probabilities, 1 / len(logits))


@pytest.mark.parametrize("extreme", [1e-45, 1e-38, 1e-12, 1e30, 3.4e38])
@pytest.mark.parametrize("value", [0.0, 3.0, -3.0, 9e29, -9e29])
def test_extreme_repetition_penalties_stay_numbers(extreme: float, value: float) -> None:
    """s / r over float32's range must not become inf - inf: that row would have no distribution."""
    logits = np.zeros(64, np.float32)
    logits[:8] = value
    prompt = np.arange(4, dtype=np.int32)
    params = SamplingParams(do_sample=True, repetition_penalty=extreme, seed=1)
    probabilities = distribution("", logits, prompt, NOTHING, params)
    assert np.isfinite(probabilities).all() and math.isclose(probabilities.sum(), 1)
    assert all(0 <= token < 64 for token in choose("", logits, prompt, NOTHING, params, 0, 20))


def test_extreme_logits() -> None:
    logits = np.full(100, -1e4, np.float32)
    logits[17] = 1e4
    for params in ({}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.7}, {"typical_p": 0.4}, {"min_p": 0.2}):
        assert choose("", logits, NOTHING, NOTHING, sampling(params), 0, 3) == [17] * 3


@pytest.mark.parametrize("tier", kernel_names())
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, -3e38])
@pytest.mark.parametrize("where", [slice(None), slice(7, 8), slice(99, 100)], ids=["all", "one", "last"])
def test_unusable_logits_choose_nothing(tier: str, value: float, where: slice) -> None:
    logits = np.linspace(-3, 3, 100, dtype=np.float32)
    logits[where] = value
    for params in (SamplingParams(), SamplingParams(do_sample=True, top_k=3), SamplingParams(repetition_penalty=1.5)):
        assert choose(tier, logits, PROMPT[:0], OUTPUT[:0], params, 0, 2) == [UNUSABLE] * 2


@pytest.mark.parametrize("tier", kernel_names())
def test_greedy_takes_the_first_of_the_largest(tier: str) -> None:
    """In rows of any length, wherever it lies, down to the lowest usable score, which fills what lies behind a row."""
    draw_at = random.Random(3)
    for vocab in (1, 15, 17, 64, 100, 1023, 1024, 1025, 1100, 2049, 3000):
        for lowest in (-20.0, -float(np.nextafter(np.float32(1e30), np.float32(0)))):
            first = draw_at.randrange(vocab)
            logits = np.full(vocab, lowest, np.float32)
            if first:
                later = [i for i in range(first, vocab) if draw_at.random() < 0.1]
                logits[[first, *later]] = 1.5
            assert draw(logits, SamplingParams(), 1, tier=tier) == [first]


def test_every_tier_draws_the_same() -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 3, 4099).astype(np.float32)
    for case in CASES:
        drawn = [draw(logits, sampling(case, 12), 20, 5, tier) for tier in kernel_names()]
        assert all(tokens == drawn[0] for tokens in drawn), case


def test_positions_and_seeds() -> None:
    """A draw depends on seed and position alone, not on what was drawn before."""
    logits = np.zeros(64, np.float32)
    none = NOTHING
    whole = choose("", logits, none, none, SamplingParams(do_sample=True, seed=8), 0, 50)
    assert choose("", logits, none, none, SamplingParams(do_sample=True, seed=8), 20, 30) == whole[20:]
    assert choose("", logits, none, none, SamplingParams(do_sample=True, seed=2**64 - 1), 0, 50) != whole


def test_philox_known_answers() -> None:
    """Philox4x32-10 of the all-zero counter and key starts 6627e8d5 e169c58d (Random123's known-answer file)."""
    assert philox_uniform(0, 0) == ((0x6627E8D5 << 32 | 0xE169C58D) >> 11) / 2**53


def mask_of(ids: list[int], vocab: int) -> npt.NDArray[np.uint32]:
    bits = np.zeros(-(-vocab // 32) * 32, np.uint8)
    bits[ids] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("vocab", [64, 75])  # a whole number of words, and not
def test_a_mask_leaves_the_allowed_ids_and_their_proportions(vocab: int) -> None:
    logits = np.random.default_rng(5).normal(size=vocab).astype(np.float32)
    allowed = sorted({0, 31, 32, 40, vocab - 1} - {int(logits.argmax())})
    mask = mask_of(allowed, vocab)
    best = allowed[int(logits[allowed].argmax())]
    assert choose("", logits, NOTHING, NOTHING, SamplingParams(), 0, 1, mask) == [best]
    whole = np.exp(logits[allowed].astype(np.float64))
    for case in ({}, {"top_k": vocab - 1}, {"top_p": 0.999999}, {"typical_p": 0.999999}, {"min_p": 1e-9}):
        drawn = choose("", logits, NOTHING, NOTHING, sampling(case, 3), 0, 20_000, mask)
        counts = np.array([drawn.count(i) for i in allowed])
        assert counts.sum() == len(drawn), case
        assert np.abs(counts / len(drawn) - whole / whole.sum()).max() < 0.015, case
    one = mask_of([int(logits.argmin())], vocab)
    for temperature in (1e-4, 1.0, 1e4):
        params = SamplingParams(do_sample=True, temperature=temperature, top_k=3, top_p=0.5, seed=1)
        assert set(choose("", logits, NOTHING, NOTHING, params, 0, 50, one)) == {int(logits.argmin())}
