"""The kinds of request that `bench/soak.py` sends: one table of dialects, and how to ask in each of them.

A case is written once, in TGI's words; each kind's `body` says it in its own, and `text` and `joined` read the whole
answer and the stream back as one text, so that the same case can be compared with itself over time.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import grpc
import grpc.aio
from loadgen import prompt
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

Parameters = dict[str, Any]  # in TGI's words
GRPC = "gRPC"  # the path of what does not come over HTTP
REGEX = "[a-z]{3,12}( [a-z]{2,9}){2,8}"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
_GRAMMAR_TOKENS = 160  # more than any text of the two needs
_BEGINNINGS = ("", "Weiter: ", "今天天气很好，我们去", "Привет! ", "😀🎉 ", "def f(x):\n    ", "مرحبا ")
_STOPS: tuple[list[str], ...] = ([], [], [" and"], [".", "\n\n"], ["e"])
_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


class RefusedError(Exception):
    """The server answered with something else than what was asked for."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Kind:
    """A dialect's way to ask and to answer; without a `stream_path` it has whole answers alone."""

    name: str
    path: str
    stream_path: str
    body: Callable[[str, Parameters], Any]
    text: Callable[[Any, str], str]
    joined: Callable[[list[Any], str], str]
    takes: frozenset[str]  # parameters beyond length, sampling and seed


@dataclass(frozen=True, slots=True)
class Case:
    """One request in its two modes. `accepts` says whether a text is one that may come."""

    kind: Kind
    prompt: str
    parameters: Parameters
    accepts: Callable[[str], bool] = field(default=lambda text: True, repr=False)

    @property
    def body(self) -> Any:
        return self.kind.body(self.prompt, self.parameters)


# --- each dialect's words -------------------------------------------------------------------------------------------


def _tgi(text: str, parameters: Parameters) -> Any:
    return {"inputs": text, "parameters": parameters}


def _triton(text: str, parameters: Parameters) -> Any:
    return {"text_input": text, "parameters": parameters}


def _openai(key: str, model: str) -> Callable[[str, Parameters], Any]:
    """OpenAI's words and vLLM's, which has no chat and no `response_format`."""

    def body(text: str, parameters: Parameters) -> Any:
        rest = dict(parameters)
        made: dict[str, Any] = {
            key: [{"role": "user", "content": text}] if key == "messages" else text,
            "model": rest.pop("adapter_id", model),
            "max_tokens": rest.pop("max_new_tokens"),
        }
        if not rest.pop("do_sample", False):
            made["temperature"] = 0
        if grammar := rest.pop("grammar", None):
            if grammar["type"] == "regex":
                made["structured_outputs"] = {"regex": grammar["value"]}
            else:
                schema = {"name": "soak", "schema": grammar["value"]}
                made["response_format"] = {"type": "json_schema", "json_schema": schema}
        return made | rest

    return body


def _infer(text: str, parameters: Parameters) -> Any:
    return {
        "inputs": [
            {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [text]},
            {"name": "sampling_parameters", "shape": [1], "datatype": "BYTES", "data": [json.dumps(parameters)]},
        ]
    }


def _grpc(model: str) -> Callable[[str, Parameters], Any]:
    def body(text: str, parameters: Parameters) -> Any:
        request = pb.ModelInferRequest(model_name=model)
        for name, value in (("text_input", text), ("sampling_parameters", json.dumps(parameters))):
            tensor = request.inputs.add(name=name, datatype="BYTES", shape=[1])
            tensor.contents.bytes_contents.append(value.encode())
        return request

    return body


def _grpc_text(answer: Any, _: str) -> str:
    """The first BYTES element of the first output."""
    return str(answer.raw_output_contents[0][4:].decode())


def _tokens(events: list[Any], _: str) -> str:
    """Special tokens are no part of the text; the last event holds all of it once more."""
    text = "".join("" if event["token"].get("special") else event["token"]["text"] for event in events)
    if events and events[-1].get("generated_text", text) != text:
        raise ValueError(f"the stream says {text!r}, its last event {events[-1]['generated_text']!r}")
    return text


def _deltas(events: list[Any], _: str) -> str:
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices)


def kinds(model: str) -> tuple[Kind, ...]:
    """Every way to a text, for a server of `model`."""
    common = frozenset({"ignore_eos", "stop"})
    everything = common | {"grammar", "adapter_id"}
    ranked = common | {"priority"}
    v2, chat, text = f"/v2/models/{model}", "/v1/chat/completions", "/v1/completions"
    triton, infer, plain = _triton, _infer, _openai("prompt", model)
    return (
        Kind("tgi", "/generate", "/generate_stream", _tgi, lambda a, _: a["generated_text"], _tokens, everything),
        Kind("hf", "/", "/", _tgi, lambda a, _: a[0]["generated_text"], _tokens, everything),
        Kind("chat", chat, chat, _openai("messages", model), _content, _deltas, everything),
        Kind("completions", text, text, plain, lambda a, _: a["choices"][0]["text"], _deltas, everything),
        Kind("vllm", "/generate", "/generate", plain, _after_prompt, _last_after_prompt, common),
        Kind("triton", f"{v2}/generate", f"{v2}/generate_stream", triton, _text_output, _text_outputs, ranked),
        Kind("native", "/infer", "/infer", _tgi, lambda a, _: a["generated_text"], _tokens, frozenset({"priority"})),
        Kind("kserve", f"{v2}/infer", "", infer, lambda a, _: a["outputs"][0]["data"][0], _text_outputs, ranked),
        Kind(GRPC, GRPC, GRPC, _grpc(model), _grpc_text, lambda e, _: "".join(map(_grpc_text, e, e)), ranked),
    )


def _content(answer: Any, _: str) -> str:
    return answer["choices"][0]["message"]["content"] or ""


def _after_prompt(answer: Any, asked: str) -> str:
    return str(answer["text"][0]).removeprefix(asked)


def _last_after_prompt(events: list[Any], asked: str) -> str:
    return _after_prompt(events[-1], asked) if events else ""


def _text_output(answer: Any, _: str) -> str:
    return str(answer["text_output"])


def _text_outputs(events: list[Any], _: str) -> str:
    return "".join(event["text_output"] for event in events)


# --- cases ----------------------------------------------------------------------------------------------------------


def case(number: int, every: tuple[Kind, ...], adapters: tuple[str, ...]) -> Case:
    """The same for the same number; numbers in a row differ in everything.

    Of each kind the first is plain, the second and third follow a grammar, the fourth an adapter, as far as it can.
    """
    dice = random.Random(number)
    kind, variety = every[number % len(every)], number // len(every) % 4
    text = dice.choice(_BEGINNINGS) + prompt(number, dice.randint(1, 100))
    parameters: Parameters = {"max_new_tokens": dice.randint(8, 96), "ignore_eos": dice.random() < 0.5}
    if dice.random() < 0.5:
        parameters |= {"do_sample": True, "temperature": 1.1, "top_p": 0.95, "seed": dice.getrandbits(62) + 1}
    if dice.random() < 0.5:
        parameters["priority"] = dice.randint(1, 4)
    if stops := dice.choice(_STOPS):
        parameters["stop"] = stops
    if "adapter_id" in kind.takes and (variety == 3 or dice.random() < 0.3):
        parameters["adapter_id"] = dice.choice(adapters)
    if variety in (1, 2) and "grammar" in kind.takes:
        parameters = {k: v for k, v in parameters.items() if k not in ("stop", "ignore_eos", "priority")}
        grammar = {"type": "regex", "value": REGEX} if variety == 1 else {"type": "json", "value": SCHEMA}
        parameters |= {"max_new_tokens": _GRAMMAR_TOKENS, "grammar": grammar}
        return Case(kind, text, parameters, _is_word_list if variety == 1 else _is_person)
    return Case(kind, text, _known(kind, parameters))


def endless(number: int, every: tuple[Kind, ...], adapters: tuple[str, ...]) -> Case:
    """A long answer, for clients that leave in the middle of it."""
    dice = random.Random(number)
    kind = dice.choice(every)
    parameters: Parameters = {"max_new_tokens": 2000, "ignore_eos": True}
    if dice.random() < 0.3:
        parameters["grammar"] = {"type": "regex", "value": "[a-z ]+"}
    if dice.random() < 0.3:
        parameters["adapter_id"] = dice.choice(adapters)
    return Case(kind, prompt(number, dice.randint(1, 300)), _known(kind, parameters))


def _known(kind: Kind, parameters: Parameters) -> Parameters:
    extras = ("ignore_eos", "stop", "grammar", "adapter_id", "priority")
    return {name: value for name, value in parameters.items() if name in kind.takes or name not in extras}


def _is_word_list(text: str) -> bool:
    return re.fullmatch(REGEX, text) is not None


def _is_person(text: str) -> bool:
    person = json.loads(text)
    return person.keys() == {"name", "age"} and len(person["name"]) <= 12 and 0 <= person["age"] <= 150


def bad_requests(model: str) -> tuple[tuple[str, Any, int], ...]:
    """(path, body, status) of what must be refused."""
    endless = {"type": "json", "value": {"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}}}
    return (
        ("/generate", b"{", 422),
        ("/generate", b'{"inputs":"x","parameters":{"top_p":7}}', 422),
        ("/generate", b'{"inputs":"x","parameters":{"adapter_id":"../../etc"}}', 422),
        ("/generate", b'{"inputs":"x","parameters":{"grammar":{"type":"json","value":{"type":"no-type"}}}}', 422),
        ("/generate", json.dumps(_tgi("x", {"grammar": endless})).encode(), 422),
        ("/", b'{"inputs":""}', 422),
        (f"/v2/models/{model}/generate", b"[]", 400),
        (f"/v2/models/{model}/generate", b'{"text_input":"\\ud800"}', 400),
        ("/v2/models/nobody/generate", b'{"text_input":"x"}', 404),
        (f"/v2/models/{model}/infer", b'{"inputs":[{"name":"text_input","shape":[2]}]}', 400),
        ("/infer", b'{"inputs":"x","parameters":{"seed":-1}}', 422),
        ("/v1/completions", b'{"prompt":5}', 400),
        ("/v1/completions", b'{"prompt":"x","model":"nobody"}', 404),
        ("/v1/chat/completions", b'{"messages":[]}', 400),
        ("/v1/chat/completions", b'{"messages":[{"role":"user","content":"x"}],"guided_regex":"["}', 400),
        ("/vllm/generate", b'{"prompt":"x","max_tokens":-1}', 422),
        (GRPC, _grpc(model)("x", {"max_new_tokens": 0}), 400),
        (GRPC, _grpc("nobody")("x", {}), 404),
        ("/nothing", b"", 404),
    )


def late_requests(model: str) -> tuple[tuple[str, Any, int], ...]:
    """The same for what cannot end within its own time limit of a second."""
    limits = {"max_new_tokens": 4000, "timeout": 1, "ignore_eos": True}
    return (
        (f"/v2/models/{model}/generate", json.dumps(_triton("x", limits)).encode(), 504),
        (f"/v2/models/{model}/infer", json.dumps(_infer("x", limits)).encode(), 504),
        (GRPC, _grpc(model)("x", limits), 504),
    )


# --- the wire -------------------------------------------------------------------------------------------------------


class Client:
    """Sends what cases say. Raises RefusedError for an answer that is none."""

    def __init__(self, session: aiohttp.ClientSession, channel: grpc.aio.Channel) -> None:
        self._session = session
        self._stub = GRPCInferenceServiceStub(channel)

    async def whole(self, wanted: Case) -> str:
        return wanted.kind.text(await self.send(wanted.kind.path, wanted.body), wanted.prompt)

    async def send(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Any:
        """The answer to a body: a message of gRPC, what JSON says, or text."""
        if path == GRPC:
            try:
                return await self._stub.ModelInfer(body)
            except grpc.aio.AioRpcError as error:
                raise RefusedError(_STATUSES.get(error.code(), 500), error.details() or "") from None
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._session.post(path, data=data, headers=headers) as response:
            await _check(response)
            return await response.json() if response.content_type == "application/json" else await response.text()

    async def events(self, wanted: Case) -> AsyncIterator[Any]:
        """A stream's events."""
        if wanted.kind.path == GRPC:
            async for answer in self._grpc_events(wanted.body):
                yield answer
            return
        async with self._session.post(wanted.kind.stream_path, json=wanted.body | {"stream": True}) as response:
            await _check(response)
            async for line in response.content:
                data = line.removeprefix(b"data:").strip()
                if data and data != b"[DONE]":
                    event = json.loads(data)
                    if "error" in event:
                        raise RefusedError(500, f"in the middle of a stream: {event}")
                    yield event

    async def _grpc_events(self, request: Any) -> AsyncIterator[Any]:
        stream = request.inputs.add(name="stream", datatype="BOOL", shape=[1])
        stream.contents.bool_contents.append(True)
        call = self._stub.ModelStreamInfer()
        try:
            await call.write(request)
            await call.done_writing()
            async for response in call:
                if problem := response.error_message:
                    raise RefusedError(429 if "the server is full" in problem else 500, problem)
                yield response.infer_response
        finally:
            call.cancel()


async def _check(response: aiohttp.ClientResponse) -> None:
    """Raises RefusedError unless it is 200. A refusal has its dialect's shape, and 429 says when to come again."""
    if response.status == 200:
        return
    text = await response.text()
    if "error" not in json.loads(text) or (response.status == 429 and int(response.headers["retry-after"]) < 1):
        raise ValueError(f"a refusal of no known shape: {response.status} {text}")
    raise RefusedError(response.status, text)
