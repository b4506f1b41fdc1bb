"""OpenAI's `/v1/chat/completions` and `/v1/completions`, with the fields that vLLM adds to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

import interlingua
from interlingua.contract.dialect import Call, ChatFormat, Dialect, DialectSettings, Route, WireRequest
from interlingua.contract.errors import ValidationError
from interlingua.contract.request import (
    MAX_SEED,
    PLACEHOLDER_MODELS,
    ChatPrompt,
    GenerationRequest,
    Grammar,
    Priority,
    SamplingRequest,
    StopMode,
    TextPrompt,
)
from interlingua.dialects import _openai_errors
from interlingua.dialects._chat_rules import ToolChoice
from interlingua.dialects._fields import Table, note_unknown
from interlingua.dialects._json import parse_object, show
from interlingua.dialects._openai_answers import ChatEncoder, CompletionEncoder, Head, MakeReader, Shown
from interlingua.dialects._openai_openapi import describe_chat, describe_completions
from interlingua.dialects._openai_output import Reader
from interlingua.dialects._openai_table import (
    CHAT,
    CHAT_TABLE,
    COMPLETIONS,
    COMPLETIONS_TABLE,
    MAX_COMPLETION_TOKENS,
)

_GREEDY_BELOW = 1e-5  # temperatures under it mean the likeliest token, as in vLLM
_GRAMMARS = (
    "response_format",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
)
_FINGERPRINT = f"interlingua-{interlingua.__version__}"


def read(wire: WireRequest, table: Table, column: str, required: str, settings: DialectSettings) -> dict[str, Any]:
    """The checked fields of a body. Raises ValidationError."""
    document = parse_object(wire.body, settings.max_json_depth)
    values = table.read(document, document.root, "", column, settings)
    document.close()
    if required not in values:
        raise ValidationError(required, "is required")
    note_unknown(wire.request_id, ("", document.root, table.__contains__))
    return values


def _read(wire: WireRequest, table: Table, column: str, required: str, settings: DialectSettings) -> dict[str, Any]:
    """As `read`; a placeholder for the model names none. Raises ValidationError."""
    values = read(wire, table, column, required, settings)
    if values.get("model") in PLACEHOLDER_MODELS:
        del values["model"]
    return values


def common(
    values: Mapping[str, Any], *, most: int | None, grammar: Grammar | None, names: Mapping[str, str]
) -> dict[str, Any]:
    """What the shared rows of the tables make of a request.

    Args:
        most: tokens that the answer may have; None = as many as there is room for.
        names: the contract's names -> the client's, where they differ.

    Raises:
        ValidationError: the answer must have more tokens than it may have.
    """
    least = values.get("min_tokens", 0)
    if most is not None and least > most:
        raise ValidationError("min_tokens", f"must be at most {names['max_new_tokens']}, {most}, got {least}")
    keep = values.get("include_stop_str_in_output", False)
    return {
        "sampling": sampling(values),
        "stop": values.get("stop", ()),
        "stop_mode": StopMode.KEEP if keep else StopMode.CUT,
        # Each once, the smallest first: a body may hold millions of them, and 128 prompts for which they are checked.
        "stop_token_ids": tuple(sorted(set(values.get("stop_token_ids", ())))),
        "ignore_eos": values.get("ignore_eos", False),
        "max_new_tokens": most,
        "min_new_tokens": least,
        "truncate": values.get("truncate_prompt_tokens"),
        "n": values.get("n", 1),
        "grammar": grammar,
        "priority": values.get("priority", Priority.LOWEST),
        "model": values.get("model"),
        "field_names": tuple({"min_new_tokens": "min_tokens", **names}.items()),
    }


def sampling(values: Mapping[str, Any]) -> SamplingRequest:
    """Sampling unless the temperature is next to nothing."""
    temperature = values.get("temperature")
    seed = values.get("seed")
    return SamplingRequest(
        do_sample=temperature is None or temperature >= _GREEDY_BELOW,
        temperature=temperature,
        top_k=max(values["top_k"], 0) if "top_k" in values else None,
        top_p=values.get("top_p"),
        min_p=values.get("min_p"),
        repetition_penalty=values.get("repetition_penalty"),
        frequency_penalty=values.get("frequency_penalty"),
        presence_penalty=values.get("presence_penalty"),
        frequency_over="output",
        logit_bias=values.get("logit_bias", ()),
        seed=None if seed is None else seed & MAX_SEED,
    )


def grammar_of(values: Mapping[str, Any]) -> tuple[Grammar | None, str]:
    """The grammar that the answer is to follow, and the field that named it. Raises ValidationError if two did."""
    given = [name for name in _GRAMMARS if values.get(name) is not None]
    if len(given) > 1:
        raise ValidationError(given[1], f"excludes {given[0]}: an answer has one form")
    return (values[given[0]], given[0]) if given else (None, "response_format")


def check_best_of(values: Mapping[str, Any], prompts: int) -> int:
    """How many answers to generate. Raises ValidationError."""
    n: int = values.get("n", 1)
    best_of: int = values.get("best_of", n)
    if best_of < n:
        raise ValidationError("best_of", f"must be at least n, {n}, got {best_of}")
    if best_of == n:
        return 1  # nothing to choose
    if values.get("stream"):
        raise ValidationError("best_of", f"must be n on a stream, got {best_of} with n {n}")
    if prompts > 1:
        raise ValidationError("best_of", f"over n takes one prompt, got {prompts} prompts")
    if not sampling(values).do_sample:
        raise ValidationError(
            "best_of", f"over n needs sampling, got {best_of} with temperature {values['temperature']:g}"
        )
    return best_of


def _include_usage(values: Mapping[str, Any]) -> bool:
    if "stream_options" in values and not values.get("stream"):
        raise ValidationError("stream_options", "needs stream true")
    return bool(values.get("stream_options"))


def _head(wire: WireRequest, kind: str, object_name: str, values: Mapping[str, Any], settings: DialectSettings) -> Head:
    return Head(
        id=f"{kind}-{wire.request_id}",
        object=object_name,
        created=wire.received,
        model=values.get("model", settings.model_name),
        fingerprint=_FINGERPRINT,
    )


# --- chat ----------------------------------------------------------------------------------------------------------


def decode_chat(wire: WireRequest, settings: DialectSettings) -> Call:
    """Decodes the body of a chat completion. Raises ValidationError."""
    values = _read(wire, CHAT_TABLE, CHAT, "messages", settings)
    choice = _tool_choice(values)
    tools: Sequence[Mapping[str, Any]] = values.get("tools", ()) if choice.mode != "none" else ()
    if choice.mode == "named":
        tools = [tool for tool in tools if tool["function"]["name"] == choice.name]
    grammar, source = grammar_of(values)
    parallel = values.get("parallel_tool_calls", True)
    if choice.mode in ("required", "named"):
        if grammar is not None:
            raise ValidationError(source, "excludes a tool_choice that asks for a call")
        grammar, source = _call_grammar(choice, tools, parallel), "tool_choice"
    logprobs = values.get("logprobs", False)
    if "top_logprobs" in values and values["top_logprobs"] and not logprobs:
        raise ValidationError("top_logprobs", "needs logprobs true")
    top = values.get("top_logprobs", 0) if logprobs else None
    limit = "max_completion_tokens" if "max_completion_tokens" in values else "max_tokens"
    request = GenerationRequest(
        request_id=wire.request_id,
        prompt=_chat_prompt(values, settings),
        top_n_tokens=top or 0,
        **common(
            values,
            most=values.get(limit),
            grammar=grammar,
            names={"max_new_tokens": limit, "grammar": source, "top_n_tokens": "top_logprobs"},
        ),
    )
    encoder = ChatEncoder(
        head=_head(wire, "chatcmpl", "chat.completion", values, settings),
        n=request.n,
        make_reader=_reader(settings.chat, choice, tools, parallel),
        shown=Shown(special=not values.get("skip_special_tokens", True), marks=bool(tools or settings.chat.reasoning)),
        top=top,
        include_usage=_include_usage(values),
    )
    return Call(request, values.get("stream", False), encoder)


def _chat_prompt(values: Mapping[str, Any], settings: DialectSettings) -> ChatPrompt:
    goes_on = values.get("continue_final_message", False)
    if goes_on and values.get("add_generation_prompt"):
        raise ValidationError("continue_final_message", "excludes add_generation_prompt")
    arguments = dict(values.get("chat_template_kwargs", {}))
    if "reasoning_effort" in values:
        arguments.setdefault("reasoning_effort", values["reasoning_effort"])
    choice = _tool_choice(values)
    return ChatPrompt(
        messages=values["messages"],
        tools=values.get("tools", ()) if choice.mode != "none" else (),
        template=values.get("chat_template"),
        arguments=arguments,
        add_generation_prompt=values.get("add_generation_prompt", not goes_on),
        continue_final=goes_on,
    )


def _tool_choice(values: Mapping[str, Any]) -> ToolChoice:
    tools = values.get("tools", ())
    choice: ToolChoice = values.get("tool_choice", ToolChoice("auto"))
    if not tools:
        if choice.mode in ("required", "named"):
            raise ValidationError("tool_choice", "asks for a call, and there are no tools")
        return ToolChoice("none")
    names = [tool["function"]["name"] for tool in tools]
    if choice.mode == "named" and choice.name not in names:
        words = f"must be none, auto, required or name one of the tools ({', '.join(names)})"
        raise ValidationError("tool_choice", f"{words}, got {show(choice.name)}")
    return choice


def _call_grammar(choice: ToolChoice, tools: Sequence[Mapping[str, Any]], parallel: bool) -> Grammar:
    """The arguments of the named function, or a list of calls of any functions."""
    if choice.mode == "named":
        return Grammar("json_schema", orjson.dumps(_parameters(tools[0])).decode())
    # Each function's schema moves to a place of its own, and the references inside it move with it.
    definitions = {str(place): _moved(_parameters(tool), f"#/$defs/{place}") for place, tool in enumerate(tools)}
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "arguments": {"$ref": f"#/$defs/{place}"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for place, tool in enumerate(tools)
    ]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}, "$defs": definitions}
    if not parallel:
        schema["maxItems"] = 1
    return Grammar("json_schema", orjson.dumps(schema).decode())


def _parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a function's arguments; absent means that it takes none."""
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    parameters: Mapping[str, Any] = tool["function"].get("parameters") or nothing
    return parameters


def _moved(schema: Any, root: str) -> Any:
    """A schema whose references to its own root lead to `root`."""
    if isinstance(schema, list):
        return [_moved(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: root + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, root)
        for key, value in schema.items()
    }


def _reader(form: ChatFormat, choice: ToolChoice, tools: Sequence[Mapping[str, Any]], parallel: bool) -> MakeReader:
    names = [tool["function"]["name"] for tool in tools]
    most = None if parallel else 1
    if choice.mode == "named":
        return lambda reasoning: Reader(form, [choice.name], guided="arguments")
    if choice.mode == "required":
        return lambda reasoning: Reader(form, names, guided="calls", most=most)
    return lambda reasoning: Reader(form, names, reasoning=reasoning, most=most)


# --- completions ---------------------------------------------------------------------------------------------------


def decode_completions(wire: WireRequest, settings: DialectSettings) -> Call:
    """Decodes the body of a completion, which may hold several prompts. Raises ValidationError."""
    values = _read(wire, COMPLETIONS_TABLE, COMPLETIONS, "prompt", settings)
    prompts = values["prompt"]
    echo = values.get("echo", False)
    top = values.get("logprobs")
    max_tokens = values.get("max_tokens", MAX_COMPLETION_TOKENS)
    if max_tokens == 0 and not echo:
        raise ValidationError("max_tokens", "must be at least 1 without echo, got 0")
    grammar, source = grammar_of(values)
    special = values.get("add_special_tokens", True)
    prompts = [replace(prompt, add_special=special) if isinstance(prompt, TextPrompt) else prompt for prompt in prompts]
    texts = [prompt.text if isinstance(prompt, TextPrompt) else None for prompt in prompts]
    first = GenerationRequest(
        request_id=wire.request_id,
        prompt=prompts[0],
        # The texts of ids come with their logprobs.
        prompt_logprobs=echo and (top is not None or None in texts),
        top_n_tokens=top or 0,
        best_of=check_best_of(values, len(prompts)),
        **common(
            values,
            most=max(max_tokens, 1),
            grammar=grammar,
            names={
                "max_new_tokens": "max_tokens",
                "grammar": source,
                "top_n_tokens": "logprobs",
                "prompt_logprobs": "echo",
            },
        ),
    )
    encoder = CompletionEncoder(
        head=_head(wire, "cmpl", "text_completion", values, settings),
        n=first.n,
        prompts=texts,
        echo=echo,
        shown=Shown(special=not values.get("skip_special_tokens", True)),
        top=top,
        include_usage=_include_usage(values),
        no_output=max_tokens == 0,
    )
    more = tuple(replace(first, prompt=prompt) for prompt in prompts[1:])
    return Call(first, values.get("stream", False), encoder, more)


# Routes of the vendor's below the same root, with errors of another shape.
_OF_OTHERS = ("/v1/tokenizer", "/v1/config", "/v1/status")


def _owns(path: str) -> bool:
    return path not in _OF_OTHERS and (path == "/v1" or path.startswith(("/v1/", "/openai/")))


DIALECT = Dialect(
    name="openai",
    title="OpenAI",
    prefix="/openai",
    routes=(
        Route(method="POST", path="/v1/chat/completions", decode=decode_chat, describe=describe_chat),
        Route(method="POST", path="/v1/completions", decode=decode_completions, describe=describe_completions),
    ),
    render_error=_openai_errors.reply,
    owns=_owns,
)
