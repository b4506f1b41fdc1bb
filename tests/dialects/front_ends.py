"""Every HTTP route that generates, behind one face: the same request in, the same plain reply out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from wire_cases import GENERATE, MODEL, ROOT, STREAM, TRITON, TRITON_STREAM
from wire_client import Got, send

INFER = f"/v2/models/{MODEL}/infer"


class Text(NamedTuple):
    """What a reply says. `pieces` are the texts of a stream's events, those of special tokens left out."""

    text: str
    pieces: list[str]


@dataclass(frozen=True)
class FrontEnd:
    """One dialect's way to ask for a text.

    `body` takes (prompt, limit of new tokens, stops, stream) and gives the JSON of the request. `read` takes the JSON
    of an answer, or the list of a stream's events, and the prompt.
    """

    name: str
    path: str
    body: Callable[[Any, int, list[str] | None, bool], dict[str, Any]]
    read: Callable[[Any, str], Text]
    stream_path: str = ""  # "" = the answer comes whole alone
    prompt: str = "inputs"  # the field, as errors name it
    refused: int = 422  # status of a bad request
    keeps_stops: bool = False  # the stop itself stays in the text
    has_stops: bool = True
    fault: int = 424  # status of an answer whose engine failed

    @property
    def is_openai(self) -> bool:
        return self.path.startswith("/v1")

    def data(self, prompt: Any, limit: int = 100, stops: str | list[str] | None = None, stream: bool = False) -> bytes:
        return json.dumps(self.body(prompt, limit, stops, stream)).encode()

    def where(self, stream: bool) -> str:
        return self.stream_path if stream else self.path

    def post(
        self, url: str, prompt: Any, limit: int = 100, stops: str | list[str] | None = None, *, stream: bool = False
    ) -> Got:
        return send(url, self.where(stream), self.data(prompt, limit, stops, stream))

    def events(self, got: Got) -> list[Any]:
        """The JSON of a stream's events; fails on every other byte between or after them."""
        assert got.status == 200, got.body
        if self.name == "vllm":
            assert got.headers["content-type"] == "application/x-ndjson"
            return [json.loads(line) for line in got.body.decode().removesuffix("\n").split("\n")]
        assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert b"\r" not in got.body
        frames = got.body.decode().split("\n\n")
        assert frames.pop() == ""
        if self.is_openai:
            assert frames.pop() == "data: [DONE]"
        assert all(frame.startswith("data: {") and len(frame.splitlines()) == 1 for frame in frames), frames
        return [json.loads(frame.removeprefix("data: ")) for frame in frames]

    def text(
        self, url: str, prompt: str, limit: int = 100, stops: str | list[str] | None = None, *, stream: bool = False
    ) -> Text:
        got = self.post(url, prompt, limit, stops, stream=stream)
        assert got.status == 200, got.body
        return self.read(self.events(got) if stream else got.json, prompt)

    def error(self, got: Got | Any) -> str:
        """The message of a refusal or of an error event, whose shape must be the dialect's."""
        if isinstance(got, Got):
            assert got.headers["content-type"] == "application/json", got
        answer = got.json if isinstance(got, Got) else got
        if self.is_openai:
            assert list(answer) == ["error"] and list(answer["error"]) == ["message", "type", "param", "code"], answer
            message = answer["error"]["message"]
        else:
            assert list(answer) == ["error", "error_type"], answer
            message = answer["error"]
        assert isinstance(message, str) and "Traceback" not in message
        return message


def _tgi(prompt: Any, limit: int, stops: str | list[str] | None, stream: bool) -> dict[str, Any]:
    return {"inputs": prompt, "parameters": {"max_new_tokens": limit, "stop": stops, "details": True}}


def _root(prompt: Any, limit: int, stops: str | list[str] | None, stream: bool) -> dict[str, Any]:
    return {**_tgi(prompt, limit, stops, stream), "stream": stream}


def _triton(prompt: Any, limit: int, stops: str | list[str] | None, stream: bool) -> dict[str, Any]:
    return {"text_input": prompt, "parameters": {"max_new_tokens": limit, "stop": stops, "details": True}}


def _kserve(prompt: Any, limit: int, stops: str | list[str] | None, stream: bool) -> dict[str, Any]:
    tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [prompt]}
    return {"inputs": [tensor], "parameters": {"max_new_tokens": limit, "stop": stops or []}}


def _native(prompt: Any, limit: int, stops: str | list[str] | None, stream: bool) -> dict[str, Any]:
    return {"inputs": prompt, "stream": stream, "parameters": {"max_new_tokens": limit}}


def _chat(prompt: Any, limit: int, stops: str | list[str] | None, stream: bool) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": MODEL, "messages": messages, "max_tokens": limit, "stop": stops, "stream": stream}


def _completions(prompt: Any, limit: int, stops: str | list[str] | None, stream: bool) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": limit, "stop": stops, "stream": stream}


def _read_tgi(answer: Any, prompt: str) -> Text:
    if isinstance(answer, dict):
        return Text(answer["generated_text"], [])
    if "generated_text" in answer[0] and "token" not in answer[0]:  # the list of one that `/` gives
        return Text(answer[0]["generated_text"], [])
    pieces = [event["token"]["text"] for event in answer if not event["token"].get("special")]
    return Text(answer[-1].get("generated_text", ""), pieces)


def _read_triton(answer: Any, prompt: str) -> Text:
    if isinstance(answer, dict):
        return Text(answer["text_output"], [])
    pieces = [event["text_output"] for event in answer]
    return Text("".join(pieces), pieces)


def _read_kserve(answer: Any, prompt: str) -> Text:
    return Text(next(o["data"][0] for o in answer["outputs"] if o["name"] == "text_output"), [])


def _read_chat(answer: Any, prompt: str) -> Text:
    if isinstance(answer, dict):
        return Text(answer["choices"][0]["message"]["content"], [])
    pieces = [chunk["choices"][0]["delta"].get("content") or "" for chunk in answer]
    return Text("".join(pieces), pieces)


def _read_completions(answer: Any, prompt: str) -> Text:
    if isinstance(answer, dict):
        return Text(answer["choices"][0]["text"], [])
    pieces = [chunk["choices"][0]["text"] for chunk in answer]
    return Text("".join(pieces), pieces)


def _read_vllm(answer: Any, prompt: str) -> Text:
    """Prompt and text together; each line of a stream holds all that there is so far."""
    texts = [one["text"][0] for one in (answer if isinstance(answer, list) else [answer])]
    assert all(text.startswith(prompt) for text in texts)
    new = [text.removeprefix(prompt) for text in texts]
    assert all(after.startswith(before) for before, after in itertools.pairwise(new))
    pieces = [after.removeprefix(before) for before, after in itertools.pairwise(["", *new])]
    return Text(new[-1], pieces if isinstance(answer, list) else [])


FRONT_ENDS: tuple[FrontEnd, ...] = (
    FrontEnd("tgi", GENERATE, _tgi, _read_tgi, STREAM),
    FrontEnd("root", ROOT, _root, _read_tgi, ROOT, keeps_stops=True),
    FrontEnd("triton", TRITON, _triton, _read_triton, TRITON_STREAM, "text_input", 400, fault=500),
    FrontEnd("kserve", INFER, _kserve, _read_kserve, "", "text_input", 400, fault=500),
    FrontEnd("native", "/infer", _native, _read_tgi, "/infer", has_stops=False),
    FrontEnd("chat", "/v1/chat/completions", _chat, _read_chat, "/v1/chat/completions", "messages", 400, fault=500),
    FrontEnd("completions", "/v1/completions", _completions, _read_completions, "/v1/completions", "prompt", 400,
             fault=500),
    FrontEnd("vllm", "/vllm/generate", _completions, _read_vllm, "/vllm/generate", "prompt"),
)  # fmt: skip
STREAMING: tuple[FrontEnd, ...] = tuple(one for one in FRONT_ENDS if one.stream_path)
