"""Answers and events of both dialects: keys, their order, values, framing, headers, errors."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from wire import call, find_route
from wire_cases import GENERATE, INVOCATIONS, MODEL, ROOT, STREAM, TRITON, TRITON_STREAM

from interlingua.contract import errors
from interlingua.contract.dialect import Encoder
from interlingua.contract.events import (
    Answer,
    FailedEvent,
    FinishReason,
    Summary,
    TextEvent,
    TextStarted,
    TextToken,
    Timing,
    TokenText,
    fold,
)

# Binary fractions (7.8125, 15.625, 93.75 ms), so that cutting to whole milliseconds is predictable.
TIMING = Timing(arrived=64.0, queued=64 + 1 / 128, started=64 + 3 / 128, first_token=64.05, finished=64 + 15 / 128)
PREFILL = (TokenText(1, "<s>", None, True), TokenText(7, "Hi", -1.25, False))
TOP = (TokenText(9, " sea", -0.5, False), TokenText(8, " sun", -0.75, False))


def stream(
    texts: tuple[str, ...] = (" sea", " a", "</s>"), reason: FinishReason = FinishReason.EOS
) -> tuple[TextEvent, ...]:
    """Events of an answer whose last token is special."""
    last = len(texts)
    text = "".join(texts[:-1])
    summary = Summary(text, reason, last, 2, 2**64 - 1, TIMING)
    tokens = [
        TextToken(
            index=place,
            id=place + 10,
            text=text,
            logprob=-0.5 * place,
            special=place == last,
            elapsed_ms=16.6 if place == 1 else 7.4,
            top=TOP,
            summary=summary if place == last else None,
        )
        for place, text in enumerate(texts, 1)
    ]
    return (TextStarted(2, summary.seed, PREFILL, TIMING), *tokens)


EVENTS = stream()


def body(path: str, **parameters: Any) -> bytes:
    prompt = "text_input" if path.startswith("/v2") else "inputs"
    return json.dumps({prompt: "Hi", "parameters": parameters}).encode()


def encoder(path: str, **parameters: Any) -> Encoder:
    return call(path, body(path, **parameters)).encoder


def answer(path: str, events: tuple[TextEvent, ...] = EVENTS, **parameters: Any) -> Any:
    reply = encoder(path, **parameters).answer(fold(events))
    assert (reply.status, reply.media_type) == (200, "application/json")
    return json.loads(reply.body)


def frames(path: str, events: tuple[TextEvent, ...] = EVENTS, **parameters: Any) -> list[Any]:
    encode = encoder(path, **parameters)
    data = b"".join([*map(encode.event, events), encode.end()])
    pieces = data.split(b"\n\n")
    assert pieces.pop() == b""
    assert all(piece.startswith(b"data: {") and b"\n" not in piece and b"\r" not in piece for piece in pieces)
    return [json.loads(piece.removeprefix(b"data: ")) for piece in pieces]


# --- TGI ------------------------------------------------------------------------------------------

DETAIL_KEYS = ["finish_reason", "generated_tokens", "prefill", "prompt_tokens", "seed", "tokens"]


def test_generate_answers_with_the_text_alone() -> None:
    assert answer(GENERATE) == {"generated_text": " sea a"}
    assert answer(GENERATE, details=False) == {"generated_text": " sea a"}


@pytest.mark.parametrize("parameters", [{"details": True}, {"decoder_input_details": True}])
def test_details_have_the_documents_keys_in_order(parameters: dict[str, bool]) -> None:
    got = answer(GENERATE, **parameters)
    assert list(got) == ["details", "generated_text"]
    details = got["details"]
    assert list(details) == DETAIL_KEYS
    assert list(details["tokens"][0]) == list(details["prefill"][0]) == ["id", "logprob", "special", "text"]
    assert details["finish_reason"] == "eos_token"
    assert (details["generated_tokens"], details["prompt_tokens"], details["seed"]) == (3, 2, 2**64 - 1)
    assert [token["text"] for token in details["tokens"]] == [" sea", " a", "</s>"]
    assert details["tokens"][2] == {"id": 13, "logprob": -1.5, "special": True, "text": "</s>"}
    assert details["prefill"][0] == {"id": 1, "logprob": None, "special": True, "text": "<s>"}
    assert details["prefill"][1] == {"id": 7, "logprob": -1.25, "special": False, "text": "Hi"}


def test_prefill_is_an_empty_list_when_not_asked_for() -> None:
    assert answer(GENERATE, stream()[1:], details=True)["details"]["prefill"] == []


@pytest.mark.parametrize("path", [ROOT, INVOCATIONS])
def test_root_answers_with_a_list_of_one_and_details_by_default(path: str) -> None:
    (got,) = answer(path)
    assert list(got["details"]) == DETAIL_KEYS
    assert answer(path, details=False) == [{"generated_text": " sea a"}]


def test_top_tokens_only_when_asked_for() -> None:
    details = answer(GENERATE, details=True, top_n_tokens=2)["details"]
    assert list(details) == [*DETAIL_KEYS, "top_tokens"]
    assert details["top_tokens"][0][1] == {"id": 8, "logprob": -0.75, "special": False, "text": " sun"}
    assert len(details["top_tokens"]) == len(details["tokens"])
    event = frames(STREAM, top_n_tokens=2)[0]
    assert list(event) == ["index", "token", "top_tokens", "generated_text", "details"]
    assert [top["id"] for top in event["top_tokens"]] == [9, 8]


@pytest.mark.parametrize("path", [GENERATE, ROOT])
def test_best_of_sequences_are_the_other_answers(path: str) -> None:
    """The winner's own details, then TGI's shape for each loser."""
    other = [replace(event, choice=1) for event in stream((" sky", "</s>"))]
    wanted = {"best_of": 2, "do_sample": True, "details": True, "return_full_text": True}
    got = answer(path, (*EVENTS, *other), **wanted)
    got = got[0] if path == ROOT else got
    assert got["generated_text"] == "Hi sea a"
    assert list(got["details"]) == [*DETAIL_KEYS, "best_of_sequences"]
    (sequence,) = got["details"]["best_of_sequences"]
    assert list(sequence) == ["generated_text", "finish_reason", "generated_tokens", "seed", "prefill", "tokens"]
    assert (sequence["generated_text"], sequence["finish_reason"]) == ("Hi sky", "eos_token")
    assert (sequence["generated_tokens"], sequence["seed"]) == (2, 2**64 - 1)
    assert sequence["prefill"] == got["details"]["prefill"] and len(sequence["prefill"]) == 2
    assert [token["text"] for token in sequence["tokens"]] == [" sky", "</s>"]
    got = answer(GENERATE, (*EVENTS, *other), **wanted, top_n_tokens=2)["details"]
    assert list(got) == [*DETAIL_KEYS, "best_of_sequences", "top_tokens"]
    assert [len(tops) for tops in got["best_of_sequences"][0]["top_tokens"]] == [2, 2]
    assert list(answer(GENERATE, (*EVENTS, *other), best_of=2, do_sample=True)) == ["generated_text"]


@pytest.mark.parametrize("path", [GENERATE, ROOT])
def test_full_text_is_the_prompt_as_sent_and_the_text(path: str) -> None:
    parts = (
        b'{"inputs":[{"type":"text","text":"a "},{"type":"text","text":"b"}],"parameters":{"return_full_text":true}}'
    )
    reply = call(path, parts).encoder.answer(fold(EVENTS))
    got = json.loads(reply.body)
    got = got[0] if path == ROOT else got
    assert got["generated_text"] == "a b sea a"


def test_stream_events_have_tgis_keys_in_order() -> None:
    events = frames(STREAM, details=True)
    assert [event["index"] for event in events] == [1, 2, 3]
    for event in events:
        assert list(event) == ["index", "token", "generated_text", "details"]
        assert list(event["token"]) == ["id", "text", "logprob", "special"]
    assert [event["generated_text"] for event in events] == [None, None, " sea a"]
    assert [event["details"] for event in events[:2]] == [None, None]
    details = events[2]["details"]
    assert list(details) == ["finish_reason", "generated_tokens", "seed", "input_length"]
    assert details == {
        "finish_reason": "eos_token",
        "generated_tokens": 3,
        "seed": 2**64 - 1,
        "input_length": 2,
    }
    joined = "".join(event["token"]["text"] for event in events if not event["token"]["special"])
    assert joined == events[-1]["generated_text"]


def test_stream_details_follow_the_profiles_default() -> None:
    assert frames(STREAM)[-1]["details"] is None
    body = b'{"inputs":"Hi","stream":true}'
    for path in (ROOT, INVOCATIONS):
        decoded = call(path, body)
        assert decoded.stream
        last = decoded.encoder.event(EVENTS[-1])
        assert json.loads(last.removeprefix(b"data: "))["details"]["input_length"] == 2


def test_the_prompt_is_in_the_last_event_but_in_no_token() -> None:
    events = frames(STREAM, return_full_text=True)
    assert events[-1]["generated_text"] == "Hi sea a"
    assert events[0]["token"]["text"] == " sea"


def test_one_token_is_one_event_with_everything() -> None:
    (event,) = frames(STREAM, stream((" sea",), FinishReason.LENGTH)[1:], details=True)
    assert event["generated_text"] is not None
    assert event["details"]["finish_reason"] == "length"


def test_line_separators_are_escaped_in_events() -> None:
    text = "a\u2028b\u2029c\u0085d\r\n\ud7ff"
    encode = encoder(STREAM)
    data = encode.event(TextToken(1, 2, text, -1.0, False, 1.0))
    decoded = data.decode()
    assert len(decoded.splitlines()) == 2  # the event and the blank line, in the strictest sense of a line
    assert json.loads(decoded.removeprefix("data: "))["token"]["text"] == text


def test_numbers_that_json_lacks_never_reach_it() -> None:
    token = TextToken(1, 2, "a", float("-inf"), False, 1.0)
    assert json.loads(encoder(STREAM).event(token).removeprefix(b"data: "))["token"]["logprob"] is None


def test_answer_headers() -> None:
    reply = encoder(GENERATE).answer(fold(EVENTS))
    assert dict(reply.headers) == {
        "x-compute-type": "1-cpu",
        "x-compute-characters": "2",
        "x-compute-time": "0.1171875",
        "x-total-time": "117",
        "x-validation-time": "7",
        "x-queue-time": "15",
        "x-inference-time": "93",
        "x-time-per-token": "31",
        "x-prompt-tokens": "2",
        "x-generated-tokens": "3",
    }


def test_stream_headers() -> None:
    encode = encoder(STREAM)
    assert encode.media_type == "text/event-stream; charset=utf-8"
    assert dict(encode.stream_headers()) == {
        "x-compute-type": "1-cpu",
        "x-compute-characters": "2",
        "x-accel-buffering": "no",
        "cache-control": "no-cache",
    }


def test_characters_are_counted_as_unicode() -> None:
    encode = call(GENERATE, '{"inputs":"né😀"}'.encode()).encoder
    assert dict(encode.stream_headers())["x-compute-characters"] == "3"


# --- Triton ---------------------------------------------------------------------------------------

TRITON_KEYS = ["id", "model_name", "model_version", "text_output"]


def test_triton_answers_with_the_documents_keys_in_order() -> None:
    got = answer(TRITON)
    assert list(got) == TRITON_KEYS
    assert got == {"id": "generated-1", "model_name": MODEL, "model_version": None, "text_output": " sea a"}
    got = answer(TRITON, details=True, perf_stat=True)
    assert list(got) == [*TRITON_KEYS, "details"]
    assert got["details"] == {
        "finish_reason": "eos_token",
        "generated_tokens": 3,
        "first_token_cost": None,
        "decode_cost": None,
        "perf_stat": [[11, 17], [12, 7], [13, 7]],
    }
    assert list(got["details"]) == [
        "finish_reason",
        "generated_tokens",
        "first_token_cost",
        "decode_cost",
        "perf_stat",
    ]


def test_triton_perf_stat_needs_details() -> None:
    assert answer(TRITON, details=True)["details"]["perf_stat"] is None
    assert list(answer(TRITON, perf_stat=True)) == TRITON_KEYS


def test_triton_echoes_the_clients_id() -> None:
    encode = call(TRITON, b'{"id":"a_1-Z","text_input":"Hi"}').encoder
    assert json.loads(encode.answer(fold(EVENTS)).body)["id"] == "a_1-Z"
    for event in EVENTS[1:]:
        assert json.loads(encode.event(event).removeprefix(b"data: "))["id"] == "a_1-Z"


def test_triton_stream_sends_new_text_and_details_once() -> None:
    events = frames(TRITON_STREAM, details=True, perf_stat=True, exclude_input_in_output=False)
    assert [event["text_output"] for event in events] == [" sea", " a", ""]
    assert [list(event) for event in events] == [TRITON_KEYS, TRITON_KEYS, [*TRITON_KEYS, "details"]]
    assert events[-1]["details"]["perf_stat"] == [[11, 17], [12, 7], [13, 7]]
    assert events[-1]["details"]["finish_reason"] == "eos_token"
    assert all("details" not in event for event in frames(TRITON_STREAM))


def test_triton_puts_the_prompt_before_the_text_when_asked() -> None:
    assert answer(TRITON, exclude_input_in_output=False)["text_output"] == "Hi sea a"


def test_triton_version_one_is_answered_as_null() -> None:
    encode = call(f"/v2/models/{MODEL}/versions/1/generate", b'{"text_input":"Hi"}').encoder
    assert json.loads(encode.answer(fold(EVENTS)).body)["model_version"] is None


# --- errors ---------------------------------------------------------------------------------------

ERRORS = {
    errors.ValidationError("inputs", "is wrong"): ((422, "validation"), (400, "validation")),
    errors.NotSupportedError("inputs", "is not supported yet"): ((422, "validation"), (400, "validation")),
    errors.PayloadTooLargeError("too large"): ((413, "validation"), (413, "validation")),
    errors.UnauthorizedError("no key"): ((401, "unauthorized"), (401, "unauthorized")),
    errors.NotFoundError("no such model"): ((404, "not_found"), (404, "not_found")),
    errors.MethodNotAllowedError("not that", ("POST",)): ((405, "not_found"), (405, "not_found")),
    errors.OverloadedError("full", 3): ((429, "overloaded"), (429, "overloaded")),
    errors.UnavailableError("loading"): ((503, "healthcheck"), (503, "healthcheck")),
    errors.RequestTimeoutError("over"): ((504, "timeout"), (504, "timeout")),
    errors.GenerationError("failed"): ((424, "generation"), (500, "generation")),
    errors.IncompleteGenerationError("ended"): (
        (500, "incomplete_generation"),
        (500, "incomplete_generation"),
    ),
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_have_their_status_and_shape(error: errors.RequestError) -> None:
    for path, (status, kind) in zip((GENERATE, TRITON), ERRORS[error], strict=True):
        reply = find_route(path)[0].render_error(error)
        assert (reply.status, reply.media_type) == (status, "application/json")
        assert json.loads(reply.body) == {"error": error.message, "error_type": kind}
        (event,) = frames(path, (FailedEvent(error),))
        assert event == {"error": error.message, "error_type": kind}


def test_error_headers() -> None:
    render = find_route(GENERATE)[0].render_error
    assert ("allow", "GET, POST") in render(errors.MethodNotAllowedError("m", ("GET", "POST"))).headers
    assert ("retry-after", "3") in render(errors.OverloadedError("full", 3)).headers
    assert ("www-authenticate", "Bearer") in render(errors.UnauthorizedError("no")).headers


def test_an_error_text_that_is_no_unicode_is_still_sent() -> None:
    reply = find_route(GENERATE)[0].render_error(errors.GenerationError("bad \ud800"))
    assert json.loads(reply.body)["error"] == "bad ?"


def test_a_cancelled_stream_ends_in_the_error_shape_too() -> None:
    (event,) = frames(STREAM, (FailedEvent(errors.CancelledError("stopped")),))
    assert event == {"error": "stopped", "error_type": "generation"}


def test_the_start_of_a_stream_is_no_event() -> None:
    for path in (STREAM, TRITON_STREAM):
        assert encoder(path).event(EVENTS[0]) == b""
        assert encoder(path).end() == b""


def test_answers_are_folds() -> None:
    folded = fold(EVENTS)
    assert isinstance(folded, Answer)
    assert folded.prefill == PREFILL
