"""Every limit and default between a received request and the engine."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest
from byte_model import BOS, EOS, VOCAB_SIZE, ByteTokenizer, request

from interlingua.contract.engine import EngineInfo
from interlingua.contract.errors import NotSupportedError, ValidationError
from interlingua.contract.request import (
    GenerationRequest,
    Grammar,
    MediaPart,
    PreparedRequest,
    SamplingRequest,
    TextPart,
    TextPrompt,
    TokenPrompt,
    Watermark,
)
from interlingua.service.prepare import MAX_DRAWN_SEED, Limits, ModelDefaults, Preparer

CONTEXT = 100


def preparer(
    limits: Limits | None = None,
    defaults: ModelDefaults | None = None,
    bos_id: int | None = BOS,
    unsupported: frozenset[str] = frozenset(),
    watermark: Watermark | None = None,
) -> Preparer:
    info = EngineInfo("test", VOCAB_SIZE, CONTEXT, "none", "cpu", unsupported=unsupported)
    return Preparer(ByteTokenizer(bos_id), info, limits or Limits(), defaults, watermark=watermark)


def prepare(received: GenerationRequest, using: Preparer | None = None) -> PreparedRequest:
    using = using or preparer()
    using.check(received)
    return using.finish(received, using.tokenize(received), 0.0)


def refusal(received: GenerationRequest, using: Preparer | None = None) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        prepare(received, using)
    return caught.value


# --- the prompt ------------------------------------------------------------------------------------------


def test_tokens_past_the_models_vocabulary():
    """A tokenizer may be wider than the model: such a prompt is refused, such an end token is never waited for."""
    narrow = Preparer(ByteTokenizer(BOS), EngineInfo("test", 98, CONTEXT, "none", "cpu"), Limits())
    assert refusal(request("aba"), narrow).field == "inputs"  # its BOS is 256
    wide = Preparer(ByteTokenizer(None), EngineInfo("test", 98, CONTEXT, "none", "cpu"), Limits())
    assert prepare(request("aaa"), wide).stop_token_ids == frozenset()


def test_text_gets_the_tokenizers_special_tokens():
    assert prepare(request("ab")).prompt_ids == (BOS, 97, 98)


def test_parts_are_joined_with_nothing():
    received = dataclasses.replace(request(), prompt=TextPrompt((TextPart("a"), TextPart("b"))))
    assert prepare(received).prompt_ids == (BOS, 97, 98)


def test_no_second_bos():
    assert prepare(request("<s>ab")).prompt_ids == (BOS, 97, 98)


def test_ids_pass_as_they_are():
    assert prepare(dataclasses.replace(request(), prompt=TokenPrompt((97, EOS)))).prompt_ids == (97, EOS)


@pytest.mark.parametrize(("ids", "shown"), [((), "empty"), ((5, -1), "-1"), ((VOCAB_SIZE,), str(VOCAB_SIZE))])
def test_ids_outside_the_vocabulary_are_refused(ids: tuple[int, ...], shown: str):
    problem = refusal(dataclasses.replace(request(), prompt=TokenPrompt(ids)))
    assert problem.field == "input_id" and shown in problem.problem


@pytest.mark.parametrize("text", ["", "a\ud83d", "\ude00"])
def test_texts_that_are_none(text: str):
    assert refusal(request(text)).field == "inputs"


def test_media_is_refused_by_the_name_of_its_field():
    part = MediaPart("image", "data", "AAAA", "inputs[1].image_url", 100)
    received = dataclasses.replace(request(), prompt=TextPrompt((TextPart("a"), part)))
    problem = refusal(received)
    assert isinstance(problem, NotSupportedError) and problem.field == "inputs[1].image_url"


@pytest.mark.parametrize(
    ("truncate", "bos_id", "expected"),
    [
        (3, BOS, (BOS, 99, 100)),
        (2, BOS, (BOS, 100)),
        (1, BOS, (BOS,)),
        (5, BOS, (BOS, 97, 98, 99, 100)),
        (50, BOS, (BOS, 97, 98, 99, 100)),
        (None, BOS, (BOS, 97, 98, 99, 100)),
        (3, None, (98, 99, 100)),
        (1, None, (100,)),
    ],
)
def test_truncate_keeps_the_last_tokens_and_an_added_bos(
    truncate: int | None, bos_id: int | None, expected: tuple[int, ...]
):
    assert prepare(request("abcd", truncate=truncate), preparer(bos_id=bos_id)).prompt_ids == expected


def test_truncate_drops_a_bos_that_the_text_itself_wrote():
    assert prepare(request("<s>abcd", truncate=2)).prompt_ids == (99, 100)


# --- lengths ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (Limits(), CONTEXT - 1),
        (Limits(max_seq_len=50), 49),
        (Limits(max_seq_len=5000), CONTEXT - 1),
        (Limits(max_input_token_len=20), 20),
        (Limits(max_input_token_len=5000), CONTEXT - 1),
        (Limits(max_seq_len=50, max_input_token_len=60), 49),
        (Limits(max_prompt_tokens=7), 7),
    ],
)
def test_prompts_pass_up_to_the_least_limit(limits: Limits, most: int):
    using = preparer(limits)
    assert len(prepare(request("x" * (most - 1)), using).prompt_ids) == most
    problem = refusal(request("x" * most), using)
    assert problem.field == "inputs" and str(most) in problem.problem and str(most + 1) in problem.problem


def test_truncation_comes_before_the_limit():
    using = preparer(Limits(max_input_token_len=20))
    assert len(prepare(request("x" * 5000, truncate=20), using).prompt_ids) == 20


@pytest.mark.parametrize(
    ("truncation", "bos_id", "expected"),
    [
        ("head", BOS, (BOS, *b"abc")),
        ("tail", BOS, (BOS, *b"fgh")),
        ("head", None, tuple(b"abcd")),
        ("tail", None, tuple(b"efgh")),
    ],
)
def test_an_operator_may_have_prompts_cut_instead_of_refused(
    truncation: Literal["head", "tail"], bos_id: int | None, expected: tuple[int, ...]
):
    using = preparer(Limits(max_input_token_len=4, truncation=truncation), bos_id=bos_id)
    assert prepare(request("abcdefgh"), using).prompt_ids == expected
    fits = "abc" if bos_id else "abcd"
    assert prepare(request(fits), using).prompt_ids == tuple(using._tokenizer.encode(fits))
    assert prepare(request("abcdefgh", truncate=2), using).prompt_ids == ((BOS, *b"h") if bos_id else tuple(b"gh"))
    ids = dataclasses.replace(request(), prompt=TokenPrompt(tuple(b"abcdefgh")))
    assert prepare(ids, using).prompt_ids == tuple(b"abcd" if truncation == "head" else b"efgh")


def test_too_many_characters_are_refused_before_tokenising():
    using = preparer(Limits(max_prompt_chars=10))
    assert "10" in refusal(request("x" * 11, truncate=2), using).problem


@pytest.mark.parametrize(
    ("asked", "limits", "given"),
    [
        (None, Limits(), CONTEXT - 3),
        (10, Limits(), 10),
        (2**31 - 1, Limits(), CONTEXT - 3),
        (50, Limits(max_iter_times=7), 7),
        (None, Limits(max_iter_times=7), 7),
        (None, Limits(max_seq_len=20), 17),
        (None, Limits(max_seq_len=4), 1),
    ],
)
def test_output_ends_at_the_room_that_is_left(asked: int | None, limits: Limits, given: int):
    assert prepare(request("ab", max_new_tokens=asked), preparer(limits)).max_new_tokens == given


# --- ends ------------------------------------------------------------------------------------------------


def test_stop_ids_are_eos_and_the_clients():
    assert prepare(request()).stop_token_ids == {EOS}
    assert prepare(request(stop_token_ids=(5,))).stop_token_ids == {5, EOS}
    assert prepare(request(stop_token_ids=(5,), ignore_eos=True)).stop_token_ids == {5}
    assert prepare(request(ignore_eos=True)).stop_token_ids == frozenset()


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE])
def test_stop_ids_outside_the_vocabulary(token_id: int):
    names = (("stop_token_ids", "parameters.stop_token_ids"),)
    problem = refusal(request(stop_token_ids=(token_id,), field_names=names))
    assert problem.field == "parameters.stop_token_ids" and str(token_id) in problem.problem


# --- sampling --------------------------------------------------------------------------------------------

MODEL = ModelDefaults(temperature=0.6, top_k=20, top_p=0.9, repetition_penalty=1.1)


def sampled(**given: object) -> SamplingRequest:
    return SamplingRequest(do_sample=True, **given)  # type: ignore[arg-type]


def test_model_defaults_fill_what_is_absent_when_sampling():
    params = prepare(request(sampling=sampled(top_p=0.5)), preparer(defaults=MODEL)).sampling
    assert (params.temperature, params.top_k, params.top_p, params.repetition_penalty) == (0.6, 20, 0.5, 1.1)


def test_model_defaults_can_be_switched_off_by_the_dialect():
    received = request(sampling=sampled(use_model_defaults=False, default_top_k=7))
    params = prepare(received, preparer(defaults=MODEL)).sampling
    assert (params.temperature, params.top_k, params.top_p, params.repetition_penalty) == (1.0, 7, 1.0, 1.0)


def test_the_dialects_own_default_comes_after_the_models():
    received = request(sampling=sampled(default_top_k=100))
    assert prepare(received).sampling.top_k == 100
    assert prepare(received, preparer(defaults=MODEL)).sampling.top_k == 20
    old = preparer(defaults=ModelDefaults(weights_top_k=50))  # config.json stands between the two
    assert prepare(received, old).sampling.top_k == 50
    assert prepare(request(sampling=sampled()), old).sampling.top_k == 0
    both = preparer(defaults=dataclasses.replace(MODEL, weights_top_k=50))
    assert prepare(received, both).sampling.top_k == 20


def test_greedy_takes_no_defaults_and_no_warpers():
    given = SamplingRequest(temperature=0.5, top_k=3, top_p=0.5, repetition_penalty=1.3)
    params = prepare(request(sampling=given), preparer(defaults=MODEL)).sampling
    assert (params.do_sample, params.temperature, params.top_k, params.top_p) == (False, 1.0, 0, 1.0)
    assert params.repetition_penalty == 1.3


@pytest.mark.parametrize("top_k", [VOCAB_SIZE, 5_000_000])
def test_top_k_of_the_vocabulary_or_more_is_off(top_k: int):
    assert prepare(request(sampling=sampled(top_k=top_k))).sampling.top_k == 0


def test_seeds():
    assert prepare(request(sampling=SamplingRequest(seed=2**64 - 1))).sampling.seed == 2**64 - 1
    assert prepare(request(sampling=SamplingRequest(seed=0))).sampling.seed == 0
    drawn = {prepare(request()).sampling.seed for _ in range(50)}
    assert len(drawn) == 50 and all(1 <= seed <= MAX_DRAWN_SEED for seed in drawn)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, ModelDefaults()),
        (
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05},
            ModelDefaults(temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.05),
        ),
        ({"temperature": 1, "top_k": 0, "top_p": 1}, ModelDefaults(temperature=1.0, top_k=0, top_p=1.0)),
        # what no request could have is left out
        ({"temperature": 0.0, "top_k": -1, "top_p": 0.0, "repetition_penalty": 0}, ModelDefaults()),
        ({"temperature": None, "top_k": "20", "top_p": True, "repetition_penalty": []}, ModelDefaults()),
        ({"temperature": float("nan"), "top_k": 2.5, "top_p": 1.5}, ModelDefaults()),
    ],
)
def test_reading_generation_config(config: dict[str, object], expected: ModelDefaults):
    assert ModelDefaults.from_files(config, {}) == expected
    assert ModelDefaults.from_files({}, config) == ModelDefaults(weights_top_k=expected.top_k)


# --- what cannot be honoured -----------------------------------------------------------------------------


def test_a_watermark_has_the_servers_share_and_strength():
    assert prepare(request()).sampling.watermark is None
    for sampled in (False, True):
        wanted = SamplingRequest(do_sample=sampled, watermark=True)
        assert prepare(request(sampling=wanted)).sampling.watermark == Watermark(0.5, 2.0)
        using = preparer(watermark=Watermark(0.25, 4.0))
        assert prepare(request(sampling=wanted), using).sampling.watermark == Watermark(0.25, 4.0)


def test_what_the_engine_lacks_is_refused_unless_neutral():
    using = preparer(unsupported=frozenset({"frequency_penalty", "logit_bias", "top_n_tokens", "grammar"}))
    prepare(request(), using)
    prepare(request(sampling=SamplingRequest(frequency_penalty=0.0)), using)
    names = (("frequency_penalty", "parameters.frequency_penalty"),)
    for received, field in (
        (
            request(sampling=SamplingRequest(frequency_penalty=0.5), field_names=names),
            "parameters.frequency_penalty",
        ),
        (request(sampling=SamplingRequest(logit_bias=((1, 1.0),))), "logit_bias"),
        (request(top_n_tokens=2), "top_n_tokens"),
        (request(grammar=Grammar("regex", "a")), "grammar"),
    ):
        problem = refusal(received, using)
        assert isinstance(problem, NotSupportedError) and problem.field == field
