"""A table of hostile inputs: each is refused or cut off in time, none reaches the engine, and the server lives on.

No time is asserted beyond a generous hang limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import re
from collections.abc import Callable

import pytest
from byte_model import script
from server_site import Site, Start
from sockets import Connection

from interlingua.engine.echo import Script

HANG = 30.0  # seconds
BODY = b'{"inputs":"x"}'
CHUNKED = b"e\r\n" + BODY + b"\r\n0\r\n\r\n"
HIDDEN = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 14\r\n\r\n" + BODY  # the smuggled one


def head(*lines: bytes, line: bytes = b"POST /generate HTTP/1.1") -> bytes:
    return b"\r\n".join((line, b"host: x", *lines, b"", b""))


def length(value: bytes) -> bytes:
    return b"content-length: " + value


def chunked(body: bytes, *lines: bytes) -> bytes:
    return head(b"transfer-encoding: chunked", *lines) + body


# What two servers in a row might understand differently, each with a request hidden in what one takes for a body.
SMUGGLING: dict[str, bytes] = {
    "two equal lengths": head(length(b"14"), length(b"14")) + BODY + HIDDEN,
    "two lengths": head(length(b"14"), length(b"0")) + BODY + HIDDEN,
    "a list of lengths": head(length(b"14, 14")) + BODY + HIDDEN,
    "a length with a sign": head(length(b"+14")) + BODY + HIDDEN,
    "a negative length": head(length(b"-1")) + BODY,
    "a length in hex": head(length(b"0xe")) + BODY,
    "an empty length": head(length(b"")) + BODY,
    "a length past 64 bits": head(length(b"9" * 30)) + BODY,
    "length, then coding": head(length(b"4"), b"transfer-encoding: chunked") + CHUNKED + HIDDEN,
    "coding, then length": head(b"transfer-encoding: chunked", length(b"4")) + CHUNKED + HIDDEN,
    "an unknown coding": head(b"transfer-encoding: xchunked") + CHUNKED,
    "identity": head(b"transfer-encoding: identity") + BODY,
    "a coding before chunked": head(b"transfer-encoding: gzip, chunked") + CHUNKED,
    "chunked twice": head(b"transfer-encoding: chunked, chunked") + CHUNKED,
    "two codings": head(b"transfer-encoding: chunked", b"transfer-encoding: identity") + CHUNKED,
    "a coding in quotes": head(b'transfer-encoding: "chunked"') + CHUNKED,
    "a coding behind a vertical tab": head(b"transfer-encoding: \x0bchunked") + CHUNKED,
    "a space before the colon": head(b"transfer-encoding : chunked") + CHUNKED,
    "a length with a space before the colon": head(b"content-length : 14") + BODY,
    "a folded header": head(b"x-a: b\r\n c", length(b"14")) + BODY,
    "a folded coding": head(b"transfer-encoding:\r\n chunked") + CHUNKED,
    "a header before the first": b"POST /generate HTTP/1.1\r\n x: y\r\n" + head(line=b"x: y") + BODY,
    "bare line feeds": head(length(b"14")).replace(b"\r\n", b"\n") + BODY,
    "one bare line feed": head(length(b"14")).replace(b"x\r\n", b"x\n", 1) + BODY,
    "a bare line feed at the end": head(length(b"14"))[:-2] + b"\n" + BODY,
    "a bare carriage return": head(b"x-a: b\rx-c: d", length(b"14")) + BODY,
    "a NUL in a header": head(b"x-a: b\0", length(b"14")) + BODY,
    "a NUL in a name": head(b"x\0a: b", length(b"14")) + BODY,
    "chunks between line feeds": chunked(CHUNKED.replace(b"\r\n", b"\n")),
    "a line feed in a chunk extension": chunked(b"e;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk size with a prefix": chunked(b"0xe\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk size past 64 bits": chunked(b"f" * 17 + b"\r\n" + BODY),
    "a negative chunk size": chunked(b"-1\r\n" + BODY),
    "a space behind a chunk size": chunked(b"e \r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk longer than its size": chunked(b"d\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a length in the trailer": chunked(b"e\r\n" + BODY + b"\r\n0\r\ncontent-length: 4\r\n\r\n"),
    "chunks in HTTP/1.0": chunked(CHUNKED).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "two hosts": head(b"host: y", length(b"14")) + BODY,
    "no host": head(length(b"14")).replace(b"host: x\r\n", b"") + BODY,
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "HTTP/2 without asking": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a tunnel": b"CONNECT other:80 HTTP/1.1\r\nhost: other:80\r\n\r\n",
    "another case of the protocol": head(length(b"14")).replace(b"HTTP", b"http") + BODY,
}

# No connection survives these either.
OVERSIZE: dict[str, bytes] = {
    "ten thousand headers": head(*(b"x-%d: a" % number for number in range(10_000))),
    "ten thousand trailers": chunked(
        b"0\r\n" + b"".join(b"x-%d: a\r\n" % number for number in range(10_000)) + b"\r\n"
    ),
    "one endless header": head(b"x-a: " + b"a" * 1_000_000),
    "one endless name": head(b"a" * 1_000_000 + b": a"),
    "one endless path": b"GET /" + b"a" * 1_000_000,
}


async def answers(site: Site, data: bytes) -> list[int]:
    """The statuses of all that comes back until the server closes the connection."""
    connection = await site.connect()
    received = b""
    with contextlib.suppress(ConnectionError):
        connection.writer.write(data)
        received = await asyncio.wait_for(connection.reader.read(), HANG)
    connection.close()
    assert re.search(rb"secret|Traceback|Error\b.*line", received) is None
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", received)]


async def alive(site: Site) -> None:
    """Nothing has reached the engine, and an honest request is served."""
    assert site.home.engine.stats().steps_total == 0
    assert (await site.ask("GET", "/health")).status == 200
    assert (await site.post("/generate", {"inputs": "x"})).status == 200
    await site.home.emptied()


@pytest.mark.parametrize("name", SMUGGLING)
async def test_smuggling(start: Start, name: str):
    """One refusal and a closed connection: what follows on it must not be taken for a request."""
    site = await start(script("ok"))
    assert await answers(site, SMUGGLING[name]) in ([400], [400, 400])
    await alive(site)


@pytest.mark.parametrize("name", OVERSIZE)
async def test_oversize_heads(start: Start, name: str):
    site = await start(script("ok"))
    statuses = await answers(site, OVERSIZE[name])
    assert statuses in ([431], []), "refused, or cut off in the middle of sending"
    await alive(site)


async def test_slowloris(start: Start):
    """Two hundred that send a byte of their head now and then; honest clients are served meanwhile."""
    site = await start(script("ok"), server={"header_timeout": 0.5})

    async def drip() -> None:
        connection = await site.connect()
        with contextlib.suppress(ConnectionError):
            connection.writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\nx-a: ")
            while not connection.writer.is_closing():
                connection.writer.write(b"a")
                await asyncio.sleep(0.05)
        connection.close()

    dripping = asyncio.gather(*(drip() for _ in range(200)))
    assert (await site.post("/generate", {"inputs": "x"})).status == 200
    await asyncio.wait_for(dripping, HANG)
    await site.home.emptied()


async def test_a_gigabyte_of_chunks(start: Start):
    """Refused when the limit is passed, and the sender is cut off when it does not stop."""
    site = await start(script("ok"), server={"payload_limit": 1 << 20})
    connection = await site.connect()
    connection.send_head("POST", "/generate", "transfer-encoding: chunked")
    piece = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    sent = 0

    async def send() -> None:
        nonlocal sent
        for _ in range(1024):
            connection.writer.write(piece)
            await connection.writer.drain()
            sent += 1

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(send(), HANG)
    assert sent < 64, "megabytes that the server took before it cut the sender off"
    connection.close()
    await alive(site)


@pytest.mark.parametrize("piece", [b"1;" + b"a" * 4000 + b"\r\nx\r\n", b"00000000001;a=b\r\nx\r\n"])
async def test_chunk_extensions_are_read_over_but_not_for_ever(start: Start, piece: bytes):
    site = await start(script("ok"))
    assert await answers(
        site, head(b"transfer-encoding: chunked", b"connection: close") + b"e;a=b\r\n" + BODY + b"\r\n0\r\n\r\n"
    ) == [200]
    site = await start(script("ok"))
    connection = await site.connect()
    connection.send_head("POST", "/generate", "transfer-encoding: chunked")

    async def send() -> None:
        while True:
            connection.writer.write(piece * 100)
            await connection.writer.drain()

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(send(), HANG)
    connection.close()
    await alive(site)


DEEP = 5_000_000
BOMBS: dict[str, Callable[[], bytes]] = {
    "brackets": lambda: b"[" * DEEP,
    "closed brackets": lambda: b"[" * DEEP + b"]" * DEEP,
    "braces": lambda: b'{"inputs":' * (DEEP // 10),
    "brackets in a field": lambda: b'{"inputs":"x","parameters":{"stop":' + b"[" * DEEP + b"]" * DEEP + b"}}",
    "a number of a million digits": lambda: b'{"inputs":"x","parameters":{"max_new_tokens":' + b"9" * 1_000_000 + b"}}",
    "a float of a million digits": lambda: b'{"inputs":"x","parameters":{"top_p":0.' + b"9" * 1_000_000 + b"e999999}}",
    "a huge exponent": lambda: b'{"inputs":"x","parameters":{"temperature":1e999999999}}',
    "half a string": lambda: b'{"inputs":"' + b"x" * DEEP,
    "escapes": lambda: b'{"inputs":"' + b"\\ud800" * 500_000 + b'"}',
    "a million stops": lambda: b'{"inputs":"x","parameters":{"stop":[' + b",".join([b'"a"'] * 1_000_000) + b"]}}",
    "a million parts": lambda: b'{"inputs":[' + b",".join([b'{"type":"text","text":"a"}'] * 1_000_000) + b"]}",
    "a million members": lambda: b'{"inputs":"x","y":{' + b",".join(b'"%d":0' % n for n in range(1_000_000)) + b"}}",
    "NUL bytes": lambda: b"\0" * 1_000_000,
    "UTF-16": lambda: '{"inputs":"x"}'.encode("utf-16"),
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("name", BOMBS)
async def test_json_bombs(start: Start, name: str):
    site = await start(script("ok"))
    body = BOMBS[name]()
    for path, status in (("/generate", 422), ("/v2/models/bytes/generate_stream", 400)):
        answer = await asyncio.wait_for(site.post(path, body), HANG)
        assert answer.status == status and answer.json["error_type"] == "validation"
        assert len(answer.body) < 2000, "a refusal does not send the bomb back"
    await alive(site)


PATHS = (
    "/../../etc/passwd",
    "/..%2f..%2fetc%2fpasswd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/generate%00",
    "/generate%2f",
    "/generate/..",
    "//generate",
    "/./generate",
    "/generate;x=y",
    "/GENERATE",
    "/generate%0d%0aset-cookie:%20x=y",
    "/v2/models/..%2f..%2fsecret/generate",
    "/v2/models/%2e%2e/generate",
    "/v2/models/bytes%00/generate",
    "/v2/models/%F0%9F%98%80/generate",
    "/v2/models/%ff%fe/generate",
    "/v2/models/bytes/versions/..%2f1/generate",
    "/v2/models/" + "a" * 60_000 + "/generate",
    "/" + "a/" * 30_000,
    "http://other/nothing",
)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:40])
async def test_path_tricks(start: Start, path: str):
    """Names are compared, never looked up on a disk: what is no route or model is 404 in JSON."""
    site = await start(script("ok"))
    answer = await asyncio.wait_for(site.post(path, {"inputs": "x", "text_input": "x"}), HANG)
    assert answer.status == 404 and answer.json["error_type"] == "not_found"
    assert answer.headers["content-type"] == "application/json" and "set-cookie" not in answer.headers
    await alive(site)


@pytest.mark.parametrize("path", ["/{}", "/v1/models/{}", "/v2/models/{}", "/v2/models/{}/generate"])
async def test_long_paths_do_not_come_back(start: Start, path: str):
    site = await start(script("ok"))
    for method in ("GET", "POST", "DELETE"):
        answer = await site.ask(method, path.format("a" * 50_000), {"text_input": "x"})
        assert answer.status in (404, 405) and len(answer.body) < 1000
    await alive(site)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a/../../b", "..", "x\0y", "x" * 300, "%2e%2e", "a b"]
)
async def test_adapter_name_tricks(start: Start, name: str):
    site = await start(script("ok"))
    answer = await site.post("/generate", {"inputs": "x", "parameters": {"adapter_id": name}})
    assert answer.status == 422 and "adapter_id" in answer.json["error"]
    await alive(site)


async def test_a_wish_for_another_protocol_is_declined_and_the_request_served(start: Start):
    """Java's client wishes for HTTP/2 with its first request; a body must not get lost over it."""
    site = await start(script("ok"))
    wish = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABk")
    data = head(*wish, length(b"14")) + BODY + head(b"connection: close", length(b"14")) + BODY
    assert await answers(site, data) == [200, 200]
    assert await answers(site, chunked(CHUNKED, *wish, b"connection: close")) == [200]
    socket = (b"connection: upgrade, close", b"upgrade: websocket")
    assert await answers(site, head(*socket, line=b"GET /health HTTP/1.1")) == [200]
    await site.home.emptied()


async def everything(connection: Connection) -> bytes:
    return await asyncio.wait_for(connection.reader.read(), HANG)


async def test_a_request_that_cannot_be_read_waits_for_the_answers_before_it(start: Start):
    """Its refusal must be taken for no other's answer, and must not stand in the middle of a stream."""
    site = await start(Script(ids=(97,) * 20, delay=0.01))
    stream = b'{"inputs":"x","parameters":{"max_new_tokens":20}}'
    line = b"POST /generate_stream HTTP/1.1"
    connection = await site.connect()
    connection.writer.write(head(length(b"%d" % len(stream)), line=line) + stream)
    first = await asyncio.wait_for(connection.reader.readuntil(b"\n\n"), HANG)
    connection.writer.write(head(length(b"14")) + BODY + chunked(b"no chunk\r\n") + HIDDEN)
    rest = await everything(connection)
    streamed, _, after = (first + rest).partition(b"0\r\n\r\n")
    assert streamed.count(b"data:") == 20
    assert re.findall(rb"HTTP/1\.1 (\d+)", after) == [b"200", b"400"]
    connection.close()
    await site.home.emptied()


async def test_a_late_head_waits_for_the_answer_before_it(start: Start):
    site = await start(Script(ids=(97,) * 20, delay=0.03), server={"header_timeout": 0.2})
    connection = await site.connect()
    body = b'{"inputs":"x","parameters":{"max_new_tokens":20}}'
    connection.writer.write(head(length(b"%d" % len(body))) + body + b"POST /gen")
    assert re.findall(rb"HTTP/1\.1 (\d+)", await everything(connection)) == [b"200", b"408"]
    connection.close()
    await site.home.emptied()


async def test_a_client_of_pipelined_requests_may_leave(start: Start, caplog: pytest.LogCaptureFixture):
    """uvicorn tells the last request of the end alone; the one being answered must not fail over it."""
    site = await start(Script(ids=(97,) * 1000, delay=0.01))
    for path in (b"/generate", b"/generate_stream"):
        connection = await site.connect()
        body = b'{"inputs":"x","parameters":{"max_new_tokens":1000}}'
        one = head(length(b"%d" % len(body)), line=b"POST %s HTTP/1.1" % path) + body
        connection.writer.write(one * 2)
        while not site.home.engine.stats().running:  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0.01)
        connection.reset()
        await site.home.emptied()
        await asyncio.sleep(0.05)  # what the connection's task still has to say
    gc.collect()  # tasks whose exceptions nobody has seen speak then
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_http_1_0_gets_no_chunks_and_no_interim_answer(start: Start):
    site = await start(script("ok"))
    line = b"POST /generate_stream HTTP/1.0"
    connection = await site.connect()
    connection.writer.write(head(length(b"14"), b"expect: 100-continue", line=line) + BODY)
    top, _, answer = (await everything(connection)).partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 200") and b"connection: close" in top and b"transfer-encoding" not in top
    assert answer.startswith(b"data:") and answer.endswith(b"}\n\n")
    assert await answers(site, head(length(b"14"), line=b"POST /generate HTTP/1.0") + BODY) == [200]
    connection.close()
    await site.home.emptied()


async def test_a_length_of_thousands_of_zeros(start: Start):
    """Python reads at most 4,300 digits."""
    site = await start(script("ok"))
    assert await answers(site, head(length(b"0" * 5000 + b"14"), b"connection: close") + BODY) == [200]
    assert await answers(site, head(length(b"0" * 5000 + b"99999999"), b"connection: close")) == [413]


async def test_a_crowd_that_connects_and_says_nothing(start: Start):
    """They hold sockets for `header_timeout` and nothing else."""
    site = await start(Script(ids=(97,) * 5, delay=0.01), server={"header_timeout": 0.3})
    crowd = [await site.connect() for _ in range(300)]
    assert len((await site.post("/generate_stream", {"inputs": "x", "parameters": {"max_new_tokens": 5}})).events) == 5
    ends = await asyncio.wait_for(asyncio.gather(*(connection.reader.read() for connection in crowd)), HANG)
    assert ends == [b""] * 300
    for connection in crowd:
        connection.close()
    await site.home.emptied()
