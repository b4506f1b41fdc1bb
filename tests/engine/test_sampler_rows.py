"""Rows of one batch are isolated: what one request asks for, or what breaks it, never touches its neighbours."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_engine import Running, collect, essence, idle, make_request
from tiny_models import tiny_weights, write_safetensors, write_tiny_model

from interlingua.contract.errors import GenerationError
from interlingua.contract.events import FailedEvent, FinishedEvent, FinishReason, StartedEvent, TokenEvent
from interlingua.contract.request import PreparedRequest, SamplingParams, Watermark
from interlingua.hub.files import ModelFiles, from_folder

VOCAB = 128
POISONED = 77  # the token whose embedding is NaN

EVERY_PARAMETER: list[dict[str, object]] = [
    {},
    {"do_sample": True},
    {"do_sample": True, "temperature": 1e-6},
    {"do_sample": True, "temperature": 1e-30},
    {"do_sample": True, "temperature": 50.0},
    {"do_sample": True, "top_k": 1},
    {"do_sample": True, "top_k": 7},
    {"do_sample": True, "top_k": VOCAB},
    {"do_sample": True, "top_k": 2**31 - 1},
    {"do_sample": True, "top_p": 1e-6},
    {"do_sample": True, "top_p": 0.8},
    {"do_sample": True, "typical_p": 0.3},
    {"do_sample": True, "min_p": 0.1},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 1e-12},
    {"repetition_penalty": 3.4e38},
    {"frequency_penalty": 2.0},
    {"frequency_penalty": -1.9},
    {"frequency_penalty": 2.0, "frequency_over": "output"},
    {"frequency_penalty": -2.0, "frequency_over": "output"},
    {"presence_penalty": 2.0, "frequency_over": "output"},
    {"logit_bias": ((5, 100.0),)},
    {"logit_bias": tuple((i, -100.0) for i in range(100))},
    {"watermark": Watermark()},
    {"watermark": Watermark(0.25, 6.0), "do_sample": True},
    {"watermark": Watermark(0.9, 1.0), "do_sample": True, "top_k": 20, "repetition_penalty": 1.2},
    {"do_sample": True, "temperature": 0.7, "top_k": 30, "top_p": 0.9, "typical_p": 0.9, "min_p": 0.01},
    {"do_sample": True, "frequency_penalty": 0.5, "presence_penalty": 0.5, "frequency_over": "output"},
]
WHOLE: list[dict[str, object]] = [  # fields of the request itself
    {"top_n_tokens": 5},
    {"top_n_tokens": VOCAB + 1},
    {"prompt_logprobs": True},
    {"min_new_tokens": 20, "stop_token_ids": frozenset(range(2, 60))},
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return from_folder(write_tiny_model("mha_untied", tmp_path_factory.mktemp("tiny")), "tiny")


def requests() -> list[PreparedRequest]:
    """32 requests, each with parameters of its own, of different lengths."""
    found = [
        replace(
            make_request(i, 4 + 7 * i % 50, 24, stops=False),
            sampling=SamplingParams(**{"seed": i, **kind}),  # type: ignore[arg-type]
            top_n_tokens=i % 2,
        )
        for i, kind in enumerate(EVERY_PARAMETER)
    ]
    found += [replace(make_request(90 + i, 20, 24, stops=False), **kind) for i, kind in enumerate(WHOLE)]  # type: ignore[arg-type]
    assert len(found) == 32
    return found


async def test_thirty_two_kinds_of_rows_answer_as_each_alone(tiny: ModelFiles) -> None:
    rows = requests()
    async with Running(tiny, prefix_cache=False) as engine:
        alone = [essence(await collect(engine, request)) for request in rows]
    async with Running(tiny, max_batch_tokens=4096) as engine:
        together = await asyncio.wait_for(asyncio.gather(*(collect(engine, request) for request in rows)), 60)
        await idle(engine)
    for request, events, expected in zip(rows, together, alone, strict=True):
        assert essence(events) == expected, request.sampling
        assert isinstance(events[-1], FinishedEvent)


async def test_alternatives_are_sorted_and_never_fewer_than_asked(tiny: ModelFiles) -> None:
    """More than the vocabulary: all of it. The values are the model's own, whatever else is asked for."""
    plain = replace(make_request(3, 9, 4, sample=False), top_n_tokens=1000)
    sampling = SamplingParams(do_sample=True, top_k=1, repetition_penalty=1.7, watermark=Watermark(), seed=2)
    async with Running(tiny) as engine:
        first = await collect(engine, plain)
        other = await collect(engine, replace(plain, sampling=sampling))
        few = await collect(engine, replace(plain, top_n_tokens=70))
    tokens = [event for event in first if isinstance(event, TokenEvent)]
    for token in tokens:
        assert len(token.top) == VOCAB and len({i for i, _ in token.top}) == VOCAB
        values = [value for _, value in token.top]
        assert values == sorted(values, reverse=True) and all(value <= 0 for value in values)
        assert abs(np.exp(values).sum() - 1) < 1e-4
        assert dict(token.top)[token.token_id] == token.logprob
    assert next(e for e in other if isinstance(e, TokenEvent)).top == tokens[0].top
    assert next(e for e in few if isinstance(e, TokenEvent)).top == tokens[0].top[:70]


async def test_ties_at_the_last_rank_are_all_reported(tmp_path: Path) -> None:
    """A model whose head has a hundred equal rows, far more than any fixed room for alternatives."""
    folder = write_tiny_model("mha_untied", tmp_path)
    weights = tiny_weights("mha_untied")
    weights["lm_head.weight"][20:120] = weights["lm_head.weight"][20]
    write_safetensors(folder / "model.safetensors", weights, "float32")
    async with Running(from_folder(folder, "tied"), quantize="none") as engine:
        for seed in range(20):  # until the equal ones are at the last rank
            request = replace(make_request(seed, 9, 8, sample=False, stops=False), top_n_tokens=30)
            tops = [event.top for event in await collect(engine, request) if isinstance(event, TokenEvent)]
            for top in tops:
                equal = [i for i, value in top if value == top[-1][1]]
                assert len(top) == 30 or equal == list(range(20, 120))
            if any(len(top) > 100 for top in tops):
                return
    raise AssertionError("the equal rows never met the last rank")


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    folder = write_tiny_model("mha_untied", tmp_path_factory.mktemp("poisoned"))
    weights = tiny_weights("mha_untied")
    weights["model.embed_tokens.weight"][POISONED] = np.nan
    write_safetensors(folder / "model.safetensors", weights, "float32")
    return from_folder(folder, "poisoned")


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
async def test_a_row_without_finite_logits_ends_alone(tiny: ModelFiles, poisoned: ModelFiles, quantize: str) -> None:
    def healthy(number: int) -> PreparedRequest:
        """A request that never meets the poisoned token."""
        request = make_request(number, 12, 16, logprobs=number % 2 == 0, stops=False)
        ids = tuple(3 if i == POISONED else i for i in request.prompt_ids)
        return replace(request, prompt_ids=ids, sampling=replace(request.sampling, logit_bias=((POISONED, -1e4),)))

    good = [healthy(number) for number in range(8)]
    plain = replace(good[1], prompt_logprobs=False)
    bad = [
        replace(plain, prompt_ids=(*plain.prompt_ids, POISONED)),
        replace(plain, prompt_ids=(4, POISONED, 5, 6), prompt_logprobs=True),
        replace(plain, prompt_ids=(POISONED,), sampling=SamplingParams()),
    ]
    late = replace(plain, sampling=SamplingParams(logit_bias=((POISONED, 1e4),)))
    async with Running(tiny, quantize=quantize) as engine:
        alone = [essence(await collect(engine, request)) for request in good]
    async with Running(poisoned, quantize=quantize) as engine:
        answers = await asyncio.wait_for(
            asyncio.gather(*(collect(engine, request) for request in [*good, *bad, late])), 60
        )
        again = await collect(engine, good[3])
        await idle(engine)
    assert [essence(events) for events in answers[: len(good)]] == alone
    assert essence(again) == alone[3]
    failed = answers[len(good) :]
    assert all([type(event) for event in events] == [FailedEvent] for events in failed[:-1])
    # The last chose the poisoned token itself, so the step after that fails.
    assert [type(event) for event in failed[-1]] == [StartedEvent, TokenEvent, FailedEvent]
    for events in failed:
        failure = events[-1]
        assert isinstance(failure, FailedEvent) and isinstance(failure.error, GenerationError)
        assert "not finite" in failure.error.message


async def test_a_fault_in_a_requests_processors_ends_it_alone(
    tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the engine's own check of ids out of the way, the bias of a token that does not exist throws in the step."""
    good = [make_request(number, 10 + number, 20, stops=False) for number in range(6)]
    bad = [
        replace(good[0], sampling=SamplingParams(logit_bias=((token, 1.0),), do_sample=token > 0))
        for token in (VOCAB, -1, 2**31 - 1)
    ]
    bad.append(replace(good[1], stop_token_ids=frozenset({VOCAB}), min_new_tokens=3))
    async with Running(tiny) as engine:
        alone = [essence(await collect(engine, request)) for request in good]
    monkeypatch.setattr("interlingua.engine.native.engine.NativeEngine._misfit", lambda *_: "")
    async with Running(tiny) as engine:
        answers = await asyncio.wait_for(asyncio.gather(*(collect(engine, r) for r in [*bad, *good])), 60)
        await idle(engine)
    assert [essence(events) for events in answers[len(bad) :]] == alone
    for events in answers[: len(bad)]:
        (failure,) = events
        assert isinstance(failure, FailedEvent) and isinstance(failure.error, GenerationError)
        assert "decoding state" in failure.error.message


async def test_any_of_several_ends_stops_and_none_comes_too_early(tiny: ModelFiles) -> None:
    """Ends as generation_config.json lists them, and a minimum length that holds all of them back."""
    free = make_request(6, 20, 60, stops=False)
    async with Running(tiny) as engine:
        ids = [e.token_id for e in await collect(engine, free) if isinstance(e, TokenEvent)]
        for end in dict.fromkeys(ids):
            ended = replace(free, stop_token_ids=frozenset({end, VOCAB - 1, 0}))
            tokens = [e for e in await collect(engine, ended) if isinstance(e, TokenEvent)]
            stop = next(i for i, token in enumerate(ids) if token in ended.stop_token_ids)
            assert [token.token_id for token in tokens] == ids[: stop + 1]
            assert tokens[-1].finish_reason is (FinishReason.EOS if stop + 1 < 60 else FinishReason.LENGTH)
        many = frozenset(range(0, VOCAB, 2))
        held = replace(free, stop_token_ids=many, min_new_tokens=25)
        tokens = [e for e in await collect(engine, held) if isinstance(e, TokenEvent)]
    assert len(tokens) > 25 and not many & {token.token_id for token in tokens[:25]}
    assert tokens[-1].finish_reason is FinishReason.EOS and tokens[-1].token_id in many
    assert not many & {token.token_id for token in tokens[:-1]}


async def test_prompt_logprobs_do_not_depend_on_the_cache(tiny: ModelFiles) -> None:
    """The same call twice, cold and warm, and after a request that filled the cache without scoring."""
    scored = make_request(5, 110, 6, logprobs=True)
    plain = replace(scored, prompt_logprobs=False)
    async with Running(tiny, prefix_cache=False) as engine:
        expected = essence(await collect(engine, scored))
    async with Running(tiny, max_batch_tokens=40) as engine:
        await collect(engine, plain)
        warm = await collect(engine, plain)
        answers = [essence(await collect(engine, scored)) for _ in range(2)]
        await idle(engine)
    assert isinstance(warm[0], StartedEvent) and warm[0].cached_tokens >= 96
    assert answers == [expected, expected]
    started = expected[0]
    assert isinstance(started, tuple)
    logprobs = started[1]
    assert len(logprobs) == 110 and logprobs[0] is None and all(value <= 0 for value in logprobs[1:])
