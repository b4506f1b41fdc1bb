"""What the socket takes: bodies, heads and clients that are too large, too slow or not HTTP at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time

import pytest
from byte_model import script
from server_site import Start
from sockets import Connection

from interlingua.engine.echo import Script
from interlingua.service.prepare import Limits

LIMIT = 10_000


def padded(size: int) -> bytes:
    """A good request of exactly `size` bytes."""
    frame = json.dumps({"inputs": "x", "pad": ""}).encode()
    return frame.replace(b'""', b'"' + b"x" * (size - len(frame)) + b'"')


# --- bodies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("over", "status"), [(0, 200), (1, 413), (LIMIT * 10, 413)])
async def test_body_limit(start: Start, over: int, status: int, chunked: bool):
    site = await start(script("ok"), server={"payload_limit": LIMIT})
    connection = await site.connect()
    data = padded(LIMIT + over)
    if chunked:
        connection.send_head("POST", "/generate", "transfer-encoding: chunked")
        for at in range(0, len(data), 3000):
            piece = data[at : at + 3000]
            connection.writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await connection.writer.drain()
        connection.writer.write(b"0\r\n\r\n")
    else:
        connection.send("POST", "/generate", data)
    answer = await connection.answer()
    assert answer.status == status
    if status == 413:
        assert answer.json["error_type"] == "validation" and str(LIMIT) in answer.json["error"]
    # The rest of the body was thrown away, so the connection still works.
    assert (await connection.ask("POST", "/generate", {"inputs": "x"})).status == 200
    connection.close()
    await site.home.emptied()


async def test_a_body_that_says_it_is_too_large_is_not_waited_for(start: Start):
    site = await start(server={"payload_limit": LIMIT})
    connection = await site.connect()
    connection.send_head("POST", "/generate", f"content-length: {LIMIT + 1}", "expect: 100-continue")
    assert (await connection.answer()).status == 413
    connection.close()


async def test_expect_continue_is_answered(start: Start):
    site = await start(script("ok"))
    connection = await site.connect()
    data = padded(100)
    connection.send_head("POST", "/generate", f"content-length: {len(data)}", "expect: 100-continue")
    assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.writer.write(data)
    assert (await connection.answer()).status == 200
    connection.close()


async def test_a_client_that_goes_on_after_its_refusal_is_cut_off(start: Start):
    site = await start(server={"payload_limit": LIMIT})
    connection = await site.connect()
    connection.send_head("POST", "/generate", "transfer-encoding: chunked")

    async def send_for_ever() -> None:
        while True:
            connection.writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
            await connection.writer.drain()

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(send_for_ever(), 20)
    await site.home.emptied()


async def test_a_body_that_stops_coming(start: Start):
    site = await start(server={"body_timeout": 0.1})
    connection = await site.connect()
    connection.send_head("POST", "/generate", "content-length: 100")
    connection.writer.write(b'{"inputs":')
    answer = await connection.answer()
    assert answer.status == 408 and answer.json["error_type"] == "timeout"
    assert await connection.reader.read() == b"", "the connection is closed"
    connection.close()
    await site.home.emptied()


async def test_a_slow_body_that_makes_progress_is_good(start: Start):
    site = await start(script("ok"), server={"body_timeout": 0.3})
    connection = await site.connect()
    data = padded(60)
    connection.send_head("POST", "/generate", f"content-length: {len(data)}")
    for at in range(0, len(data), 10):
        connection.writer.write(data[at : at + 10])
        await asyncio.sleep(0.08)
    assert (await connection.answer()).status == 200
    connection.close()


async def test_too_many_pipelined_requests_are_cut_off(start: Start):
    site = await start(Script(start_delay=30))
    connection = await site.connect()
    for _ in range(30):
        connection.send("POST", "/generate", {"inputs": "x"})
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(connection.reader.read(), 10) == b""
    await site.home.emptied(1.0)


# --- heads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([f"x-{n}: a" for n in range(98)], 200),
        ([f"x-{n}: a" for n in range(99)], 431),
        (["x-big: " + "a" * 65_000], 200),
        (["x-big: " + "a" * 65_600], 431),
        ([f"x-{n}: " + "a" * 2000 for n in range(40)], 431),
    ],
)
async def test_head_limits(start: Start, headers: list[str], status: int):
    site = await start()
    connection = await site.connect()
    connection.send_head("GET", "/health", "accept: */*", *headers)
    answer = await connection.answer()
    assert answer.status == status
    if status != 200:
        assert answer.json["error_type"] == "validation"
    connection.close()


async def test_an_endless_url_is_refused_before_it_ends(start: Start):
    site = await start()
    connection = await site.connect()
    connection.writer.write(b"GET /" + b"a" * 100_000)
    assert (await connection.answer()).status == 431
    connection.close()


async def test_a_head_that_does_not_end(start: Start):
    site = await start(server={"header_timeout": 0.1})
    connection = await site.connect()
    connection.writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\n")
    assert (await connection.answer()).status == 408
    assert await connection.reader.read() == b""
    connection.close()


async def test_a_connection_that_asks_for_nothing_is_closed_without_a_word(start: Start):
    site = await start(server={"header_timeout": 0.1})
    connection = await site.connect()
    assert await connection.reader.read() == b""
    connection.close()


async def test_an_idle_connection_may_wait_longer_than_a_head(start: Start):
    site = await start(script("ok"), server={"header_timeout": 0.1})
    connection = await site.connect()
    for _ in range(2):
        assert (await connection.ask("POST", "/generate", {"inputs": "x"})).status == 200
        await asyncio.sleep(0.25)
    connection.writer.write(b"POST /generate HTTP/1.1\r\n")
    assert (await connection.answer()).status == 408
    connection.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        "GET /é HTTP/1.1\r\nhost: x\r\n\r\n".encode(),
    ],
)
async def test_what_is_no_http(start: Start, sent: bytes):
    site = await start()
    connection = await site.connect()
    connection.writer.write(sent)
    answer = await connection.answer()
    assert answer.status == 400 and answer.json["error_type"] == "validation"
    connection.close()
    assert (await site.ask("GET", "/health")).status == 200


# --- long prompts ----------------------------------------------------------------------------------------


class SlowWords:
    """The byte tokenizer, but it takes its time, and holds the interpreter for some of it."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        pattern = re.compile("(x+x+)+y")  # `re` never releases the interpreter
        until = time.monotonic() + min(1.0, len(text) / 2_000_000)
        while time.monotonic() < until:
            pattern.match("x" * 16)
        return self._inner.encode(text[:100], add_special)  # type: ignore[attr-defined,no-any-return]


async def test_a_four_megabyte_prompt_holds_up_nobody(start: Start):
    site = await start(script("ok"), limits=Limits(max_prompt_chars=5_000_000))
    model = site.home.service.model
    assert model is not None
    site.home.service.attach(
        type(model)(model.name, model.engine, SlowWords(model.tokenizer), model.defaults)  # type: ignore[arg-type]
    )
    longest = 0.0
    answers = 0
    big = asyncio.create_task(site.post("/generate", {"inputs": "x" * 4_000_000}))
    connection = await Connection.open(site.port)
    begun = time.monotonic()
    while not big.done():
        before = time.monotonic()
        assert (await connection.ask("GET", "/health")).status == 200
        assert (await connection.ask("POST", "/generate", {"inputs": "short"})).status == 200
        longest = max(longest, time.monotonic() - before)
        answers += 1
    assert (await big).status == 200
    assert time.monotonic() - begun > 0.9 and answers > 5
    assert longest < 10, f"{longest:.3f} s between two answers to others"
    connection.close()
    await site.home.emptied()
