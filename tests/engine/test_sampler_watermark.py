"""The watermark against torch's permutations and transformers' detector (scripts/golden/make_watermark.py)."""

from __future__ import annotations

import asyncio
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_engine import BLOCK_BYTES, Running, collect, essence, idle, make_request
from tiny_models import write_tiny_model
from watermarked import EACH, TOKENS, answers

from interlingua.contract.events import TokenEvent
from interlingua.contract.request import PreparedRequest, SamplingParams, Watermark
from interlingua.engine.native._native import GreenLists, distribution, green_list, kernel_names
from interlingua.engine.native._native import SamplingParams as NativeSampling
from interlingua.engine.native.watermark import detect
from interlingua.hub.files import ModelFiles, from_folder

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "golden" / "watermark.npz")
VOCAB = 49152
GAMMA = float(GOLDEN["gamma"])


def test_green_lists_are_torchs() -> None:
    cases = [(vocab, gamma, token) for vocab, gamma, ids in json.loads(str(GOLDEN["lists"])) for token in ids]
    assert len(cases) == len(GOLDEN["digests"])
    for (vocab, gamma, token), digest, count in zip(cases, GOLDEN["digests"], GOLDEN["green"], strict=True):
        mask = np.unpackbits(green_list(token, vocab, gamma), count=vocab, bitorder="little")
        assert mask.sum() == count == int(vocab * gamma)
        assert hashlib.sha256(mask.tobytes()).hexdigest() == digest, (vocab, gamma, token)


@pytest.mark.parametrize("vocab", [64, 75, 49152])
@pytest.mark.parametrize("tier", kernel_names())
def test_the_bias_goes_to_the_green_list_of_the_last_token(vocab: int, tier: str) -> None:
    logits = np.random.default_rng(1).normal(0, 1, vocab).astype(np.float32)
    params = NativeSampling(do_sample=True, watermark_gamma=0.3, watermark_delta=1.5)
    prompt = np.array([5, 9], np.int32)
    for output, last in (([], 9), ([4, 17], 17)):
        green = np.unpackbits(green_list(last, vocab, 0.3), count=vocab, bitorder="little")
        biased = logits.astype(np.float64) + 1.5 * green
        expected = np.exp(biased - biased.max())
        got = distribution(tier, logits, prompt, np.array(output, np.int32), params)
        np.testing.assert_allclose(got, expected / expected.sum(), rtol=1e-5, atol=1e-12)


def test_kept_masks_are_those_made_anew_and_stay_within_their_room() -> None:
    """Six masks fit; eight threads ask for thirty, in orders of their own, with two shares."""
    vocab, room = 4099, 6 * 513
    lists = GreenLists(vocab, room)

    def ask(thread: int) -> None:
        for i in range(300):
            token, gamma = (i * 7 + thread * 11) % 30, (0.25, 0.5)[i % 2]
            assert (lists.get(token, gamma) == green_list(token, vocab, gamma)).all()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert 513 <= lists.bytes <= room
    small = GreenLists(vocab, 1)
    assert (small.get(3, 0.5) == green_list(3, vocab, 0.5)).all() and small.bytes == 513


def test_detector_counts_as_transformers_does() -> None:
    for number, ids in enumerate(GOLDEN["answers"].tolist()):
        found = detect(ids, VOCAB, GAMMA)
        assert (found.scored, found.green) == (GOLDEN["scored"][number], GOLDEN["hits"][number])
        assert found.z == pytest.approx(GOLDEN["z"][number], abs=1e-12)
        assert found.p_value == pytest.approx(GOLDEN["p"][number], rel=1e-9)
        assert found.watermarked == (number < EACH)


def test_golden_answers_tell_the_two_kinds_apart() -> None:
    assert (GOLDEN["z"][:EACH] > 4).all() and (np.abs(GOLDEN["z"][EACH:]) < 3).all()


def test_the_detector_needs_two_tokens() -> None:
    with pytest.raises(ValueError, match="two tokens"):
        detect([3], VOCAB, GAMMA)


async def test_fresh_answers_tell_the_two_kinds_apart() -> None:
    """What this build generates, judged by the detector that the tests above hold to transformers'."""
    ids = await asyncio.wait_for(answers(GAMMA, float(Watermark().delta)), 300)
    assert all(len(answer) == TOKENS for answer in ids)
    z = [detect(answer, VOCAB, GAMMA).z for answer in ids]
    assert min(z[:EACH]) > 4
    assert max(abs(value) for value in z[EACH:]) < 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return from_folder(write_tiny_model("gqa_tied", tmp_path_factory.mktemp("tiny")), "tiny")


def marked(number: int, new: int = 60) -> PreparedRequest:
    sampling = SamplingParams(do_sample=number % 3 != 0, seed=number, watermark=Watermark(0.25 + number % 2 / 4, 3.0))
    return replace(make_request(number, 40, new, stops=False), sampling=sampling)


async def test_answers_survive_preemption_and_replay(tiny: ModelFiles) -> None:
    requests = [marked(number) for number in range(12)]
    async with Running(tiny, prefix_cache=False) as engine:
        alone = [essence(await collect(engine, request)) for request in requests]
    async with Running(tiny, kv_memory=8 * BLOCK_BYTES) as engine:
        together = await asyncio.wait_for(asyncio.gather(*(collect(engine, request) for request in requests)), 60)
        assert engine.stats().preemptions_total > 0
        await idle(engine)
    assert [essence(events) for events in together] == alone
    plain = replace(requests[1], sampling=replace(requests[1].sampling, watermark=None))
    async with Running(tiny) as engine:
        assert essence(await collect(engine, plain)) != alone[1], "the watermark changed nothing"


async def test_every_tier_marks_alike(tiny: ModelFiles) -> None:
    request = marked(1)
    found = []
    for tier in kernel_names():
        async with Running(tiny, isa=tier) as engine:
            found.append(essence(await collect(engine, request)))
    assert all(events == found[0] for events in found)


async def test_logprobs_are_the_raw_models(tiny: ModelFiles) -> None:
    request = replace(marked(3, 1), top_n_tokens=96)
    async with Running(tiny) as engine:
        token = next(e for e in await collect(engine, request) if isinstance(e, TokenEvent))
        plain = replace(request, sampling=SamplingParams())
        raw = next(e for e in await collect(engine, plain) if isinstance(e, TokenEvent))
    assert token.top == raw.top
    assert dict(token.top)[token.token_id] == token.logprob


def test_more_green_pairs_than_a_byte_counts() -> None:
    """Every pair (7, green) and (green, 7) differs from the others; those behind 7 alone are over 256."""
    green = np.flatnonzero(np.unpackbits(green_list(7, 2000, 0.5), count=2000, bitorder="little"))[:600].tolist()
    found = detect([token for favoured in green for token in (7, favoured)], 2000, 0.5)
    behind = sum(green_list(token, 2000, 0.5)[0].item() >> 7 & 1 for token in green[:-1] if token != 7)
    assert found.scored == 1199
    assert found.green == 600 + behind
