"""One way to call every route: the same parameters in, the same plain reply out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sockets import Answer, ask

MODEL = "smollm2-135m-instruct"
# The end of the model's own turn follows soon.
QUESTION = "<|im_start|>user\nName the capital of France.<|im_end|>\n<|im_start|>assistant\n"


@dataclass(frozen=True, slots=True)
class Reply:
    """What any route says of a generation. `pieces` are the texts of a stream's events."""

    text: str
    ids: list[int]
    finish_reason: str
    generated_tokens: int
    seed: int | None  # Triton's answers have none
    pieces: list[str] | None
    raw: Any  # the whole answer, or the events


@dataclass(frozen=True, slots=True)
class Route:
    """A generation route, or one of the two modes of `/`."""

    name: str
    path: str
    streams: bool
    triton: bool = False
    listed: bool = False  # the answer is a list of one, and `stream` chooses the mode

    async def call(self, port: int, prompt: str, **parameters: Any) -> Reply:
        answer = await self.post(port, prompt, **parameters)
        assert answer.status == 200, answer.body
        return self._stream(answer.events) if self.streams else self._whole(answer.json)

    async def post(self, port: int, prompt: str, **parameters: Any) -> Answer:
        parameters = {"details": True, **parameters}
        if self.triton:
            parameters.setdefault("perf_stat", True)
        body: dict[str, Any] = {"text_input" if self.triton else "inputs": prompt, "parameters": parameters}
        if self.listed and self.streams:
            body["stream"] = True
        return await ask(port, "POST", self.path, body)

    def _whole(self, answer: Any) -> Reply:
        one = answer[0] if self.listed else answer
        assert isinstance(one, dict)
        details = one["details"]
        if self.triton:
            text, ids = one["text_output"], [row[0] for row in details["perf_stat"]]
        else:
            text, ids = one["generated_text"], [token["id"] for token in details["tokens"]]
        return Reply(
            text, ids, details["finish_reason"], details["generated_tokens"], details.get("seed"), None, answer
        )

    def _stream(self, events: list[Any]) -> Reply:
        details = events[-1]["details"]
        if self.triton:
            assert all("details" not in event for event in events[:-1])
            ids = [row[0] for row in details["perf_stat"]]
            pieces = [event["text_output"] for event in events]
            text = "".join(pieces)
        else:
            assert [event["index"] for event in events] == list(range(1, len(events) + 1))
            assert all(event["generated_text"] is None and event["details"] is None for event in events[:-1])
            ids = [event["token"]["id"] for event in events]
            pieces = ["" if event["token"]["special"] else event["token"]["text"] for event in events]
            text = events[-1]["generated_text"]
        return Reply(
            text, ids, details["finish_reason"], details["generated_tokens"], details.get("seed"), pieces, events
        )


GENERATE = Route("generate", "/generate", streams=False)
GENERATE_STREAM = Route("generate_stream", "/generate_stream", streams=True)
ROOT = Route("root", "/", streams=False, listed=True)
ROOT_STREAM = Route("root, stream", "/", streams=True, listed=True)
TRITON = Route("triton", f"/v2/models/{MODEL}/generate", streams=False, triton=True)
TRITON_STREAM = Route("triton, stream", f"/v2/models/{MODEL}/generate_stream", streams=True, triton=True)
ROUTES = (GENERATE, GENERATE_STREAM, ROOT, ROOT_STREAM, TRITON, TRITON_STREAM)
TGI_ROUTES = ROUTES[:4]
