"""Routes that count and show the tokens of a text. They take no permit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import orjson

from interlingua.contract.dialect import DialectSettings, Reply, WireRequest
from interlingua.contract.errors import NotSupportedError, ValidationError
from interlingua.contract.request import ChatPrompt, MediaPart, TextPart, TextPrompt
from interlingua.dialects._control_table import ADD_SPECIAL, COLUMN, DO_DECODE, PROMPT, TOKEN_STRINGS, TOKENS
from interlingua.dialects._fields import read_field
from interlingua.dialects._json import Document, parse_object
from interlingua.dialects._tgi_table import INPUTS, MINDIE
from interlingua.dialects.openai import decode_chat
from interlingua.server.exchange import Exchange
from interlingua.server.keys import Keys
from interlingua.server.middleware import beside, check_key, read_body
from interlingua.server.routes import SystemRoute
from interlingua.server.settings import ServerSettings
from interlingua.service.prepare import TokenSpan
from interlingua.service.service import Service

T = TypeVar("T")

_SLICE: Final = 2048  # tokens that are written at once


class Tokens:
    """The handlers. Holds no state of its own."""

    def __init__(
        self,
        service: Service,
        settings: ServerSettings,
        keys: Keys,
        wire: DialectSettings,
        served: Callable[[], DialectSettings],
    ) -> None:
        """`served` gives the dialects' settings with what the loaded model adds."""
        self._service = service
        self._served = served
        self._settings = settings
        self._keys = keys
        self._wire = wire

    def routes(self) -> Iterator[SystemRoute]:
        yield SystemRoute("POST", "/tokenize", self.tokenize)
        yield SystemRoute("POST", "/detokenize", self.detokenize)
        yield SystemRoute("POST", "/chat_tokenize", self.chat_tokenize)
        yield SystemRoute("POST", "/v1/tokenizer", self.tokenizer)

    async def tokenize(self, exchange: Exchange) -> None:
        """Three shapes, told apart by the body: `prompt` and `messages` are vLLM's, `inputs` is TGI's."""
        document = await self._body(exchange)
        if document.root.get("prompt") is not None:
            answer = await self._vllm(document)
        elif document.root.get("messages") is not None:
            strings = read_field(document, TOKEN_STRINGS, COLUMN, self._wire)
            answer = await self._counted(await self._rendered(exchange, document), strings)
        else:
            answer = await self._tgi(document)
        await self._reply(exchange, answer)

    async def detokenize(self, exchange: Exchange) -> None:
        """vLLM's: the text of token ids, that of special ones included."""
        document = await self._body(exchange)
        ids: tuple[int, ...] | None = read_field(document, TOKENS, COLUMN, self._wire)
        document.close()
        if ids is None:
            raise ValidationError(TOKENS.name, "is required")
        await self._reply(
            exchange,
            await _beside(len(ids) > _SLICE, lambda: orjson.dumps({"prompt": self._service.text_of(ids, TOKENS.name)})),
        )

    async def chat_tokenize(self, exchange: Exchange) -> None:
        """TGI's: the text that the chat template makes of a conversation, and its tokens."""
        prompt = await self._rendered(exchange, await self._body(exchange))
        spans = await self._service.token_spans(prompt)

        def write() -> bytes:
            return b'{"tokenize_response":%b,"templated_text":%b}' % (_rows(spans), orjson.dumps(prompt.text))

        await self._reply(exchange, await _beside(len(spans) > _SLICE, write))

    async def tokenizer(self, exchange: Exchange) -> None:
        """The vendor's: how many tokens a text has, and their texts; those of one character are joined to one."""
        document = await self._body(exchange)
        decode = read_field(document, DO_DECODE, COLUMN, self._wire)
        spans = await self._inputs(document)

        def write() -> bytes:
            texts = [] if decode is False else self._texts(spans)
            return orjson.dumps({"token_number": len(spans), "tokens": texts})

        await self._reply(exchange, await _beside(len(spans) > _SLICE, write))

    async def _tgi(self, document: Document) -> bytes:
        """A list of tokens, each with the bytes of the text that it stands for."""
        spans = await self._inputs(document)
        return await _beside(len(spans) > _SLICE, lambda: _rows(spans))

    async def _vllm(self, document: Document) -> bytes:
        text: str = read_field(document, PROMPT, COLUMN, self._wire)
        add_special = read_field(document, ADD_SPECIAL, COLUMN, self._wire)
        strings = read_field(document, TOKEN_STRINGS, COLUMN, self._wire)
        document.close()
        prompt = TextPrompt((TextPart(text),), PROMPT.name, add_special=add_special is not False)
        return await self._counted(prompt, strings)

    async def _counted(self, prompt: TextPrompt, strings: bool | None) -> bytes:
        spans = await self._service.token_spans(prompt)

        def write() -> bytes:
            ids = [span.id for span in spans]
            texts = list(map(self._service.token_text, ids)) if strings else None
            most = self._service.room.total
            return orjson.dumps({"count": len(ids), "max_model_len": most, "tokens": ids, "token_strs": texts})

        return await _beside(len(spans) > _SLICE, write)

    async def _rendered(self, exchange: Exchange, document: Document) -> TextPrompt:
        """The text of the conversation in a body like that of a chat completion. Raises RequestError."""
        wire = WireRequest(
            method=exchange.method,
            path=exchange.path,
            path_params=exchange.path_params,
            headers=exchange.headers,
            body=document.raw,
            request_id=exchange.request_id,
        )
        settings = self._served()
        call = await beside(len(document.raw), lambda: decode_chat(wire, settings))
        prompt = call.request.prompt
        assert isinstance(prompt, ChatPrompt)
        return await self._service.render(prompt)

    async def _inputs(self, document: Document) -> Sequence[TokenSpan]:
        parts = read_field(document, INPUTS, MINDIE, self._wire)
        document.close()
        if parts is None:
            raise ValidationError(INPUTS.name, "is required")
        if any(isinstance(part, MediaPart) for part in parts):
            raise NotSupportedError(INPUTS.name, "must be text: the served model reads text only")
        return await self._service.token_spans(TextPrompt(parts, INPUTS.name))

    def _texts(self, spans: Sequence[TokenSpan]) -> list[str]:
        texts: list[str] = []
        last = (0, 0)
        for span in spans:
            place = (span.start, span.stop)
            if place[0] == place[1]:
                texts.append(self._service.token_text(span.id))  # one that the tokenizer adds stands for no text
            elif place != last:
                texts.append(span.text)
            last = place
        return texts

    async def _body(self, exchange: Exchange) -> Document:
        check_key(exchange, self._keys)
        body = await read_body(exchange, self._settings.payload_limit)
        return await beside(len(body), lambda: parse_object(body, self._wire.max_json_depth))

    async def _reply(self, exchange: Exchange, answer: bytes) -> None:
        self._service.metrics.requests += 1
        self._service.metrics.successes += 1
        await exchange.reply(Reply(200, answer))


def _rows(spans: Sequence[TokenSpan]) -> bytes:
    """Slice by slice: one call over a million objects would hold up every other thread."""
    slices = (spans[first : first + _SLICE] for first in range(0, len(spans), _SLICE))
    return b"[%b]" % b",".join(orjson.dumps([_row(span) for span in part])[1:-1] for part in slices)


def _row(span: TokenSpan) -> dict[str, Any]:
    return {"id": span.id, "text": span.text, "start": span.start, "stop": span.stop}


async def _beside(long: bool, work: Callable[[], T]) -> T:
    """Does what takes long in a thread, so that the event loop serves others meanwhile."""
    return await asyncio.to_thread(work) if long else work()
