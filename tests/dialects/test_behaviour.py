"""Faults that other servers had on these routes, each as a request to ours, against a real process.

The scripted engine says exactly the tokens that the prompt asks for, so it is known where token boundaries
fall. What only a table of values shows (edges, nulls, types) is in `wire_cases`.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from served import BOS, EOS, Served, say
from wire_cases import GENERATE, INVOCATIONS, MODEL, ROOT, STREAM, TRITON, TRITON_STREAM
from wire_client import connect, joined, metric, send, tgi, together, triton, wait_until


def whole_and_streamed(served: Served, prompt: str, **parameters: Any) -> tuple[str, list[Any]]:
    """The text of `/generate`, and the events of `/generate_stream`; that both agree is checked here."""
    answer = tgi(served.url, GENERATE, prompt, details=True, **parameters).json
    events = tgi(served.url, STREAM, prompt, details=True, **parameters).events
    text: str = answer["generated_text"]
    assert joined(events) == events[-1]["generated_text"] == text
    assert [token["text"] for token in answer["details"]["tokens"]] == [event["token"]["text"] for event in events]
    assert [token["id"] for token in answer["details"]["tokens"]] == [event["token"]["id"] for event in events]
    assert events[-1]["details"]["finish_reason"] == answer["details"]["finish_reason"]
    assert answer["details"]["generated_tokens"] == len(events)
    piece = "".join(event["text_output"] for event in triton(served.url, TRITON_STREAM, prompt).events)
    if not parameters:
        assert piece == text == triton(served.url, TRITON, prompt).json["text_output"]
    return text, events


# --- text ----------------------------------------------------------------------------------------


def test_characters_split_over_tokens_come_once_and_whole(served: Served) -> None:
    data = list(("😀你好" * 3).encode())
    text, events = whole_and_streamed(served, say(*data), max_new_tokens=40)
    assert text == "😀你好" * 3
    texts = [event["token"]["text"] for event in events]
    assert "\ufffd" not in "".join(texts)
    assert texts[:4] == ["", "", "", "😀"]
    assert len(texts) == len(data) + 1  # one event per token, EOS included


def test_a_last_character_that_stays_incomplete_is_dropped(served: Served) -> None:
    text, events = whole_and_streamed(served, say("a", *"é".encode()[:1]))
    assert text == "a"
    assert [event["token"]["text"] for event in events] == ["a", "", "</s>"]


def test_leading_space_is_kept(served: Served) -> None:
    text, _ = whole_and_streamed(served, say("    ", "return abc"))
    assert text == "    return abc"


def test_line_separators_survive_line_based_clients(served: Served) -> None:
    got = tgi(served.url, STREAM, say("a", "\u2028", "b", "\u0085"))
    lines = got.body.decode().splitlines()
    assert [line for line in lines if line and not line.startswith("data: {")] == []
    assert joined(got.events) == "a\u2028b\u0085"


# --- stops ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "cut", "kept"),
    [
        (["ha be"], "alp", "alpha be"),
        (["lph"], "a", "alph"),
        (["ta", "a b"], "alph", "alpha b"),
        (["gamma"], "alpha beta ", "alpha beta gamma"),
        (["alpha"], "", "alpha"),
    ],
)
def test_stops_are_text_across_and_inside_tokens(served: Served, stop: list[str], cut: str, kept: str) -> None:
    prompt = say("alpha", " beta", " gamma")
    text, events = whole_and_streamed(served, prompt, stop=stop, max_new_tokens=20)
    assert text == cut
    assert events[-1]["details"]["finish_reason"] == "stop_sequence"
    (answer,) = tgi(served.url, ROOT, prompt, stop=stop).json
    assert answer["generated_text"] == kept
    assert answer["details"]["finish_reason"] == "stop_sequence"
    body = {"inputs": prompt, "stream": True, "parameters": {"stop": stop}}
    events = send(served.url, ROOT, body).events
    assert joined(events) == events[-1]["generated_text"] == kept
    assert triton(served.url, TRITON, prompt, stop=stop).json["text_output"] == cut
    assert triton(served.url, TRITON, prompt, stop_words=stop[0]).json["text_output"] in (cut, "alpha be")


def test_no_piece_of_a_stop_is_ever_streamed(served: Served) -> None:
    events = tgi(served.url, STREAM, say("onetwo", "threefour"), stop=["onetwothree", "Carol:"]).events
    assert joined(events) == ""
    assert [event["token"]["text"] for event in events] == ["", ""]


def test_a_failed_partial_stop_is_streamed_once_and_in_order(served: Served) -> None:
    events = tgi(served.url, STREAM, say("Carol", "! Dan"), stop=["onetwothree", "Carol:"]).events
    assert joined(events) == "Carol! Dan"
    assert [event["index"] for event in events] == list(range(1, len(events) + 1))


def test_stops_are_searched_in_new_text_only(served: Served) -> None:
    prompt = "Q: 1\nA:"
    got = tgi(served.url, GENERATE, prompt, stop=["Q:"], return_full_text=True, max_new_tokens=30, details=True).json
    # The echo repeats BOS and the prompt, so the stop ends it at once; the prompt itself is whole.
    assert got["generated_text"] == prompt
    assert got["details"]["finish_reason"] == "stop_sequence"
    got = triton(served.url, TRITON, prompt, stop=["Q:"], exclude_input_in_output=False).json
    assert got["text_output"] == prompt
    events = triton(served.url, TRITON_STREAM, "abc", exclude_input_in_output=False).events
    assert "".join(event["text_output"] for event in events) == "abc"


def test_a_null_and_an_empty_list_are_no_stops(served: Served) -> None:
    for stop in (None, []):
        assert tgi(served.url, GENERATE, say("alpha"), stop=stop).json["generated_text"] == "alpha"


# --- tokens, logprobs, details -------------------------------------------------------------------


def test_seeds_travel_digit_for_digit(served: Served) -> None:
    seed = 2**64 - 1
    assert tgi(served.url, GENERATE, "x", seed=seed, details=True).json["details"]["seed"] == seed
    assert tgi(served.url, STREAM, "x", seed=seed, details=True).events[-1]["details"]["seed"] == seed
    drawn = {tgi(served.url, GENERATE, "x", details=True).json["details"]["seed"] for _ in range(8)}
    assert len(drawn) == 8
    assert all(1 <= one < 2**53 for one in drawn)


def test_top_k_over_the_vocabulary_is_off(served: Served) -> None:
    assert tgi(served.url, GENERATE, "x", do_sample=True, top_k=5_000_000, max_new_tokens=4).status == 200


def test_top_tokens_are_as_many_as_asked_for(served: Served) -> None:
    got = tgi(served.url, GENERATE, say("alpha", "ab"), top_n_tokens=3, top_p=0.5, details=True).json["details"]
    assert [len(tops) for tops in got["top_tokens"]] == [3] * len(got["tokens"])
    for token, tops in zip(got["tokens"], got["top_tokens"], strict=True):
        assert [top["logprob"] for top in tops] == sorted((top["logprob"] for top in tops), reverse=True)
        assert tops[0]["id"] == token["id"] and tops[0]["logprob"] == token["logprob"]
    events = tgi(served.url, STREAM, say("alpha", "ab"), top_n_tokens=3).events
    assert [[top["id"] for top in event["top_tokens"]] for event in events] == [
        [top["id"] for top in tops] for tops in got["top_tokens"]
    ]


def test_prefill_has_every_prompt_token_and_the_first_without_logprob(served: Served) -> None:
    for _ in range(2):  # cold and warm
        details = tgi(served.url, GENERATE, "Tonight", decoder_input_details=True, max_new_tokens=2).json["details"]
        assert [token["id"] for token in details["prefill"]] == [BOS, *b"Tonight"]
        assert details["prefill"][0] == {"id": BOS, "logprob": None, "special": True, "text": "<s>"}
        assert all(token["logprob"] <= 0 for token in details["prefill"][1:])
        assert "".join(token["text"] for token in details["prefill"][1:]) == "Tonight"
        assert details["prompt_tokens"] == 8


def test_eos_is_special_and_not_in_the_text(served: Served) -> None:
    text, events = whole_and_streamed(served, say("ab"))
    assert text == "ab"
    assert events[-1]["token"] == {"id": EOS, "text": "</s>", "logprob": -0.5, "special": True}
    assert events[-1]["details"]["finish_reason"] == "eos_token"


def test_length_beats_eos(served: Served) -> None:
    for path in (GENERATE, ROOT):
        got = tgi(served.url, path, say("ab"), max_new_tokens=3, details=True).json
        details = (got[0] if path == ROOT else got)["details"]
        assert (details["finish_reason"], details["generated_tokens"]) == ("length", 3)


def test_ignore_eos_goes_on(served: Served) -> None:
    details = tgi(served.url, GENERATE, say("ab"), ignore_eos=True, max_new_tokens=9, details=True).json["details"]
    assert (details["finish_reason"], details["generated_tokens"]) == ("length", 9)


def test_one_new_token_is_one_event(served: Served) -> None:
    (event,) = tgi(served.url, STREAM, "xyz", max_new_tokens=1, details=True).events
    assert event["generated_text"] is not None
    assert event["details"]["finish_reason"] == "length"


# --- limits --------------------------------------------------------------------------------------


def test_truncation_comes_before_the_limits_and_keeps_the_end(served: Served) -> None:
    prompt = "a" * 4900 + "b" * 99
    parameters = {"truncate": 100, "max_new_tokens": 1, "decoder_input_details": True}
    details = tgi(served.url, GENERATE, prompt, **parameters).json["details"]
    assert [token["id"] for token in details["prefill"]] == [BOS, *b"b" * 99]
    assert details["prompt_tokens"] == 100


def test_truncate_at_or_over_the_prompt_changes_nothing(served: Served) -> None:
    for truncate in (4, 5, 1000, 2**31 - 1):
        got = tgi(served.url, GENERATE, "abc", truncate=truncate, decoder_input_details=True).json
        assert got["details"]["prompt_tokens"] == 4


@pytest.mark.parametrize(("new", "generated"), [(99, 99), (100, 100), (101, 100), (2**31 - 1, 100)])
def test_output_that_meets_the_context_ends_with_length(served: Served, new: int, generated: int) -> None:
    got = tgi(served.url, GENERATE, "a" * 999, max_new_tokens=new, details=True).json["details"]
    assert (got["prompt_tokens"], got["generated_tokens"], got["finish_reason"]) == (
        1000,
        generated,
        "length",
    )


def test_too_many_prompt_tokens_are_refused_with_both_numbers(served: Served) -> None:
    assert tgi(served.url, GENERATE, "a" * 1023, max_new_tokens=1).status == 200
    for path in (GENERATE, STREAM, ROOT):
        got = tgi(served.url, path, "a" * 1024, max_new_tokens=1)
        assert got.status == 422
        assert "`inputs`" in got.json["error"] and "1024" in got.json["error"] and "1025" in got.json["error"]
    got = triton(served.url, TRITON_STREAM, "a" * 1024)
    assert got.status == 400 and got.json["error"].startswith("`text_input`")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_413_in_the_dialects_shape(served: Served, chunked: bool) -> None:
    small = served.urls["small"]
    for path in (GENERATE, TRITON):
        connection = connect(small)
        body = b'{"inputs":"' + b"x" * 100_000 + b'"}'
        pieces = (body[at : at + 10_000] for at in range(0, len(body), 10_000))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all was sent
            connection.request("POST", path, pieces if chunked else body, encode_chunked=chunked)
        response = connection.getresponse()
        assert response.status == 413
        assert json.loads(response.read())["error_type"] == "validation"
        connection.close()


# --- errors --------------------------------------------------------------------------------------


def test_wrong_routes_and_methods_have_the_dialects_shape(served: Served) -> None:
    for method, path, status in (
        ("GET", GENERATE, 405),
        ("PUT", ROOT, 405),
        ("GET", TRITON, 405),
        ("POST", "/nothing/here", 404),
        ("POST", "/v2/models/m/nothing", 404),
        ("POST", GENERATE + "/", 404),
    ):
        got = send(served.url, path, b"{}", method)
        assert got.status == status, path
        assert set(got.json) == {"error", "error_type"}
        assert got.json["error_type"] == "not_found"
        assert status != 405 or "POST" in got.headers["allow"]


def test_the_content_type_is_not_looked_at(served: Served) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"):
        got = send(served.url, GENERATE, {"inputs": "x"}, "POST", **{"Content-Type": kind})
        assert got.status == 200


def test_refusals_on_streams_are_plain_json_with_their_status(served: Served) -> None:
    for path, body, status in (
        (STREAM, {"inputs": "x", "parameters": {"max_new_tokens": 2**31}}, 422),
        (ROOT, {"inputs": "x", "stream": True, "parameters": {"top_p": 2}}, 422),
        (STREAM, {"inputs": "x" * 2000}, 422),
        (TRITON_STREAM, {"text_input": "x", "parameters": {"top_p": 2}}, 400),
        (STREAM, {"inputs": say("a", fail_at=0)}, 424),
        (TRITON_STREAM, {"text_input": say("a", fail_at=0)}, 500),
    ):
        got = send(served.url, path, body)
        assert (got.status, got.headers["content-type"]) == (status, "application/json")
        assert set(got.json) == {"error", "error_type"}


def test_a_fault_in_mid_stream_is_one_error_event_and_the_end(served: Served) -> None:
    prompt = say("abcdef", fail_at=3)
    events = tgi(served.url, STREAM, prompt).events
    assert [event.get("index") for event in events] == [1, 2, 3, None]
    assert events[-1]["error_type"] == "generation" and set(events[-1]) == {"error", "error_type"}
    events = triton(served.url, TRITON_STREAM, prompt).events
    assert len(events) == 4 and set(events[-1]) == {"error", "error_type"}
    assert tgi(served.url, GENERATE, prompt).status == 424
    assert triton(served.url, TRITON, prompt).status == 500


def test_every_route_also_stands_under_its_dialects_prefix(served: Served) -> None:
    for path in (GENERATE, INVOCATIONS, ""):
        assert tgi(served.url, "/tgi" + path, "x").status == 200
    assert tgi(served.url, "/tgi" + STREAM, "x").events
    assert triton(served.url, "/triton" + TRITON, "x").status == 200
    got = triton(served.url, "/triton/v2/models/other/generate", "x")
    assert (got.status, got.json["error_type"]) == (404, "not_found")
    assert send(served.url, "/triton/nothing", b"{}").json["error_type"] == "not_found"


# --- parts ---------------------------------------------------------------------------------------


def test_markdown_images_are_plain_text_and_nothing_is_fetched(served: Served) -> None:
    prompt = "![](http://127.0.0.1:9/a.png) what?"
    got = tgi(served.url, GENERATE, prompt, max_new_tokens=100).json
    assert got["generated_text"] == prompt


def test_good_media_are_refused_by_a_text_model(served: Served) -> None:
    for kind, source in (
        ("image_url", "data:image/png;base64,AAAA"),
        ("video_url", "http://h.example/a.mp4"),
        ("audio_url", "data:audio/flac;base64,AAAA"),
    ):
        parts = [{"type": "text", "text": "a"}, {"type": kind, kind: source}]
        for path in (GENERATE, STREAM, ROOT):
            got = tgi(served.url, path, parts)
            assert got.status == 422
            assert got.json["error"].startswith(f"`inputs[1].{kind}` is a")
            assert "and the served model reads text only" in got.json["error"]
            assert "allowed_media_domains" not in got.json["error"]  # to change it would not help
        got = triton(served.url, TRITON, parts)
        assert (got.status, got.json["error_type"]) == (400, "validation")
        assert got.json["error"].startswith(f"`text_input[1].{kind}` is ")


def test_media_that_may_not_be_named_are_refused_for_that_as_well(served: Served) -> None:
    for source, rule in (
        ("/xxxx/test.png", "must be a path below /data/multimodal_inputs"),
        ("/data/multimodal_inputs/../../etc/a.png", "must be an absolute path below /data/multimodal_inputs without"),
        ("/data/multimodal_inputs/none.png", "must name a file that exists"),
        ("http://other.example/a.png", "must name a host that is allowed here"),
        ("http://169.254.169.254/a.png", "must name no private, loopback, link-local, reserved or metadata address"),
        ("http://2130706433/a.png", "must be a host name of"),
        ("http://h.example@10.0.0.1/a.png", "must be a URL of the form"),
    ):
        image = {"type": "image_url", "image_url": {"url": source}}
        bodies = (
            (GENERATE, {"inputs": [image]}, 422, "inputs[0]"),
            (STREAM, {"inputs": [image]}, 422, "inputs[0]"),
            (ROOT, {"inputs": [image]}, 422, "inputs[0]"),
            (TRITON, {"text_input": [image]}, 400, "text_input[0]"),
            (
                "/v1/chat/completions",
                {"messages": [{"role": "user", "content": [image]}]},
                400,
                "messages[0].content[0]",
            ),
            ("/tokenize", {"messages": [{"role": "user", "content": [image]}]}, 422, "messages[0].content[0]"),
        )
        for path, body, status, place in bodies:
            got = send(served.url, path, body)
            assert got.status == status, (path, got.body)
            error = got.json["error"]
            message = error if isinstance(error, str) else error["message"]
            field, _, words = message.partition(" is an image, and the served model reads text only; ")
            assert field == f"`{place}.image_url.url`", (path, message)
            assert words.startswith(f"nor would it be taken from there: it {rule}"), (path, message)
            assert message.endswith(f', got "{source}"')


def test_text_parts_are_joined_with_nothing(served: Served) -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": " c"}]
    got = tgi(served.url, GENERATE, parts, return_full_text=True, details=True).json
    assert got["generated_text"] == "ab cab c"
    assert got["details"]["prompt_tokens"] == 5


# --- the documents' samples ----------------------------------------------------------------------

TGI_SAMPLE = {
    "inputs": "My name is Olivier and I",
    "parameters": {
        "decoder_input_details": True,
        "details": True,
        "do_sample": True,
        "max_new_tokens": 20,
        "repetition_penalty": 1.03,
        "return_full_text": False,
        "seed": None,
        "temperature": 0.5,
        "top_k": 10,
        "top_p": 0.95,
        "truncate": None,
        "typical_p": 0.5,
        "watermark": False,
        "stop": None,
        "adapter_id": "None",
    },
}
TRITON_SAMPLE = {
    "id": "a123",
    "text_input": "My name is Olivier and I",
    "parameters": {
        "details": True,
        "do_sample": True,
        "max_new_tokens": 5,
        "repetition_penalty": 1.1,
        "seed": 123,
        "temperature": 1,
        "top_k": 10,
        "top_p": 0.99,
        "batch_size": 100,
        "typical_p": 0.5,
        "watermark": False,
        "perf_stat": True,
        "priority": 5,
        "timeout": 10,
    },
}


def test_the_tgi_sample_answers_with_exactly_its_keys(served: Served) -> None:
    got = send(served.url, GENERATE, TGI_SAMPLE).json
    assert list(got) == ["details", "generated_text"]
    keys = ["finish_reason", "generated_tokens", "prefill", "prompt_tokens", "seed", "tokens"]
    assert list(got["details"]) == keys
    for token in (*got["details"]["prefill"], *got["details"]["tokens"]):
        assert list(token) == ["id", "logprob", "special", "text"]
    assert got["details"]["prompt_tokens"] == len(got["details"]["prefill"]) == 25
    assert got["details"]["generated_tokens"] == len(got["details"]["tokens"]) == 20
    multimodal = {
        **TGI_SAMPLE,
        "inputs": [
            {"type": "text", "text": "My name is Olivier and I"},
            {"type": "image_url", "image_url": "/xxxx/test.png"},
        ],
    }
    assert send(served.url, GENERATE, multimodal).status == 422


def test_the_triton_sample_answers_with_exactly_its_keys(served: Served) -> None:
    got = send(served.url, TRITON, TRITON_SAMPLE).json
    assert list(got) == ["id", "model_name", "model_version", "text_output", "details"]
    assert (got["id"], got["model_name"], got["model_version"]) == ("a123", MODEL, None)
    keys = ["finish_reason", "generated_tokens", "first_token_cost", "decode_cost", "perf_stat"]
    assert list(got["details"]) == keys
    assert (got["details"]["finish_reason"], got["details"]["generated_tokens"]) == ("length", 5)
    assert [row[0] for row in got["details"]["perf_stat"]] == [BOS, *b"My n"]
    assert all(isinstance(value, int) for row in got["details"]["perf_stat"] for value in row)


def test_the_schemas_smallest_request_answers_at_the_root(served: Served) -> None:
    (got,) = send(served.url, ROOT, {"inputs": "My name is Olivier and I"}).json
    assert list(got) == ["details", "generated_text"]
    (got,) = send(served.url, INVOCATIONS, {"inputs": "Hi", "parameters": {"details": False}}).json
    assert list(got) == ["generated_text"]


# --- time and order ------------------------------------------------------------------------------


def test_perf_stat_is_the_true_time_of_each_token(served: Served) -> None:
    prompt = say("abc", start_delay=0.12, delay=0.04)
    details = triton(served.url, TRITON, prompt, details=True, perf_stat=True).json["details"]
    first, *others = [milliseconds for _, milliseconds in details["perf_stat"]]
    assert 155 <= first < 2000  # the prefill is in the first
    assert all(35 <= one < 1000 for one in others)
    events = triton(served.url, TRITON_STREAM, prompt, details=True, perf_stat=True).events
    assert [row[0] for row in events[-1]["details"]["perf_stat"]] == [row[0] for row in details["perf_stat"]]


def test_headers_tell_the_times(served: Served) -> None:
    headers = tgi(served.url, GENERATE, say("abc", start_delay=0.05, delay=0.01)).headers
    assert headers["x-prompt-tokens"].isdigit()
    assert headers["x-generated-tokens"] == "4"
    assert int(headers["x-total-time"]) >= int(headers["x-inference-time"]) >= 85
    assert int(headers["x-time-per-token"]) == pytest.approx(int(headers["x-inference-time"]) / 4, abs=1)
    assert float(headers["x-compute-time"]) == pytest.approx(int(headers["x-total-time"]) / 1000, abs=0.002)
    headers = tgi(served.url, STREAM, "é").headers
    assert (headers["x-compute-characters"], headers["x-accel-buffering"]) == ("1", "no")


def test_timeout_before_the_first_byte_is_504(served: Served) -> None:
    prompt = say("a", start_delay=5.0)
    for path in (TRITON, TRITON_STREAM):
        begun = time.monotonic()
        got = triton(served.url, path, prompt, timeout=1)
        assert (got.status, got.json["error_type"]) == (504, "timeout")
        assert 0.9 < time.monotonic() - begun < 30


def test_timeout_after_the_first_byte_is_one_event(served: Served) -> None:
    got = triton(served.url, TRITON_STREAM, say("a" * 200, delay=0.05), timeout=1)
    assert got.events[-1]["error_type"] == "timeout"
    assert all("text_output" in event for event in got.events[:-1])


def test_priority_orders_a_full_queue(served: Served) -> None:
    small = served.urls["small"]
    order: list[int] = []

    def occupy() -> None:
        triton(small, TRITON, say("a" * 8, delay=0.1))

    def request(priority: int) -> None:
        time.sleep(0.1 * (6 - priority))  # the most urgent comes last
        assert triton(small, TRITON, say("b", delay=0.1), priority=priority).status == 200
        order.append(priority)

    together(occupy, lambda: request(5), lambda: request(3), lambda: request(1))
    assert order == [1, 3, 5]


def test_one_too_many_is_refused_at_once_and_places_come_back(served: Served) -> None:
    small = served.urls["small"]
    prompt = say("ab", delay=0.2)
    got = together(*(lambda: tgi(small, GENERATE, prompt) for _ in range(12)))
    statuses = sorted(one.status for one in got)
    assert statuses.count(200) >= 4 and set(statuses) == {200, 429}
    refused = next(one for one in got if one.status == 429)
    assert refused.json["error_type"] == "overloaded"
    wait_until(lambda: metric(small, "tgi_batch_current_size") == 0)
    assert [one.status for one in together(*(lambda: triton(small, TRITON, "x") for _ in range(4)))] == [200] * 4


def test_clients_that_leave_give_everything_back(served: Served) -> None:
    def leave() -> None:
        connection = connect(served.url)
        body = json.dumps({"inputs": say("a" * 400, delay=0.02), "parameters": {"max_new_tokens": 400}})
        connection.request("POST", STREAM, body)
        response = connection.getresponse()
        for _ in range(6):  # three events
            response.readline()
        response.close()
        connection.close()

    together(*([leave] * 16))
    wait_until(lambda: metric(served.url, "tgi_batch_current_size") + metric(served.url, "tgi_queue_size") == 0)
    assert tgi(served.url, GENERATE, "x").status == 200


# --- adapters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no-such", "../../etc", "/etc/passwd", "NONE"])
@pytest.mark.parametrize("path", [GENERATE, STREAM, ROOT])
def test_an_unknown_adapter_is_refused_by_name(served: Served, path: str, name: str) -> None:
    got = tgi(served.url, path, "Hi", adapter_id=name)
    assert got.status == 422 and got.json["error_type"] == "validation"
    assert got.json["error"].startswith("`parameters.adapter_id` must name a loaded adapter")
    assert repr(name) in got.json["error"] and "my-lora" in got.json["error"]
