"""The fields of chat completions, of completions, and of vLLM's `/generate`, as one set of tables.

OpenAI's own fields have OpenAI's ranges; those that vLLM adds have vLLM's. All three routes share most rows.
"""

from __future__ import annotations

from interlingua.contract.request import PLACEHOLDER_MODELS
from interlingua.dialects._chat_rules import Messages, ToolChoiceRule, Tools
from interlingua.dialects._fields import Field, Table
from interlingua.dialects._format_rules import Guided, ResponseFormat, StructuredOutputs
from interlingua.dialects._openai_rules import JsonObject, LogitBias, Prompts, Refused, StreamOptions
from interlingua.dialects._parts import MiB, Prompt
from interlingua.dialects._rules import (
    INT32_MAX,
    LENIENT_PROMPT_CHARS,
    MAX_PROMPT_CHARS,
    Boolean,
    Integer,
    IntegerList,
    Number,
    Rule,
    Stops,
    Text,
)

CHAT = "chat"
COMPLETIONS = "completions"
VLLM = "vllm"
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_COMPLETION_TOKENS = 16  # completions and vLLM, absent
_COLUMNS = (CHAT, COMPLETIONS, VLLM)


def _field(
    name: str, rule: Rule, default: str, effect: str, note: str = "", lenient: Rule | None = None, **own: Rule
) -> Field:
    """A row with the same default everywhere; `own` holds the rules of routes that differ."""
    rules = dict.fromkeys(_COLUMNS, rule) | own
    if lenient is not None:
        rules["lenient"] = lenient
    return Field(name=name, rules=rules, effect=effect, defaults=dict.fromkeys(_COLUMNS, default), note=note)


_NAMED = "The served model's name, or that of a loaded adapter"
_MODEL = _field(
    "model",
    Text(1, 256),
    "the served model",
    f"{_NAMED}. {' and '.join(f'`{name}`' for name in PLACEHOLDER_MODELS)}, which Hugging Face's clients write when no "
    "model was named, mean the served model; the answer has its name.",
)
_VLLM_MODEL = _field("model", Text(1, 256), "the served model", f"{_NAMED}.")
_STREAM = _field("stream", Boolean(), "false", "Answer with server-sent events.")
_VLLM_STREAM = _field(
    "stream",
    Boolean(),
    "false",
    "Answer piece by piece, framed as `--vllm-stream` says: a JSON object on each line, unless it says otherwise.",
)
_TEXTS = Stops(items=1024)

_SAMPLING = (
    _field(
        "temperature",
        Number(at_least=0, at_most=2),
        "the model's generation_config.json, else 1.0",
        "Divides the scores; higher is more random. Below 1e-5: the likeliest token always.",
        lenient=Number(at_least=0),
        vllm=Number(at_least=0),
    ),
    _field(
        "top_p",
        Number(above=0, at_most=1),
        "the model's generation_config.json, else 1.0",
        "Keeps the smallest set of likeliest tokens whose probabilities reach p; 1 is off.",
    ),
    _field(
        "top_k",
        Integer(-1, INT32_MAX),
        "the model's generation_config.json, else off",
        "Keeps the k likeliest tokens; 0, -1, or at or over the vocabulary: off.",
        "vLLM's.",
    ),
    _field(
        "min_p",
        Number(at_least=0, at_most=1),
        "0",
        "Drops tokens less likely than this share of the likeliest one's probability.",
        "vLLM's.",
    ),
    _field(
        "presence_penalty",
        Number(at_least=-2, at_most=2),
        "0",
        "Subtracted from the score of each token in the answer so far.",
    ),
    _field(
        "frequency_penalty",
        Number(at_least=-2, at_most=2),
        "0",
        "Subtracted as often as the token is in the answer so far.",
    ),
    _field(
        "repetition_penalty",
        Number(above=0),
        "the model's generation_config.json when sampling, else 1.0",
        "Makes tokens of prompt and answer less likely (over 1) or likelier (under 1); 1 is off.",
        "vLLM's.",
    ),
    _field("logit_bias", LogitBias(), "none", "Added to the scores of these tokens."),
    _field(
        "seed",
        Integer(INT64_MIN, INT64_MAX),
        "drawn from 1..2^53−1",
        "The random seed; the same seed gives the same answer, whatever else runs.",
    ),
)
_ANSWERS = (
    _field("n", Integer(1, 128), "1", "Answers to return, each with a seed of its own."),
    _field(
        "stop",
        Stops(items="max_stop_sequences"),
        "none",
        "Ends the answer right before one of the strings appears in new text.",
        lenient=_TEXTS,
        vllm=_TEXTS,
    ),
    _field(
        "stop_token_ids",
        IntegerList(Integer(0, INT32_MAX)),
        "none",
        "Ids that end the answer as the model's own end does.",
        "vLLM's.",
    ),
    _field(
        "include_stop_str_in_output",
        Boolean(),
        "false",
        "The text ends right after the stop string, not before it.",
        "vLLM's.",
    ),
    _field("ignore_eos", Boolean(), "false", "Goes on past the end-of-sequence token.", "vLLM's."),
    _field("min_tokens", Integer(0, INT32_MAX), "0", "No end before so many tokens; at most max_tokens.", "vLLM's."),
    _field("skip_special_tokens", Boolean(), "true", "false shows special tokens in the text.", "vLLM's."),
    _field("truncate_prompt_tokens", Integer(1, INT32_MAX), "off", "Keeps the last n tokens of the prompt.", "vLLM's."),
    _field("priority", Integer(1, 5), "5", "Place in the queue, 1 first.", "An extension of this server."),
    _field("guided_json", Guided("json"), "none", "The answer is JSON that fits this schema.", "vLLM's."),
    _field("guided_regex", Guided("regex"), "none", "The answer matches this expression.", "vLLM's."),
    _field("guided_choice", Guided("choice"), "none", "The answer is one of these.", "vLLM's."),
    _field("guided_grammar", Guided("grammar"), "none", "The answer belongs to this grammar.", "vLLM's."),
    _field("structured_outputs", StructuredOutputs(), "none", "vLLM's newer name for the guided fields.", "vLLM's."),
    _field("use_beam_search", Refused((False,), "beam search is not supported"), "false", "Checked.", "vLLM's."),
    _field("prompt_logprobs", Refused((), "use echo with logprobs on /v1/completions"), "none", "Checked.", "vLLM's."),
)
_BEST_OF = _field(
    "best_of",
    Integer(1, 20),
    "n",
    "Answers to generate, of which the n with the best mean logprob are returned. Over n: not on a stream.",
)
_OPENAI = (
    _field(
        "stream_options", StreamOptions(), "none", "`include_usage`: the counts in a chunk of their own before the end."
    ),
    _field(
        "response_format",
        ResponseFormat(),
        "text",
        "The form of the answer: text, any JSON object, or JSON of a schema; or TGI's `grammar`, with its `value`.",
    ),
    _field("user", Text(0, 1 << 20), "none", "Checked; has no effect on this server."),
)

CHAT_TABLE = Table.of(
    (CHAT,),
    (
        _field(
            "messages",
            Messages(),
            "required",
            "The conversation. Parts of a content are joined with nothing between them.",
        ),
        _MODEL,
        _STREAM,
        _field("max_completion_tokens", Integer(1, INT32_MAX), "the room that is left", "The most tokens to generate."),
        _field(
            "max_tokens",
            Integer(1, INT32_MAX),
            "none",
            "The older name of max_completion_tokens, which wins when both are given.",
        ),
        *_SAMPLING,
        *_ANSWERS,
        *_OPENAI,
        _field("logprobs", Boolean(), "false", "Adds the logprob of each token."),
        _field("top_logprobs", Integer(0, 20), "0", "Adds as many likeliest tokens at each place; needs logprobs."),
        _field("tools", Tools(), "none", "Functions that the model may call."),
        _field(
            "tool_choice",
            ToolChoiceRule(),
            "auto with tools, else none",
            "`auto`: the model decides; `none`: it is told of no tools; `required` or a named function: the answer is "
            "a call whose arguments fit the function's schema.",
        ),
        _field("parallel_tool_calls", Boolean(), "true", "false: one call at most."),
        _field(
            "functions",
            Refused(([],), "functions are given as `tools`"),
            "none",
            "OpenAI's older name for tools; refused.",
        ),
        _field(
            "function_call",
            Refused(("none", "auto"), "functions are chosen with `tool_choice`"),
            "none",
            "Refused likewise.",
        ),
        _field("modalities", Refused((["text"],), "answers are text"), '["text"]', "Checked."),
        _field("audio", Refused((), "answers are text"), "none", "Checked."),
        _field("reasoning_effort", Text(1, 64), "none", "A variable of the chat template, for those that know it."),
        _field(
            "chat_template",
            Text(1, 1 << 20),
            "the model's",
            "A Jinja template; refused unless the operator allows it (`--allow-client-chat-template`).",
            "vLLM's.",
        ),
        _field(
            "chat_template_kwargs",
            JsonObject(),
            "none",
            "Variables of the chat template, such as `enable_thinking`.",
            "vLLM's.",
        ),
        _field(
            "add_generation_prompt",
            Boolean(),
            "true",
            "The prompt ends with the head of the assistant's turn.",
            "vLLM's.",
        ),
        _field(
            "continue_final_message",
            Boolean(),
            "false",
            "The model goes on with the last message; excludes add_generation_prompt.",
            "vLLM's.",
        ),
    ),
)

COMPLETIONS_TABLE = Table.of(
    (COMPLETIONS,),
    (
        _field(
            "prompt",
            Prompts(),
            "required",
            "The prompt, or several: the answers to prompt i are choices i·n to i·n + n−1.",
        ),
        _MODEL,
        _STREAM,
        _field(
            "max_tokens",
            Integer(0, INT32_MAX),
            str(MAX_COMPLETION_TOKENS),
            "The most tokens to generate; 0 with echo alone.",
        ),
        *_SAMPLING,
        *_ANSWERS,
        _BEST_OF,
        *_OPENAI,
        _field(
            "logprobs",
            Integer(0, 5),
            "none",
            "Adds the logprob of each token, and as many likeliest ones at each place.",
            lenient=Integer(0, 20),
        ),
        _field("echo", Boolean(), "false", "The prompt stands before the text; with logprobs, its tokens too."),
        _field("suffix", Refused(("",), "the model cannot fill in the middle of a text"), "none", "Refused."),
        _field(
            "add_special_tokens",
            Boolean(),
            "true",
            "The tokenizer puts its own special tokens around the prompt.",
            "vLLM's.",
        ),
    ),
)

VLLM_TABLE = Table.of(
    (VLLM,),
    (
        _field(
            "prompt",
            Prompt(max_chars=MAX_PROMPT_CHARS, image_bytes=40 * MiB, audio_bytes=40 * MiB),
            "required",
            "The prompt. Text parts of a list are joined with nothing between them.",
            lenient=Prompt(max_chars=LENIENT_PROMPT_CHARS, image_bytes=40 * MiB, audio_bytes=40 * MiB),
        ),
        _VLLM_MODEL,
        _VLLM_STREAM,
        _field("max_tokens", Integer(1, INT32_MAX), str(MAX_COMPLETION_TOKENS), "The most tokens to generate."),
        *_SAMPLING,
        *_ANSWERS,
        _BEST_OF,
    ),
)
