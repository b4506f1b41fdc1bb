"""What docs/dialects.md says about OpenAI's routes and vLLM's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from interlingua.contract.dialect import DialectSettings
from interlingua.dialects._fields import Field
from interlingua.dialects._openai_errors import CODES, STATUSES
from interlingua.dialects._openai_table import CHAT, CHAT_TABLE, COMPLETIONS, COMPLETIONS_TABLE, VLLM, VLLM_TABLE

_FieldTable = Callable[[Iterable[Field], Sequence[str], DialectSettings], str]

_OPENAI = """\
## OpenAI

POST `/v1/chat/completions` and `/v1/completions`, GET `/v1/models` and `/v1/models/{model}`, each also under `/openai`.
`/invocations` takes the same bodies: `messages` makes a chat, `prompt` without `inputs` a completion. Fields marked as
vLLM's are those that vLLM's server of the same routes adds. Other fields of OpenAI's (`store`, `metadata`,
`service_tier` and the like) are unknown here and change nothing.

One answer has one form: of `response_format`, `structured_outputs`, the `guided_*` fields and a `tool_choice` that asks
for a call, at most one can be given. `response_format` may also be a grammar as TGI's server of the same route takes
it, with a `value`: `{"type": "json", "value": SCHEMA}`, `{"type": "regex", "value": …}`. A `value` or `json_schema`
beside a type that has no use for it is refused.
"""

_CHAT = """\
### Conversations

A message has a `role` (`system`, `developer`, `user`, `assistant`, `tool`) and `content`: a string, or a list of parts
`{"type": "text", "text": …}`, which are joined with nothing between them. Parts may be media, which a model that reads
text only refuses. An assistant's `content` may be null or absent if it has `tool_calls`; a tool's message needs the
`tool_call_id` that it answers; `reasoning_content` of an assistant goes to templates that know it.

The model's chat template (of its GGUF file, `chat_template.jinja`, `chat_template.json` or `tokenizer_config.json`; or
the operator's, `--chat-template`) makes the prompt, as transformers renders it, and the text is tokenised with special
tokens recognised and none added: it has exactly one BOS if the template writes one. What the template itself refuses is
a 400 with its own words. Rendering has a budget of 100,000 steps of loops, 4,194,304 characters, 5 seconds and 512 MB,
and runs in a process of its own. Without a template these routes alone answer 400.

An assistant's message at the end is followed by a new turn, as with OpenAI; `continue_final_message` goes on with it.

### Tools

With tools the model is told of them by its template; a template that does not know tools gets them as a system message
in the form of the Hermes models. With `auto` the answer is searched for calls in the model's own form, which follows
from the template:

| template holds | form of calls |
|---|---|
| `<tool_call>`, or nothing below | `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes, Qwen) |
| `[TOOL_CALLS]` | `[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]` (Mistral) |
| `<\\|python_tag\\|>`, or `ipython` and `"parameters"` | `{"name": …, "parameters": {…}}; …`, nothing else (Llama 3) |

A call of a function that is not among the tools, and what is no good call before its name is complete, is text. With
`required` or a named function a grammar makes the answer a call, whose arguments fit the function's `parameters`. TGI's
ways to name a function are good too: its bare name, and the object without `type`, as `huggingface_hub` writes it.
`finish_reason` is then `tool_calls`, unless the answer was cut (`length`).

A template that holds `</think>` marks reasoning: what stands between `<think>` and `</think>` at the start comes as
`reasoning_content`, also where the prompt itself opened the block.

### Fields of chat completions
"""

_COMPLETIONS = "### Fields of completions\n"

_ANSWERS = """\
### Answers

```json
{"id": "chatcmpl-…", "object": "chat.completion", "created": 1700000000, "model": "m",
  "system_fingerprint": "interlingua-0.1.0", "choices": [{"index": 0, "message": {"role": "assistant",
  "content": " sea", "refusal": null}, "logprobs": null, "finish_reason": "stop"}],
  "usage": {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}}
```

A completion has `text` instead of `message`. `finish_reason` is `stop`, `length` or `tool_calls`. `usage` counts each
prompt once and every generated token, end-of-sequence and those of a cut stop included. Logprobs leave out special
tokens; a token whose bytes are no text of their own is named `bytes:\\xf0\\x9f`; of a prompt that is echoed there are
logprobs and no alternatives (`null`), and the first token has none.

A stream has chunks of the same head: first the role, then `delta`s of content, reasoning or calls (a call's first delta
has its id and name, the others parts of its arguments), and one with `finish_reason` for each answer; with
`include_usage` a last one with no choices and `usage`, which is null in those before. `data: [DONE]` ends it. A fault
after the first byte is one event `{"error": {…}}`, then `[DONE]`.

### Errors

`{"error": {"message": string, "type": string, "param": string or null, "code": string or null}}`; `param` names the
field.

| what | status | type | code |
|---|---|---|---|
"""

_VLLM = """\
## vLLM

POST `/vllm/generate`, and `/generate` when the body has a `prompt` that is not null (it wins over TGI's `inputs`).

### Fields
"""

_VLLM_ANSWERS = """\
### Answers

`{"text": [string, …]}`: the prompt and the answer with nothing between them, for each of `n` answers. With `stream`
true the answer comes as such objects, each with all of the text so far, as vLLM's own server sends them, and set apart
as `--vllm-stream` says: `lines` (a newline behind each, as vLLM), `nul` (a NUL byte, as older versions) or `sse`
(server-sent events). Errors are those of TGI.
"""


def sections(fields: _FieldTable, settings: DialectSettings) -> list[str]:
    """The page's sections; `fields` writes a table of fields."""
    what = {"request": "fault inside the server", "not_found": "no such route; no such model: `model_not_found`"}
    rows = [
        f"| {what.get(kind, kind.replace('_', ' '))} | {status} | `{name}` | {CODES.get(kind, 'null')} |"
        for kind, (status, name) in STATUSES.items()
    ]
    return [
        _OPENAI,
        _CHAT,
        fields(CHAT_TABLE.fields, (CHAT,), settings),
        _COMPLETIONS,
        fields(COMPLETIONS_TABLE.fields, (COMPLETIONS,), settings),
        _ANSWERS + "\n".join(rows) + "\n",
        _VLLM,
        fields(VLLM_TABLE.fields, (VLLM,), settings),
        _VLLM_ANSWERS,
    ]
