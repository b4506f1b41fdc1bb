"""Answers of chat completions and of completions, whole and as chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from interlingua.contract.dialect import Reply
from interlingua.contract.events import (
    Answer,
    FailedEvent,
    FinishReason,
    Summary,
    TextEvent,
    TextStarted,
    TextToken,
    TokenText,
)
from interlingua.dialects import _openai_errors, _sse
from interlingua.dialects._openai_output import SPECIAL_MARKS, Piece, Reader

Json = dict[str, Any]
MakeReader = Callable[[bool], Reader]  # from whether the prompt ended inside a block of reasoning

_REASONS = {FinishReason.EOS: "stop", FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every answer of a call begins with."""

    id: str
    object: str
    created: int  # unix seconds
    model: str
    fingerprint: str

    def json(self, chunk: bool = False) -> Json:
        return {
            "id": self.id,
            "object": self.object + (".chunk" if chunk and self.object == "chat.completion" else ""),
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Which tokens' texts belong to the answer."""

    special: bool = False  # special ones too, but for the one that ends it
    marks: bool = False  # special ones that mark calls or reasoning, for the reader

    def text(self, token: TextToken) -> str:
        if not token.special:
            return token.text
        if self.marks and token.text in SPECIAL_MARKS:
            return token.text
        ends = token.summary is not None and token.summary.finish_reason is FinishReason.EOS
        return token.text if self.special and not ends else ""


@dataclass(slots=True)
class Usage:
    """Counts the tokens of a call: each prompt once, all answers."""

    n: int  # answers to each prompt
    prompts: int = 1
    prompt_tokens: dict[int, int] = field(default_factory=dict)  # by prompt
    generated: int = 0

    def add(self, choice: int, summary: Summary, shown: bool = True) -> None:
        """Counts an answer; those past the last prompt's are what `best_of` left out of the only one."""
        self.prompt_tokens[min(choice // self.n, self.prompts - 1)] = summary.prompt_tokens
        self.generated += summary.generated_tokens if shown else 0

    def json(self) -> Json:
        prompt = sum(self.prompt_tokens.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.generated,
            "total_tokens": prompt + self.generated,
        }


def all_answers(answer: Answer) -> tuple[Answer, ...]:
    return (answer, *answer.alternatives)


def name_of(data: bytes) -> str:
    """A token's name: its text, or its bytes where they are no text of their own."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


@dataclass(slots=True, kw_only=True)
class _Encoder:
    """What both kinds of answers have of a stream: its frames, its count of tokens and its end.

    `n` is how many answers a prompt gets, `top` how many likeliest tokens each place shows, None for no logprobs.
    """

    head: Head
    n: int
    shown: Shown
    top: int | None
    include_usage: bool
    media_type: str = _sse.MEDIA_TYPE
    usage: Usage = field(init=False)
    failed: bool = False

    def stream_headers(self) -> tuple[tuple[str, str], ...]:
        return _sse.HEADERS

    def end(self) -> bytes:
        if self.failed or not self.include_usage:
            return _sse.DONE
        return _sse.frame(self.head.json(chunk=True) | {"choices": [], "usage": self.usage.json()}) + _sse.DONE

    def _chunk(self, choice: Json) -> bytes:
        usage = {"usage": None} if self.include_usage else {}
        return _sse.frame(self.head.json(chunk=True) | {"choices": [choice]} | usage)

    def _fault(self, event: FailedEvent) -> bytes:
        self.failed = True
        return _sse.frame_json(_openai_errors.body(event.error))

    def _reply(self, choices: Iterable[Json]) -> Reply:
        # One by one: all of them at once would hold the interpreter's lock for a second, and much memory.
        written = [orjson.Fragment(orjson.dumps(choice)) for choice in choices]
        return Reply(200, orjson.dumps(self.head.json() | {"choices": written, "usage": self.usage.json()}))


# --- chat ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Choice:
    """One answer of a chat while it streams."""

    reader: Reader
    begun: bool = False
    logprobs: list[Json] = field(default_factory=list)  # of tokens whose text was not sent yet


@dataclass(slots=True, kw_only=True)
class ChatEncoder(_Encoder):
    """Turns one call's events into chat completions. Holds the readers of a stream."""

    make_reader: MakeReader
    choices: dict[int, _Choice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.usage = Usage(self.n)

    def event(self, event: TextEvent) -> bytes:
        if isinstance(event, FailedEvent):
            return self._fault(event)
        if isinstance(event, TextStarted):
            self.choices[event.choice] = _Choice(self.make_reader(event.reasoning))
            return b""
        frames: list[bytes] = []
        choice = self.choices.get(event.choice)
        if choice is None:  # stopped before it began
            choice = self.choices[event.choice] = _Choice(self.make_reader(False))
        pieces: list[Piece] = []
        if isinstance(event, TextToken):
            if self.top is not None and not event.special:
                choice.logprobs.append(_chat_logprob(event, self.top))
            pieces = choice.reader.push(self.shown.text(event))
        if event.summary is not None:
            pieces += choice.reader.finish()
        if not choice.begun and (pieces or event.summary is not None):
            choice.begun = True
            content = None if pieces and pieces[0].kind == "call" else ""
            frames.append(self._turn(event.choice, {"role": "assistant", "content": content}))
        frames += [self._delta(event.choice, choice, piece) for piece in pieces]
        if event.summary is not None:
            self.usage.add(event.choice, event.summary)
            frames.append(self._turn(event.choice, {}, _finish_reason(event.summary, choice.reader), choice))
        return b"".join(frames)

    def answer(self, answer: Answer) -> Reply:
        answers = all_answers(answer)
        for place, one in enumerate(answers):
            self.usage.add(place, one.summary)
        return self._reply(self._whole(place, one) for place, one in enumerate(answers[: self.n]))

    def _delta(self, index: int, choice: _Choice, piece: Piece) -> bytes:
        if piece.kind == "content":
            return self._turn(index, {"content": piece.text}, None, choice)
        if piece.kind == "reasoning":
            return self._turn(index, {"reasoning_content": piece.text}, None, choice)
        call: Json = {"index": piece.call}
        if piece.name is None:
            call["function"] = {"arguments": piece.text}
        else:
            call |= {"id": self._call_id(index, piece.call), "type": "function"}
            call["function"] = {"name": piece.name, "arguments": piece.text}
        return self._turn(index, {"tool_calls": [call]}, None, choice)

    def _turn(self, index: int, delta: Json, reason: str | None = None, choice: _Choice | None = None) -> bytes:
        logprobs = None
        if choice is not None and choice.logprobs:
            logprobs = {"content": choice.logprobs, "refusal": None}
            choice.logprobs = []
        return self._chunk({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason})

    def _whole(self, index: int, answer: Answer) -> Json:
        reader = self.make_reader(answer.reasoning)
        pieces = [piece for token in answer.tokens for piece in reader.push(self.shown.text(token))]
        pieces += reader.finish()
        texts = {kind: "".join(p.text for p in pieces if p.kind == kind) for kind in ("content", "reasoning")}
        calls = self._calls(index, pieces)
        message: Json = {"role": "assistant", "content": texts["content"], "refusal": None}
        if texts["reasoning"]:
            message["reasoning_content"] = texts["reasoning"]
        if not texts["content"] and (calls or texts["reasoning"]):
            message["content"] = None
        if calls:
            message["tool_calls"] = calls
        logprobs = None
        if self.top is not None:
            content = [_chat_logprob(token, self.top) for token in answer.tokens if not token.special]
            logprobs = {"content": content, "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": _finish_reason(answer.summary, reader),
        }

    def _calls(self, index: int, pieces: Iterable[Piece]) -> list[Json]:
        calls: dict[int, Json] = {}
        for piece in pieces:
            if piece.kind != "call":
                continue
            if piece.name is not None:
                function = {"name": piece.name, "arguments": ""}
                calls[piece.call] = {"id": self._call_id(index, piece.call), "type": "function", "function": function}
            calls[piece.call]["function"]["arguments"] += piece.text
        return list(calls.values())

    def _call_id(self, index: int, call: int) -> str:
        """Unique among all calls of all answers, and short, for templates that show it."""
        return f"call_{self.head.id.rpartition('-')[2]}_{index}_{call}"


def _finish_reason(summary: Summary, reader: Reader) -> str:
    reason = _REASONS[summary.finish_reason]
    return "tool_calls" if reader.calls and reason == "stop" else reason


def _chat_logprob(token: TextToken, top: int) -> Json:
    """Exactly `top` alternatives; ties at the last rank fall to the lower ids."""
    return _logprob(token) | {"top_logprobs": [_logprob(other) for other in token.top[:top]]}


def _logprob(token: TextToken | TokenText) -> Json:
    return {"token": name_of(token.data), "logprob": token.logprob, "bytes": list(token.data)}


# --- completions ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Logprobs:
    """The four parallel lists of a completion's logprobs, and where its next token begins in the text."""

    top: int
    offset: int = 0
    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def add_prompt(self, prefill: Sequence[TokenText], text: str) -> None:
        """The prompt's tokens, which have no alternatives: all of `text`, or of a truncated one its first or last.

        A BOS that the tokenizer added is no part of `text`.
        """
        for added in (0, 1):
            kept = "".join(token.text for token in prefill[added:])
            if text.startswith(kept):
                break
            if text.endswith(kept):
                self.offset = len(text) - len(kept)
                break
        for token in prefill:
            self._add(token, token.text if text.startswith(token.text, self.offset) else "", None)
        self.offset = len(text)

    def add(self, token: TextToken, text: str) -> None:
        top = {name_of(other.data): other.logprob for other in token.top[: self.top] if other.logprob is not None}
        self._add(token, text, top | {name_of(token.data): token.logprob})

    def _add(self, token: TextToken | TokenText, text: str, top: dict[str, float] | None) -> None:
        self.tokens.append(name_of(token.data))
        self.token_logprobs.append(token.logprob)
        self.top_logprobs.append(top)
        self.text_offset.append(self.offset)
        self.offset += len(text)

    def take(self) -> Json:
        """What was added since the last call."""
        taken = {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }
        self.tokens, self.token_logprobs, self.top_logprobs, self.text_offset = [], [], [], []
        return taken


@dataclass(slots=True)
class _Completion:
    """One answer of a completion while it is told."""

    prefill: tuple[TokenText, ...] = ()
    begun: bool = False
    logprobs: _Logprobs | None = None


@dataclass(slots=True, kw_only=True)
class CompletionEncoder(_Encoder):
    """Turns one call's events into completions.

    The `prompts` are shown before their answers with `echo`: as they were sent, or as the text of their tokens where
    they came as ids (None). With `no_output` nothing of what was generated is shown: only the prompt was asked for.
    """

    prompts: Sequence[str | None]
    echo: bool
    no_output: bool = False
    choices: dict[int, _Completion] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.usage = Usage(self.n, len(self.prompts))

    def event(self, event: TextEvent) -> bytes:
        if isinstance(event, FailedEvent):
            return self._fault(event)
        if isinstance(event, TextStarted):
            self.choices[event.choice] = self._begin(event.prefill or ())
            return b""
        choice = self.choices.get(event.choice)
        if choice is None:  # stopped before it began
            choice = self.choices[event.choice] = self._begin(())
        text = "" if choice.begun else self._prompt_text(event.choice, choice)
        choice.begun = True
        if isinstance(event, TextToken):
            text += self._token_text(event, choice)
        reason = None
        if event.summary is not None:
            reason = self._count(event.choice, event.summary)
        body = self._choice(event.choice, text, choice, reason)
        if not text and reason is None and not (body["logprobs"] and body["logprobs"]["tokens"]):
            return b""
        return self._chunk(body)

    def answer(self, answer: Answer) -> Reply:
        choices = []
        for place, one in enumerate(all_answers(answer)):
            reason = self._count(place, one.summary)
            if place < self.n * len(self.prompts):  # the others are those that best_of left out
                choice = self._begin(one.prefill)
                text = self._prompt_text(place, choice)
                text += "".join([self._token_text(token, choice) for token in one.tokens])
                choices.append(self._choice(place, text, choice, reason))
        return self._reply(choices)

    def _begin(self, prefill: tuple[TokenText, ...]) -> _Completion:
        return _Completion(prefill, logprobs=None if self.top is None else _Logprobs(self.top))

    def _prompt_text(self, place: int, choice: _Completion) -> str:
        """What stands before the answer."""
        if not self.echo:
            return ""
        text = self.prompts[place // self.n]
        if text is None:
            text = "".join(token.text for token in choice.prefill)
        if choice.logprobs is not None:
            choice.logprobs.add_prompt(choice.prefill, text)
        return text

    def _token_text(self, token: TextToken, choice: _Completion) -> str:
        if self.no_output:
            return ""
        text = self.shown.text(token)
        if choice.logprobs is not None and not token.special:
            choice.logprobs.add(token, text)
        return text

    def _choice(self, place: int, text: str, choice: _Completion, reason: str | None) -> Json:
        logprobs = None if choice.logprobs is None else choice.logprobs.take()
        return {"index": place, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _count(self, place: int, summary: Summary) -> str:
        """The answer's finish reason; its tokens are counted."""
        self.usage.add(place, summary, shown=not self.no_output)
        return _REASONS[summary.finish_reason]
