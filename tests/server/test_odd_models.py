"""Models unlike the others: templates that object, write the BOS or are not there, several ends of a text, a vocabulary
of sixteen tokens. The same requests on every dialect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from byte_model import BOS, EOS, ByteTokenizer, Span
from front_ends import FRONT_ENDS, FrontEnd
from server_site import Site, Start
from sockets import Answer, ask
from tiny_models import VARIANTS, TinyModel, write_tiny_model
from wire_cases import MODEL

from interlingua.engine.echo import Script
from interlingua.engine.native.engine import NativeEngine, NativeOptions
from interlingua.hub.files import from_folder
from interlingua.server.app import build_app
from interlingua.server.routes import discover
from interlingua.server.run import bind, listening
from interlingua.server.settings import ServerSettings
from interlingua.service.service import ServedModel, Service
from interlingua.text.chat_template import ChatTemplate

TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
every = pytest.mark.parametrize("front", FRONT_ENDS, ids=lambda front: front.name)


@pytest.fixture
async def begin(start: Start) -> AsyncIterator[Callable[..., Any]]:
    """Starts a server with this template, tokenizer and script; ends the template's processes."""
    sites: list[Site] = []

    async def made(
        template: str | None = None, tokenizer: ByteTokenizer | None = None, say: Any = None, **tokens: str
    ) -> Site:
        site = await start(say, loaded=False)
        chat = ChatTemplate(template, tokens)
        site.home.service.attach(ServedModel(MODEL, site.home.engine, tokenizer or ByteTokenizer(), chat=chat))
        sites.append(site)
        return site

    yield made
    for site in sites:
        site.home.service.close()


async def chat(site: Site, *messages: dict[str, Any], **fields: Any) -> Answer:
    return await site.post("/v1/chat/completions", {"model": MODEL, "messages": messages, **fields})


def turn(role: str, content: Any = "u", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


# --- no model yet --------------------------------------------------------------------------------------------------


async def test_before_the_model_each_dialect_says_so_and_its_first_request_after_is_served(start: Start) -> None:
    site = await start(loaded=False)
    for front in FRONT_ENDS:
        for stream in (False, True) if front.stream_path else (False,):
            got = await site.post(front.where(stream), front.body("abc", 3, None, stream))
            assert (got.status, got.headers["content-type"]) == (503, "application/json"), (front.name, got.body)
            assert list(got.json) == (["error"] if front.is_openai else ["error", "error_type"])
    chat = ChatTemplate("{{ messages[0].content }}")
    site.home.service.attach(ServedModel(MODEL, site.home.engine, ByteTokenizer(), chat=chat))
    assert (await site.ask("GET", f"/v2/models/{MODEL}/ready")).status == 200
    for front in FRONT_ENDS:
        assert (await site.post(front.path, front.body("abc", 3, None, False))).status == 200
    site.home.service.begin_stop()
    for front in FRONT_ENDS:
        assert (await site.post(front.path, front.body("abc", 3, None, False))).status == 503
    site.home.service.close()


# --- chat templates ------------------------------------------------------------------------------------------------

# As several published templates do: no system role, and turns that alternate.
STRICT = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{{ m['content'] }}{% endfor %}"
)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_templates_objection_is_the_callers_to_read(begin: Callable[..., Any], stream: bool) -> None:
    site = await begin(STRICT)
    for messages, words in (
        ((turn("system"), turn("user")), "System role not supported"),
        ((turn("user"), turn("user")), "Conversation roles must alternate"),
        ((turn("robot"),), "messages[0].role"),
    ):
        got = await chat(site, *messages, stream=stream)
        assert (got.status, got.headers["content-type"]) == (400, "application/json")
        assert words in got.json["error"]["message"] and got.json["error"]["param"].startswith("messages")
    assert (await chat(site, turn("user"), max_tokens=3)).status == 200
    await site.home.emptied()


async def test_without_a_template_only_chat_is_refused(begin: Callable[..., Any]) -> None:
    site = await begin(None)
    for front in FRONT_ENDS:
        got = await site.post(front.path, front.body("abc", 3, None, False))
        if front.name == "chat":
            assert got.status == 400 and "chat template" in got.json["error"]["message"]
        else:
            assert got.status == 200, (front.name, got.body)
    await site.home.emptied()


class NoBos(ByteTokenizer):
    """Adds nothing, and makes nothing of a space that has no width, as many normalisers do."""

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return super().encode(text.replace("\u200b", ""), add_special)


async def test_a_prompt_that_comes_to_nothing_is_none(begin: Callable[..., Any]) -> None:
    """A tokenizer without BOS: no sequence of length 0 reaches the engine."""
    site = await begin("{{ messages[0].content }}", NoBos(bos_id=None))
    for front in FRONT_ENDS:
        for nothing in ("", "\u200b"):
            got = await site.post(front.path, front.body(nothing, 3, None, False))
            assert got.status == front.refused, (front.name, got.body)
            assert f"`{front.prompt}`" in str(got.json)
        got = await site.post(front.path, front.body(" ", 3, None, False))
        assert got.status == 200, (front.name, got.body)
    got = await site.post("/v1/completions", {"model": MODEL, "prompt": [], "max_tokens": 3})
    assert got.status == 400
    await site.home.emptied()


ARGUMENTS = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments.a + 1 }}{% endfor %}{{ m.content or '-' }}|{% endfor %}"  # noqa: E501 - one line of Jinja


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}])
async def test_a_turn_of_calls_needs_no_content(begin: Callable[..., Any], content: dict[str, Any]) -> None:
    """`arguments`, sent as text, is an object where the template treats it as one; text parts are joined by nothing."""
    site = await begin(ARGUMENTS)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    called = {"role": "assistant", "tool_calls": [TOOL_CALL], **content}
    done = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
    got = await chat(site, turn("user", parts), called, done)
    assert got.status == 200, got.body
    assert got.json["choices"][0]["message"]["content"] == "ab|2-|ok|"
    bad = await chat(site, turn("user"), turn("user", [{"type": "foo"}]))
    assert (bad.status, bad.json["error"]["param"]) == (400, "messages[1].content[0].type")
    assert (await chat(site, turn("user", []))).status == 400


async def test_the_beginning_of_a_text_comes_once(begin: Callable[..., Any]) -> None:
    """Written by the template: the template's tokens and no more. Raw text: one, added or already there."""
    site = await begin("{{ bos_token }}{{ messages[0].content }}", bos_token="<s>")
    got = await chat(site, turn("user", "Hi"), max_tokens=1)
    assert got.json["usage"]["prompt_tokens"] == 3
    bare = await begin("{{ messages[0].content }}")
    got = await chat(bare, turn("user", "Hi"), max_tokens=1)
    assert got.json["usage"]["prompt_tokens"] == 2
    for text in ("Hi", "<s>Hi"):
        for front in FRONT_ENDS[:2]:
            body = front.body(text, 1, None, False)
            body["parameters"]["decoder_input_details"] = True
            answer = (await site.post(front.path, body)).json
            details = (answer[0] if isinstance(answer, list) else answer)["details"]
            assert [token["id"] for token in details["prefill"]] == [BOS, *b"Hi"]
        got = await site.post("/v1/completions", {"model": MODEL, "prompt": text, "max_tokens": 1})
        assert got.json["usage"]["prompt_tokens"] == 3


# --- ends of a text ------------------------------------------------------------------------------------------------

ENDS = (EOS, 1, 2, 3)


class ManyEnds(ByteTokenizer):
    """Four tokens end a text: the end of the sequence, and three more as `eos_token_id` lists them."""

    token_bytes = (b"\0", b"<end1>", b"<end2>", b"<end3>", *ByteTokenizer.token_bytes[4:])
    special_ids = frozenset({BOS, *ENDS})
    eos_ids = frozenset(ENDS)


@every
@pytest.mark.parametrize("end", ENDS)
async def test_each_end_of_a_text_ends_it_and_is_never_shown(
    begin: Callable[..., Any], front: FrontEnd, end: int
) -> None:
    site = await begin("{{ messages[0].content }}", ManyEnds(), Script(ids=(*b"abc", end, *b"never")))
    whole = await site.post(front.path, front.body("x", 50, None, False))
    assert front.read(whole.json, "x").text == "abc"
    assert reason_of(front, whole.json) in ("eos_token", "stop", None)
    last = await site.post(front.path, front.body("x", 4, None, False))
    assert front.read(last.json, "x").text == "abc"
    assert reason_of(front, last.json) in ("length", None)  # the end came as the last token that was allowed
    if front.stream_path:
        got = await site.post(front.stream_path, front.body("x", 50, None, True))
        events = front.events(got)
        streamed = front.read(events, "x")
        assert streamed.text == "".join(streamed.pieces) == "abc"
        if front.name in ("tgi", "root"):
            token = events[-1]["token"]
            assert (token["id"], token["special"]) == (end, True)
            assert events[-1]["details"]["finish_reason"] == "eos_token"
        elif front.name != "native":
            assert b"end" not in got.body and b"</s>" not in got.body
    await site.home.emptied()


def reason_of(front: FrontEnd, answer: Any) -> str | None:
    """None where the dialect says none."""
    if front.is_openai:
        reason = answer["choices"][0]["finish_reason"]
    else:
        answer = answer[0] if isinstance(answer, list) else answer
        reason = (answer.get("details") or {}).get("finish_reason")
    assert reason is None or isinstance(reason, str)
    return reason


# --- a small vocabulary --------------------------------------------------------------------------------------------

SIXTEEN = b"\1\2\3abcdefghijkl "


class Sixteen:
    """One token for each of sixteen characters; the second begins a text and the third ends it."""

    token_bytes = tuple(bytes([value]) for value in SIXTEEN)
    special_ids = frozenset({1, 2})
    eos_ids = frozenset({2})
    bos_id = 1

    def id_to_text(self, token_id: int) -> str:
        return self.token_bytes[token_id].decode()

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [*([1] if add_special else []), *(SIXTEEN.index(byte) for byte in text.encode())]

    def encode_with_offsets(self, text: str, add_special: bool = True) -> list[Span]:
        return [Span(one, chr(SIXTEEN[one]), at, at + 1) for at, one in enumerate(self.encode(text, False))]


async def test_wishes_larger_than_the_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alternatives: as many as there are. A top-k past the end: none. Ids past it: refused. Neighbours: untouched."""
    monkeypatch.setitem(VARIANTS, "sixteen", TinyModel({"vocab_size": len(SIXTEEN)}))
    engine = NativeEngine(
        from_folder(write_tiny_model("sixteen", tmp_path), MODEL), NativeOptions(threads=1, kv_memory=1 << 20)
    )
    await engine.start()
    service = Service()
    service.attach(ServedModel(MODEL, engine, Sixteen(), chat=ChatTemplate("{{ messages[0].content }}")))
    settings = ServerSettings(port=0, stop_grace=0.2)
    listener = bind(settings)
    port = listener.getsockname()[1]

    async def post(path: str, **body: Any) -> Answer:
        return await ask(port, "POST", path, body)

    messages = [{"role": "user", "content": "abc"}]
    neighbour = {"inputs": "fed", "parameters": {"max_new_tokens": 24, "ignore_eos": True, "details": True, "seed": 1}}
    async with listening(build_app(service, discover(), settings), listener):
        alone = await post("/generate", **neighbour)
        calls = [
            post("/v1/chat/completions", messages=messages, max_tokens=3, logprobs=True, top_logprobs=20),
            post("/v1/chat/completions", messages=messages, max_tokens=3, logit_bias={"16": 5}),
            post("/v1/chat/completions", messages=messages, max_tokens=3, stop_token_ids=[99_999_999]),
            post("/v1/completions", prompt=[3, 16], max_tokens=3),
            post("/v1/completions", prompt="abc", max_tokens=3, echo=True, logprobs=5, top_k=1),
            post("/generate", inputs="abc", parameters={"do_sample": True, "top_k": 5_000_000, "max_new_tokens": 4}),
            post("/infer", input_id=[3, 16], parameters={"max_new_tokens": 4}),
            post("/generate", **neighbour),
        ]
        top, bias, stops, prompt, echo, top_k, ids, together = await asyncio.gather(*calls)
    for refused, field in ((bias, "logit_bias"), (stops, "stop_token_ids"), (prompt, "prompt")):
        assert (refused.status, refused.json["error"]["param"].split("[")[0]) == (400, field), refused.body
    assert ids.status == 422 and ids.json["error"].startswith("`input_id")
    for entry in top.json["choices"][0]["logprobs"]["content"]:
        values = [one["logprob"] for one in entry["top_logprobs"]]
        assert len(values) == len(SIXTEEN) and values == sorted(values, reverse=True) and max(values) <= 0
    assert strict(echo.body)["choices"][0]["logprobs"]["token_logprobs"][0] is None
    assert top_k.status == 200
    assert together.json == alone.json and alone.json["details"]["generated_tokens"] == 24
    service.close()
    await engine.stop()


def strict(body: bytes) -> Any:
    """The JSON, with no number that JSON lacks."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(body, parse_constant=refuse)
