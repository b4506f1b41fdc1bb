"""Faults that other servers had on one front end, asked of all of ours: one request, every dialect, whole and streamed.

KNOWN_BUGS.md says which fault each test stands for.
"""

from __future__ import annotations

import base64
import contextlib
import json
import random
import socket
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from front_ends import FRONT_ENDS, STREAMING, FrontEnd
from served import Served, say
from wire_cases import MODEL, TRITON, TRITON_STREAM
from wire_client import Got, connect, metric, send, together, wait_until

every = pytest.mark.parametrize("front", FRONT_ENDS, ids=lambda front: front.name)
streaming = pytest.mark.parametrize("front", STREAMING, ids=lambda front: front.name)


def empty(url: str) -> bool:
    return metric(url, "tgi_batch_current_size") + metric(url, "tgi_queue_size") == 0


# --- text and stops ------------------------------------------------------------------------------------------------

Said = tuple[str | int, ...]
TEXTS: list[tuple[Said, str]] = [
    ((*("😀你好" * 3).encode(),), "😀你好" * 3),  # a token for each byte
    (("😀", *"你".encode(), "好", 0xE4, 0xBD), "😀你好"),  # the last character stays incomplete
    (("    ", "return abc"), "    return abc"),
    (("alpha", " beta", "  "), "alpha beta  "),
    (("a", "\u2028", "b\r\n\n"), "a\u2028b\r\n\n"),
]
STOPS: list[tuple[Said, list[str], str, str]] = [
    (("alpha", " beta", " gamma"), ["ha be"], "alp", "alpha be"),
    (("alpha", " beta", " gamma"), ["lph"], "a", "alph"),
    (("alpha", " beta", " gamma"), ["ta", "a b"], "alph", "alpha b"),
    (("alpha", " beta", " gamma"), ["alpha"], "", "alpha"),
    (("onetwo", "threefour"), ["onetwothree", "Carol:"], "", "onetwothree"),
    (("Carol", "! Dan"), ["onetwothree", "Carol:"], "Carol! Dan", "Carol! Dan"),
    ((*"naïve".encode(),), ["ïv"], "na", "naïv"),
]


@every
@pytest.mark.parametrize(("said", "text"), TEXTS, ids=lambda part: repr(part)[:30])
def test_texts_come_whole_on_every_route(served: Served, front: FrontEnd, said: Said, text: str) -> None:
    assert front.text(served.url, say(*said)).text == text
    if front.stream_path:
        streamed = front.text(served.url, say(*said), stream=True)
        assert streamed.text == "".join(streamed.pieces) == text
        assert "\ufffd" not in "".join(streamed.pieces)


@pytest.mark.parametrize("front", [front for front in FRONT_ENDS if front.has_stops], ids=lambda front: front.name)
@pytest.mark.parametrize(("said", "stops", "cut", "kept"), STOPS, ids=lambda part: repr(part)[:30])
def test_stops_are_text_on_every_route(
    served: Served, front: FrontEnd, said: Said, stops: list[str], cut: str, kept: str
) -> None:
    """Within tokens and across them; no piece of a stop is sent early, and what was no stop is sent once, in order."""
    wanted = kept if front.keeps_stops else cut
    assert front.text(served.url, say(*said), stops=stops).text == wanted
    if front.stream_path:
        streamed = front.text(served.url, say(*said), stops=stops, stream=True)
        assert streamed.text == "".join(streamed.pieces) == wanted


@pytest.mark.parametrize("front", [front for front in FRONT_ENDS if front.has_stops], ids=lambda front: front.name)
def test_empty_stops_are_refused_and_absent_ones_are_none(served: Served, front: FrontEnd) -> None:
    for stops in ([""], ["", "x"]):
        got = front.post(served.url, say("alpha"), stops=stops)
        assert got.status == front.refused and "stop" in front.error(got)
    for none in (None, []):
        assert front.text(served.url, say("alpha"), stops=none).text == "alpha"


@pytest.mark.parametrize("front", [front for front in FRONT_ENDS if front.has_stops], ids=lambda front: front.name)
def test_stops_are_bounded_in_all(served: Served, front: FrontEnd) -> None:
    """A search for them takes memory for each of their characters: a bare string has the same limit as a list."""
    for stops in ("x" * 32769, ["x" * 16384, "y" * 16385]):
        got = front.post(served.url, say("alpha"), stops=stops)
        assert got.status == front.refused and "stop" in front.error(got)
    most = "x" * (1024 if front.name in ("tgi", "triton", "kserve") else 32768)
    assert front.text(served.url, say("alpha"), stops=most).text == "alpha"


# --- bodies that are none ------------------------------------------------------------------------------------------

MARK = "the-prompt"
DAMAGED: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("empty", lambda body: b""),
    ("an array", lambda body: b"[]"),
    ("null", lambda body: b"null"),
    ("no fields", lambda body: b"{}"),
    ("a comma too many", lambda body: body[:-1] + b",}"),
    ("cut short", lambda body: body[:-1]),
    ("two documents", lambda body: body + body),
    ("a prompt of null", lambda body: body.replace(b'"the-prompt"', b"null")),
    ("a prompt of 5", lambda body: body.replace(b'"the-prompt"', b"5")),
    ("an empty prompt", lambda body: body.replace(b"the-prompt", b"")),
    ("a prompt of an object", lambda body: body.replace(b'"the-prompt"', b"{}")),
    ("a first half of a pair", lambda body: body.replace(b"the-prompt", rb"smile \ud83d")),
    ("a second half of a pair", lambda body: body.replace(b"the-prompt", rb"\ude00 end")),
    ("a half alone", lambda body: body.replace(b"the-prompt", rb"\ud800")),
    ("the halves in the wrong order", lambda body: body.replace(b"the-prompt", rb"\ude00\ud83d")),
    ("bytes that are no UTF-8", lambda body: body.replace(b"the-prompt", b"a\xff")),
    ("a surrogate in UTF-8", lambda body: body.replace(b"the-prompt", b"\xed\xa0\x80")),
    ("a control character", lambda body: body.replace(b"the-prompt", b"a\nb")),
    ("nested deep", lambda body: body[:-1] + b',"x":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    ("NaN", lambda body: body[:-1] + b',"x":NaN}'),
]


@every
@pytest.mark.parametrize(("name", "damage"), DAMAGED, ids=[name for name, _ in DAMAGED])
def test_bodies_that_are_none_are_refused_in_each_dialects_shape(
    served: Served, front: FrontEnd, name: str, damage: Callable[[bytes], bytes]
) -> None:
    for stream in (False, True) if front.stream_path else (False,):
        body = damage(front.data(MARK, stream=stream))
        assert body != front.data(MARK, stream=stream)
        got = send(served.url, front.where(stream), body)
        assert got.status == front.refused, got
        assert front.error(got)


@every
def test_good_prompts_that_look_odd_are_served(served: Served, front: FrontEnd) -> None:
    for written, text in ((rb"\ud83d\ude00", "😀"), (rb" ", " "), (rb"\u0000", "\0")):
        got = send(served.url, front.path, front.data(MARK).replace(MARK.encode(), written))
        assert got.status == 200, got.body
        assert text in front.read(got.json, text).text


@every
def test_unknown_fields_change_nothing_anywhere(served: Served, front: FrontEnd) -> None:
    plain = front.body("abc", 5, None, False)
    more = {**plain, "extra": [1, {"a": None}], "decoded_input_details": True}
    if isinstance(more.get("parameters"), dict):
        more["parameters"] = {**more["parameters"], "extra": "x", "decoded_input_details": True}
    replies = [send(served.url, front.path, body) for body in (plain, more)]
    assert [reply.status for reply in replies] == [200, 200]
    assert front.read(replies[0].json, "abc") == front.read(replies[1].json, "abc")


NAMES = (
    *("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "seed", "do_sample", "watermark", "stop"),
    *("adapter_id", "grammar", "truncate", "frequency_penalty", "best_of", "top_n_tokens", "return_full_text"),
    *(
        "tools",
        "tool_choice",
        "n",
        "logit_bias",
        "stream_options",
        "logprobs",
        "response_format",
        "priority",
        "timeout",
    ),
)


@every
def test_null_is_absent_and_an_integer_is_a_number(served: Served, front: FrontEnd) -> None:
    plain = front.body("abc", 5, None, False)
    inside = isinstance(plain.get("parameters"), dict)

    def reply(more: dict[str, Any]) -> str:
        body = {**plain, "parameters": {**plain["parameters"], **more}} if inside else {**plain, **more}
        got = send(served.url, front.path, body)
        assert got.status == 200, (more, got.body)
        return front.read(got.json, "abc").text

    expected = reply({})
    assert reply(dict.fromkeys(NAMES)) == expected
    assert reply({"temperature": 1, "repetition_penalty": 1, "seed": 7}) == expected
    # Without a length each dialect has its documented one, and the prompt of four tokens fits in all of them.
    name = "max_new_tokens" if inside else "max_tokens"
    assert reply({name: None}).endswith("abc")


@every
def test_wrong_methods_and_paths_answer_in_each_dialects_shape(served: Served, front: FrontEnd) -> None:
    for method in ("PUT", "DELETE"):
        got = send(served.url, front.path, b"{}", method)
        assert got.status == 405 and "POST" in got.headers["allow"]
        front.error(got)
    got = send(served.url, front.path.rstrip("/") + "/nothing", b"{}")
    assert got.status == 404
    front.error(got)


@every
def test_a_body_needs_no_content_type(served: Served, front: FrontEnd) -> None:
    for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
        got = send(served.url, front.path, front.data("abc", 3), **headers)
        assert got.status == 200, got.body


# --- sizes ---------------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_too_large_is_413_in_each_dialects_shape(served: Served, front: FrontEnd, chunked: bool) -> None:
    connection = connect(served.urls["small"])
    body = front.data("x" * 100_000)
    pieces = (body[at : at + 10_000] for at in range(0, len(body), 10_000))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all was sent
        connection.request("POST", front.path, pieces if chunked else body, encode_chunked=chunked)
    response = connection.getresponse()
    headers = {name.lower(): value for name, value in response.headers.items()}
    got = Got(response.status, headers, response.read())
    connection.close()
    assert got.status == 413
    front.error(got)


@every
def test_a_long_prompt_is_judged_by_its_tokens_and_not_by_its_bytes(served: Served, front: FrontEnd) -> None:
    got = front.post(served.url, "a" * 3_000_000)
    assert got.status == front.refused
    message = front.error(got)
    tokens = 3_000_000 + (front.name != "chat")  # a template writes its own BOS, or none
    assert message.startswith(f"`{front.prompt}`") and "1024" in message and str(tokens) in message


# --- the frames of a stream ----------------------------------------------------------------------------------------


@streaming
def test_a_piece_is_sent_when_it_is_there(served: Served, front: FrontEnd) -> None:
    """The first arrives while the answer is still being made; before it, however slow the prompt, there is nothing."""
    wait_until(lambda: empty(served.url))
    connection = connect(served.url)
    prompt = say("a" * 200, start_delay=0.5, delay=0.1)
    connection.request("POST", front.where(True), front.data(prompt, 300, None, True))
    response = connection.getresponse()
    first = response.readline()
    assert metric(served.url, "tgi_batch_current_size") == 1, "the whole answer was waited for"
    connection.close()
    if front.name == "vllm":
        assert first.startswith(b'{"text":')
    else:
        assert first.startswith(b"data: {") and response.headers["content-type"].startswith("text/event-stream")
    wait_until(lambda: empty(served.url))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_usage_counts_tokens_and_not_chunks(served: Served, path: str) -> None:
    """Characters of several tokens, a stop inside, two answers: the engine's own count, whole and streamed."""
    front = next(front for front in FRONT_ENDS if front.path == path)
    for said, stops, count in ((tuple("😀é".encode()), None, 7), (("alpha", *b" beta"), ["a be"], 4)):
        body = {**front.body(say(*said), 50, stops, False), "n": 2}
        whole = send(served.url, path, body).json["usage"]
        assert whole["completion_tokens"] == 2 * count
        assert whole["total_tokens"] == whole["prompt_tokens"] + 2 * count
        streamed = send(served.url, path, {**body, "stream": True, "stream_options": {"include_usage": True}})
        *chunks, last = front.events(streamed)
        assert (last["choices"], last["usage"]) == ([], whole)
        assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
        assert all("usage" not in chunk for chunk in front.events(send(served.url, path, {**body, "stream": True})))


# --- refusals and faults of streams --------------------------------------------------------------------------------


@streaming
def test_a_streams_refusal_is_that_of_the_answer(served: Served, front: FrontEnd) -> None:
    """Plain JSON with its status, before any event."""
    for prompt, limit, stops in (("x" * 2000, 5, None), ("x", 0, None), ("x", 2**31, None), ("x", -1, None)):
        whole = front.post(served.url, prompt, limit, stops)
        streamed = front.post(served.url, prompt, limit, stops, stream=True)
        assert whole.status == streamed.status == front.refused, (prompt[:5], limit)
        assert front.error(whole) == front.error(streamed)


@streaming
def test_a_fault_after_three_tokens_is_one_event_and_the_end(served: Served, front: FrontEnd) -> None:
    events = front.events(front.post(served.url, say("abcdef", fail_at=3), stream=True))
    assert "the script said so" in front.error(events[-1])
    assert all("error" not in event for event in events[:-1])
    assert "".join(front.read(events[:-1], say("abcdef", fail_at=3)).pieces) == "abc"
    first = front.post(served.url, say("a", fail_at=0), stream=True)
    assert first.status == front.fault and front.error(first)
    wait_until(lambda: empty(served.url))


@every
def test_a_fault_of_a_whole_answer_has_a_status(served: Served, front: FrontEnd) -> None:
    got = front.post(served.url, say("abcdef", fail_at=3))
    assert got.status == front.fault and "the script said so" in front.error(got)
    wait_until(lambda: empty(served.url))


# --- the company of others -----------------------------------------------------------------------------------------


@every
def test_of_40_at_once_each_gets_one_answer_and_places_come_back(served: Served, front: FrontEnd) -> None:
    small, prompt = served.urls["small"], say("ab", delay=0.1)
    calls = [
        lambda stream=stream: front.post(small, prompt, stream=stream)
        for stream in ([False, True] if front.stream_path else [False, False]) * 20
    ]
    answers = together(*calls)
    statuses = [got.status for got in answers]
    assert set(statuses) == {200, 429} and statuses.count(200) >= 4
    for got in answers:
        if got.status == 429:
            assert front.error(got) and int(got.headers["retry-after"]) >= 1
    for bad in (say("ab", fail_at=1), say("ab", fail_at=0), "x" * 2000):  # each gives its place back
        assert front.post(small, bad).status in (front.fault, front.refused)
    wait_until(lambda: empty(small) and metric(small, "interlingua_requests_inside") == 0)
    assert [got.status for got in together(*[lambda: front.post(small, "x")] * 4)] == [200] * 4


def test_clients_that_leave_streams_of_every_dialect_disturb_nobody(served: Served) -> None:
    """Fifty at once, after three pieces, with FIN and with RST; who stays gets everything, and nothing is left."""
    linger = struct.pack("ii", 1, 0)
    leaving = say("a" * 400, delay=0.02)

    def leave(number: int) -> None:
        front = STREAMING[number % len(STREAMING)]
        connection = connect(served.url)
        connection.request("POST", front.where(True), front.data(leaving, 400, None, True))
        response = connection.getresponse()
        assert response.status == 200
        for _ in range(6):
            response.readline()
        if number % 2:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        response.close()
        connection.close()

    def stay(front: FrontEnd) -> None:
        assert front.text(served.url, say("b" * 60, delay=0.01), 70, stream=True).text == "b" * 60

    wait_until(lambda: empty(served.url))
    together(*(lambda n=n: leave(n) for n in range(50)), *(lambda front=front: stay(front) for front in STREAMING))
    wait_until(lambda: empty(served.url) and metric(served.url, "interlingua_requests_inside") == 0)


# --- images --------------------------------------------------------------------------------------------------------


def png(width: int, height: int) -> bytes:
    """The head of a picture of that size, and nothing else: a few bytes that claim gigabytes."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b""))
    body = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def url_of(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64," + base64.b64encode(data).decode()


IMAGES: list[tuple[str, str]] = [
    ("no base64", "data:image/png;base64,@@@"),
    ("another kind inside", url_of(b"\xff\xd8\xff\xe0" + b"\0" * 64)),
    ("a thin one", url_of(png(10, 4000))),
    ("a bomb", url_of(png(30_000, 30_000))),
    ("three megabytes", url_of(random.Random(1).randbytes(2_250_000))),
    ("another host", "http://127.0.0.1:9/a.png"),
    ("a file", "file:///etc/passwd"),
    ("cloud metadata", "http://169.254.169.254/latest/meta-data"),
]


@pytest.mark.parametrize(("name", "url"), IMAGES, ids=[name for name, _ in IMAGES])
def test_an_image_is_refused_by_a_model_of_text_and_never_fetched(served: Served, name: str, url: str) -> None:
    image = {"type": "image_url", "image_url": {"url": url}}
    parts = [{"type": "text", "text": "what?"}, image]
    for front in FRONT_ENDS:
        if front.name in ("tgi", "root", "triton", "chat"):
            got = front.post(served.url, parts)
            assert got.status == front.refused, got.body
            message = front.error(got)
            place = "messages[0].content[1]" if front.name == "chat" else f"{front.prompt}[1]"
            assert message.startswith(f"`{place}.image_url"), message
            assert len(message) < 1000


@every
def test_markdown_with_an_image_is_text_on_every_route(served: Served, front: FrontEnd) -> None:
    for prompt in ("![](http://127.0.0.1:9/a.png) what?", "![](data:image/png;base64,AAAA) what?"):
        assert prompt in front.text(served.url, prompt).text


# --- Triton's two places for a parameter ---------------------------------------------------------------------------

PLACED: list[dict[str, Any]] = [
    {"max_tokens": 5, "temperature": 0.5, "stop": ["a", "b"]},
    {"max_tokens": 5, "temperature": 1, "stop_words": "x"},
    {"max_tokens": 7, "top_p": 0.25, "stop_words": ["x"]},
]


@pytest.mark.parametrize("fields", PLACED, ids=str)
def test_both_places_of_a_parameter_mean_the_same(served: Served, fields: dict[str, Any]) -> None:
    prompt = say("hixab and more")
    inside = {"id": "req-1", "text_input": prompt, "parameters": fields}
    beside = {"id": "req-1", "text_input": prompt, **fields}
    answers = [send(served.url, TRITON, body).json for body in (inside, beside)]
    assert answers[0] == answers[1]
    assert answers[0]["id"] == "req-1" and answers[0]["text_output"] == ("hix" if "stop" in fields else "hi")
    events = [FRONT_ENDS[2].events(send(served.url, TRITON_STREAM, body)) for body in (inside, beside)]
    assert events[0] == events[1]
    assert all((event["id"], event["model_name"], event["model_version"]) == ("req-1", MODEL, None)
               for event in events[0])  # fmt: skip
    for bad in ("bad id!", "x" * 300, ""):
        got = send(served.url, TRITON, {**inside, "id": bad})
        assert got.status == 400 and got.json["error"].startswith("`id`")


# --- health --------------------------------------------------------------------------------------------------------


def test_health_is_good_in_a_full_house_of_every_dialect(served: Served) -> None:
    """Also while bodies of megabytes are read and refused."""
    small, seen = served.urls["small"], []

    def ask(path: str) -> None:
        while not done:
            begun = time.monotonic()
            got = send(small, path, method="GET")
            seen.append((got.status, time.monotonic() - begun))

    done: list[bool] = []

    def crowd() -> None:
        try:
            calls = [lambda f=front: f.post(small, say("ab", delay=0.1)) for front in FRONT_ENDS]
            big = [lambda f=front: f.post(served.url, "x" * 3_000_000) for front in FRONT_ENDS]
            together(*calls, *big, *calls)
        finally:
            done.append(True)

    together(crowd, lambda: ask("/health"), lambda: ask("/v2/health/live"), lambda: ask("/v2/health/ready"))
    assert len(seen) > 20 and {status for status, _ in seen} == {200}
    assert max(seconds for _, seconds in seen) < 10


def test_nothing_is_left_of_anything(served: Served) -> None:
    for url in (served.url, served.urls["small"]):
        wait_until(lambda url=url: empty(url) and metric(url, "interlingua_requests_inside") == 0)
        assert json.loads(send(url, "/generate", {"inputs": "x"}).body)["generated_text"]
