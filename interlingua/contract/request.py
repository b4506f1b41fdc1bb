"""Requests: as a dialect received them (`GenerationRequest`) and as an engine sees them (`PreparedRequest`).

Two types on purpose: only a prepared request, in which every default is resolved and every limit checked, reaches
an engine. `None` in a `GenerationRequest` means "absent"; a `PreparedRequest` has no absent values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import Enum, IntEnum
from typing import Any, Literal

MAX_SEED = 2**64 - 1
# What clients write for the model when their user named none: huggingface_hub on a plain URL, and TGI's own.
PLACEHOLDER_MODELS = ("dummy", "tgi")


class StopMode(Enum):
    """What becomes of the stop text itself in the answer (rules differ by dialect)."""

    CUT = "cut"  # the text ends right before the stop
    KEEP = "keep"  # the text ends right after it


class Priority(IntEnum):
    """Queue order: 1 is served first. Waiting requests gain one level every 10 seconds."""

    HIGHEST = 1
    LOWEST = 5


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of prompt text. Neighbouring parts are joined with nothing between them."""

    text: str


@dataclass(frozen=True, slots=True)
class MediaPart:
    """An image, a video or an audio clip, as the client named it; nothing has been fetched yet."""

    kind: Literal["image", "video", "audio"]
    form: Literal["url", "file", "data"]  # of `source`: http(s) URL, local path or file URL, data URI or bare base64
    source: str
    field: str  # wire name, for errors: `inputs[1].image_url`
    max_bytes: int  # of the file; data are measured already


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Prompt text to be tokenised. At least one part."""

    parts: tuple[TextPart | MediaPart, ...]
    field: str = "inputs"  # wire name, for errors
    add_special: bool = True  # the tokenizer adds its own special tokens; a rendered chat brings them
    reasoning: bool = False  # ends inside a block of reasoning: what the model says next is not the answer yet

    @property
    def media(self) -> list[MediaPart]:
        return [part for part in self.parts if isinstance(part, MediaPart)]

    @property
    def text(self) -> str:
        """All text parts, joined with nothing."""
        if len(self.parts) == 1 and isinstance(self.parts[0], TextPart):
            return self.parts[0].text
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt that arrived as token ids."""

    ids: tuple[int, ...]
    field: str = "input_id"

    @property
    def media(self) -> list[MediaPart]:
        return []


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function that the model made in an earlier turn. `arguments` is JSON text as the client sent it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """A turn of a conversation. `parts` is None where the client sent none (a turn of tool calls alone)."""

    role: str
    parts: tuple[TextPart | MediaPart, ...] | None
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @property
    def text(self) -> str | None:
        """All text parts, joined with nothing."""
        if self.parts is None:
            return None
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A conversation, to be rendered with a chat template. At least one message.

    Attributes:
        tools: JSON objects `{"type": "function", "function": {…}}`, as the client sent them.
        template: the client's own Jinja template; None = the model's.
        arguments: further variables of the template, JSON values.
        add_generation_prompt: the text ends with the head of the assistant's turn.
        continue_final: the text ends inside the last message, for the model to go on with.
    """

    messages: tuple[ChatMessage, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    template: str | None = None
    arguments: Mapping[str, Any] = dataclass_field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final: bool = False
    field: str = "messages"

    @property
    def media(self) -> list[MediaPart]:
        return [part for message in self.messages for part in message.parts or () if isinstance(part, MediaPart)]

    @property
    def chars(self) -> int:
        """Characters of all messages."""
        return sum(
            len(message.text or "") + sum(len(call.arguments) for call in message.tool_calls)
            for message in self.messages
        )


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """Sampling parameters as sent; None = absent. Ranges were checked by the dialect."""

    do_sample: bool = False
    temperature: float | None = None
    top_k: int | None = None  # 0 = off
    top_p: float | None = None
    typical_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_over: Literal["all", "output"] = "all"  # TGI: f·count/length over prompt+output; OpenAI: output only
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None  # 64 bits, two's complement for negative ones
    watermark: bool = False
    use_model_defaults: bool = True  # generation_config.json fills absent values when sampling
    default_top_k: int = 0  # used when neither the request nor the model's files name one, while sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One text-generation call, in no dialect's words.

    Produced by a dialect, consumed by `service.prepare`. `field_names` maps a contract field to its wire name where
    they differ, so that an error found later still names what the client wrote.
    """

    request_id: str
    prompt: Prompt
    client_id: str | None = None  # the client's own name for it, by which it can be stopped; need not be unique
    max_new_tokens: int | None = None  # None = the room that is left
    sampling: SamplingRequest = dataclass_field(default_factory=SamplingRequest)
    stop: tuple[str, ...] = ()
    stop_mode: StopMode = StopMode.CUT
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_new_tokens: int = 0
    truncate: int | None = None  # keep the last n tokens; None = off
    return_full_text: bool = False
    details: bool = False
    prompt_logprobs: bool = False
    top_n_tokens: int = 0
    n: int = 1  # answers to return, each with a seed of its own
    best_of: int = 1  # answers to generate, of which the `n` with the best mean logprob are returned
    adapter_id: str | None = None
    grammar: Grammar | None = None
    priority: int = Priority.LOWEST
    timeout: float | None = None  # seconds from arrival; None = the server's default
    model: str | None = None  # as named in path or body; None = the served one
    field_names: tuple[tuple[str, str], ...] = ()

    @property
    def choices(self) -> int:
        """Answers to generate, numbered from 0."""
        return max(self.n, self.best_of)

    def wire_name(self, name: str) -> str:
        """The name that the client knows for contract field `name`."""
        return dict(self.field_names).get(name, name)


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language that the answer must belong to.

    `value` is a JSON Schema's text, a regular expression, a Lark grammar, or for `choice` a JSON list of texts.
    """

    kind: Literal["json_schema", "regex", "lark", "choice"]
    value: str


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter (Hu et al. 2021) that an engine has loaded. A name loaded again is a new version."""

    name: str
    version: int  # counts the loads of one engine, from 1: no two adapters share one
    path: str
    rank: int  # the highest of its layers


@dataclass(frozen=True, slots=True)
class Watermark:
    """A statistical mark (Kirchenbauer et al. 2023): `delta` is added to the logits of a share `gamma` of all tokens,

    drawn anew at each position from the id before it. gamma in (0, 1), delta > 0.
    """

    gamma: float = 0.5
    delta: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Resolved sampling parameters; each has the neutral value that switches it off."""

    do_sample: bool = False
    temperature: float = 1.0  # > 0
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # 1 = off
    typical_p: float = 1.0  # 1 = off
    min_p: float = 0.0  # 0 = off
    repetition_penalty: float = 1.0  # 1 = off
    frequency_penalty: float = 0.0  # 0 = off
    presence_penalty: float = 0.0  # 0 = off
    frequency_over: Literal["all", "output"] = "all"
    logit_bias: tuple[tuple[int, float], ...] = ()
    watermark: Watermark | None = None
    seed: int = 0  # 0..2^64-1


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """The only thing that an engine sees: ids in, every default resolved, every limit checked.

    `len(prompt_ids) >= 1`, every id is in the vocabulary, and `len(prompt_ids) + max_new_tokens` never passes the
    engine's context. `deadline` is on the clock of `time.monotonic`.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams
    stop_token_ids: frozenset[int]  # the model's EOS ids unless ignored, and the client's; ends with `eos_token`
    min_new_tokens: int = 0
    prompt_logprobs: bool = False
    top_n_tokens: int = 0
    grammar: Grammar | None = None  # checked for size and syntax; the engine compiles and follows it
    adapter: Adapter | None = None  # None = the base model
    group: str | None = None  # requests of one group have the same prompt, whose KV is computed once
    priority: int = Priority.LOWEST
    deadline: float | None = None
