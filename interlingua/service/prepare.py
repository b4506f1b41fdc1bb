"""From a received request to one that an engine may see: tokens, defaults, and every limit.

What a dialect can check without the model (types, ranges) was checked there; here is the rest. Errors name
the field as the client wrote it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from interlingua.contract.engine import EngineInfo
from interlingua.contract.errors import NotSupportedError, UnknownModelError, ValidationError
from interlingua.contract.request import (
    Adapter,
    ChatPrompt,
    GenerationRequest,
    MediaPart,
    PreparedRequest,
    Prompt,
    SamplingParams,
    SamplingRequest,
    TextPart,
    TokenPrompt,
    Watermark,
)
from interlingua.contract.words import counted
from interlingua.service import adapters

MAX_DRAWN_SEED = 2**53 - 1  # JavaScript clients can send it back unchanged
_NEUTRAL = SamplingParams()

T = TypeVar("T")


class TokenSpan(Protocol):
    """A token and the bytes of the UTF-8 text that it stands for."""

    @property
    def id(self) -> int: ...

    @property
    def text(self) -> str: ...

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...


class Tokenizer(Protocol):
    """What the service needs of a tokenizer; also a `text.detokenize.Vocabulary`."""

    @property
    def token_bytes(self) -> Sequence[bytes]: ...

    @property
    def special_ids(self) -> Collection[int]: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_ids(self) -> Collection[int]: ...

    def id_to_text(self, token_id: int) -> str: ...

    def encode(self, text: str, add_special: bool = True) -> Sequence[int]:
        """The ids of `text`; `add_special` adds BOS and the like as the model wants them.

        Text that begins with the BOS text gets no second one.
        """
        ...

    def encode_with_offsets(self, text: str, add_special: bool = True) -> Sequence[TokenSpan]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request, and all of them together, may ask for. Names are those of the API documents.

    None means the model's own limit.
    """

    max_input_token_len: int | None = None  # prompt tokens
    truncation: Literal["off", "head", "tail"] = "off"  # which tokens of a prompt stay that has more
    max_seq_len: int | None = None  # prompt and output tokens together
    max_iter_times: int | None = None  # output tokens
    max_concurrent_requests: int = 512  # running and waiting together; one more is refused at once
    max_prompt_chars: int = 4_194_304  # code points
    max_prompt_tokens: int = 1_048_576
    timeout: float = 600.0  # seconds from arrival, for a request that names none


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDefaults:
    """Sampling values from the model's generation_config.json; None = the file names none.

    `weights_top_k` is that of config.json, where older models keep it. It counts on routes alone that have a default of
    their own to put after it.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    weights_top_k: int | None = None

    @classmethod
    def from_files(cls, generation_config: Mapping[str, Any], config: Mapping[str, Any]) -> ModelDefaults:
        """Reads the parsed generation_config.json and config.json. Values that no request could have are left out."""

        def number(
            name: str, fits: Callable[[float], bool], source: Mapping[str, Any] = generation_config
        ) -> float | None:
            value = source.get(name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
                return None
            return float(value) if fits(float(value)) else None

        def top_k(source: Mapping[str, Any]) -> int | None:
            value = number("top_k", lambda value: value >= 0 and value == int(value), source)
            return None if value is None else int(value)

        return cls(
            temperature=number("temperature", lambda value: value > 0),
            top_k=top_k(generation_config),
            weights_top_k=top_k(config),
            top_p=number("top_p", lambda value: 0 < value <= 1),
            repetition_penalty=number("repetition_penalty", lambda value: value > 0),
        )


@dataclass(frozen=True, slots=True)
class Room:
    """The limits of one model under an operator's `Limits`. All counts are tokens."""

    total: int  # prompt and output together
    prompt: int
    output: int
    prompt_chars: int

    @classmethod
    def of(cls, limits: Limits, info: EngineInfo) -> Room:
        total = min(limits.max_seq_len or info.max_context, info.max_context)
        prompt = min(limits.max_input_token_len or total, total - 1, limits.max_prompt_tokens)
        return cls(total, prompt, limits.max_iter_times or total, limits.max_prompt_chars)


class Preparer:
    """Prepares requests for one loaded model. Holds no state of a request; safe in several threads.

    Args:
        loaded: the engine's adapters, a live view.
        model_name: the served model's name; None = requests may name any.
        watermark: what `watermark: true` stands for; None = TGI's defaults.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        info: EngineInfo,
        limits: Limits,
        defaults: ModelDefaults | None = None,
        loaded: Mapping[str, Adapter] | None = None,
        model_name: str | None = None,
        watermark: Watermark | None = None,
    ) -> None:
        self.room = Room.of(limits, info)
        self._loaded = {} if loaded is None else loaded
        self._model_name = model_name
        self._tokenizer = tokenizer
        self._info = info
        self._defaults = defaults or ModelDefaults()
        self._watermark = watermark or Watermark()
        self._truncation = limits.truncation
        # A tokenizer may know more tokens than the model has logits for; those can never be generated.
        self._eos_ids = frozenset(token for token in tokenizer.eos_ids if token < self._info.vocab_size)

    def check(self, request: GenerationRequest) -> None:
        """All checks that need no tokens; microseconds, but for non-ASCII prompts of megabytes.

        Raises:
            ValidationError: a field is wrong for this model.
            NotSupportedError: a field is right, and neither this model nor this engine can honour it.
            UnknownModelError: the request names a model that is not served.
        """
        self.check_prompt(request.prompt)
        sampling = request.sampling
        self._adapter(request)
        if self._info.unsupported:
            self._check_supported(request)
        vocab_size = self._info.vocab_size
        for name, ids in (
            ("stop_token_ids", request.stop_token_ids),
            ("logit_bias", tuple(i for i, _ in sampling.logit_bias)),
        ):
            for token_id in ids:
                if not 0 <= token_id < vocab_size:
                    raise ValidationError(
                        request.wire_name(name), f"must hold ids from 0 to {vocab_size - 1}, got {token_id}"
                    )

    def tokenize(self, request: GenerationRequest) -> Sequence[int]:
        """The prompt's ids, truncated and checked. Takes about 0.3 s a megabyte of text."""
        prompt = request.prompt
        if isinstance(prompt, TokenPrompt):
            ids: Sequence[int] = prompt.ids
            added_bos = False
        elif isinstance(prompt, ChatPrompt):
            raise AssertionError("a conversation is rendered before it is tokenised")
        else:
            ids, added_bos = self._encode(prompt.text, prompt.add_special)
        if request.truncate is not None and request.truncate < len(ids):
            ids = _truncate(ids, request.truncate, added_bos)
        if not ids:
            raise ValidationError(prompt.field, "must not be empty")
        limit = self.room.prompt
        if len(ids) > limit:
            if self._truncation == "off":
                raise ValidationError(
                    prompt.field, f"must have at most {counted(limit, 'token')}, got {len(ids)} tokens"
                )
            ids = ids[:limit] if self._truncation == "head" else _truncate(ids, limit, added_bos)
        if max(ids) >= self._info.vocab_size:  # an added token of a tokenizer that is wider than the model
            problem = f"holds a token that the model does not have: id {max(ids)} of {self._info.vocab_size}"
            raise ValidationError(prompt.field, problem)
        return ids

    def finish(self, request: GenerationRequest, ids: Sequence[int], deadline: float) -> PreparedRequest:
        """The prepared request over the prompt `ids`. `deadline` is on the clock of `time.monotonic`."""
        room = min(self.room.total - len(ids), self.room.output)
        max_new_tokens = room if request.max_new_tokens is None else min(request.max_new_tokens, room)
        min_new_tokens = min(request.min_new_tokens, max_new_tokens)
        eos_ids = self._eos_ids
        if request.ignore_eos and request.grammar is not None:
            min_new_tokens = max_new_tokens  # EOS comes where the grammar allows nothing else, and ends the answer
        elif request.ignore_eos:
            eos_ids = frozenset()
        return PreparedRequest(
            request_id=request.request_id,
            prompt_ids=tuple(ids),
            max_new_tokens=max_new_tokens,
            sampling=self._sampling(request.sampling),
            stop_token_ids=eos_ids.union(request.stop_token_ids) if request.stop_token_ids else eos_ids,
            min_new_tokens=min_new_tokens,
            prompt_logprobs=request.prompt_logprobs,
            top_n_tokens=request.top_n_tokens,
            grammar=request.grammar,
            adapter=self._adapter(request),
            priority=request.priority,
            deadline=deadline,
        )

    def check_prompt(self, prompt: Prompt) -> None:
        """The part of `check` that concerns the prompt."""
        if isinstance(prompt, ChatPrompt):
            self._check_chat(prompt)
            return
        if isinstance(prompt, TokenPrompt):
            if not prompt.ids:
                raise ValidationError(prompt.field, "must not be empty")
            vocab_size = self._info.vocab_size
            if min(prompt.ids) < 0 or max(prompt.ids) >= vocab_size:
                wrong = next(i for i in prompt.ids if not 0 <= i < vocab_size)
                raise ValidationError(prompt.field, f"must hold ids from 0 to {vocab_size - 1}, got {wrong}")
            return
        _check_media(prompt.parts)
        text = prompt.text
        if not text:
            raise ValidationError(prompt.field, "must not be empty")
        if len(text) > self.room.prompt_chars:
            raise ValidationError(
                prompt.field, f"must have at most {self.room.prompt_chars} characters, got {len(text)}"
            )
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as problem:
                raise ValidationError(
                    prompt.field, f"must be valid Unicode, got a lone surrogate at character {problem.start}"
                ) from None

    def _adapter(self, request: GenerationRequest) -> Adapter | None:
        """The adapter that `adapter_id` or else `model` names; None = the base model."""
        if request.adapter_id is not None:
            return adapters.find(self._loaded, request.adapter_id, request.wire_name("adapter_id"))
        if request.model is None or self._model_name is None or request.model == self._model_name:
            return None
        adapter = self._loaded.get(request.model)
        if adapter is None:
            raise UnknownModelError(request.model, self._model_name, adapters.listing(self._loaded, ""))
        return adapter

    def _check_chat(self, prompt: ChatPrompt) -> None:
        for message in prompt.messages:
            _check_media(message.parts or ())
        if prompt.chars > self.room.prompt_chars:
            raise ValidationError(
                prompt.field, f"must have at most {self.room.prompt_chars} characters, got {prompt.chars}"
            )

    def _check_supported(self, request: GenerationRequest) -> None:
        """Refuses what the engine says it does not honour, unless it was given its neutral value."""
        for name in self._info.unsupported:
            owner: object = request.sampling if hasattr(request.sampling, name) else request
            value = getattr(owner, name)
            neutral = getattr(_NEUTRAL, name, 0)
            if value is not None and value != neutral and value is not False:
                problem = f"is not supported by the {self._info.name} engine"
                raise NotSupportedError(request.wire_name(name), problem)

    def _encode(self, text: str, add_special: bool) -> tuple[Sequence[int], bool]:
        """(ids, the tokenizer added their BOS)."""
        ids = self._tokenizer.encode(text, add_special)
        bos = self._tokenizer.bos_id
        if not add_special or bos is None or not ids or ids[0] != bos:
            return ids, False
        return ids, not text.startswith(self._tokenizer.id_to_text(bos))

    def _sampling(self, wanted: SamplingRequest) -> SamplingParams:
        seed = wanted.seed if wanted.seed is not None else secrets.randbelow(MAX_DRAWN_SEED) + 1
        frequency = wanted.frequency_penalty or 0.0
        presence = wanted.presence_penalty or 0.0
        watermark = self._watermark if wanted.watermark else None
        if not wanted.do_sample:
            return SamplingParams(
                repetition_penalty=_first(wanted.repetition_penalty, None, 1.0),
                frequency_penalty=frequency,
                presence_penalty=presence,
                frequency_over=wanted.frequency_over,
                logit_bias=wanted.logit_bias,
                watermark=watermark,
                seed=seed,
            )
        defaults = self._defaults if wanted.use_model_defaults else ModelDefaults()
        last_top_k = _first(None, defaults.weights_top_k, wanted.default_top_k) if wanted.default_top_k else 0
        top_k = _first(wanted.top_k, defaults.top_k, last_top_k)
        return SamplingParams(
            do_sample=True,
            temperature=_first(wanted.temperature, defaults.temperature, 1.0),
            top_k=top_k if top_k < self._info.vocab_size else 0,
            top_p=_first(wanted.top_p, defaults.top_p, 1.0),
            typical_p=_first(wanted.typical_p, None, 1.0),
            min_p=wanted.min_p or 0.0,
            repetition_penalty=_first(wanted.repetition_penalty, defaults.repetition_penalty, 1.0),
            frequency_penalty=frequency,
            presence_penalty=presence,
            frequency_over=wanted.frequency_over,
            logit_bias=wanted.logit_bias,
            watermark=watermark,
            seed=seed,
        )


def _check_media(parts: Sequence[TextPart | MediaPart]) -> None:
    for part in parts:
        if isinstance(part, MediaPart):
            raise NotSupportedError(part.field, unread(part))


def unread(part: MediaPart) -> str:
    """What is wrong with any media part, whatever it names."""
    kind = {"image": "an image", "video": "a video", "audio": "an audio clip"}[part.kind]
    return f"is {kind}, and the served model reads text only"


def _first(wanted: T | None, default: T | None, neutral: T) -> T:
    if wanted is not None:
        return wanted
    return default if default is not None else neutral


def _truncate(ids: Sequence[int], keep: int, added_bos: bool) -> Sequence[int]:
    """The last `keep` ids; a BOS that the tokenizer added counts and stays."""
    if not added_bos:
        return ids[-keep:]
    return [ids[0], *ids[len(ids) - keep + 1 :]]
