"""Makes docs/dialects.md from the tables that decoding checks with: `scripts/make-docs` writes it.

A test compares the two, so the page cannot drift.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from interlingua.contract.dialect import DialectSettings
from interlingua.dialects import _kserve_table, _native_table, _openai_reference, _tgi_table, _triton_table, triton
from interlingua.dialects._errors import TGI_STATUSES, Statuses
from interlingua.dialects._fields import Field
from interlingua.dialects._kserve_table import TensorField
from interlingua.dialects._rules import Rule

_INTRODUCTION = """\
# Dialects

<!-- Made by scripts/make-docs; edit the tables in interlingua/dialects instead. -->

What each route takes, checks and answers. In every dialect:

- `null` counts as absent for every optional field. An integer is good for a number; `20.0`, `"20"` and
  `true` are no integers; booleans are `true` and `false` alone. Numbers must be finite as 32-bit floats.
- Unknown fields, at any level, are accepted and change nothing; a debug line of the log names them.
- A body must be one JSON object in UTF-8 (a byte order mark is accepted), without unpaired surrogates, NaN
  or Infinity, nested at most 64 levels deep. Of duplicate keys the last one counts. The Content-Type is not
  looked at; a Content-Encoding (gzip) is refused by its name.
- It holds at most 65,536 arrays and objects, 262,144 members of objects and 2,097,152 values; a list of
  messages, parts, tools or ids is bounded by itself, as its field says.
- Whatever can be refused is refused before the first byte of an answer, on streams too, with the status
  below and a message that names the field, what is accepted and what was given.
- `--lenient-ranges` widens the ranges to what other servers of the same dialect really take (the last
  column).
- Logprobs are the raw model's, before every processor: the natural logarithm of a softmax. The first token
  of a prompt has none (`null`).
"""

_TGI = """\
## TGI

POST `/generate`, `/generate_stream`, `/` and `/invocations`, each also under `/tgi`.

Two profiles: `mindie` rules `/generate` and `/generate_stream`, `hf` rules `/` and `/invocations`.
`--tgi-profile mindie` or `hf` puts all four under one of them. What belongs to the route stays with it: `/`
and `/invocations` answer with a list of one object and `stream` in the body chooses events; `/generate`
answers with the object and ignores `stream`.

The body holds `inputs`, on `/` and `/invocations` also `stream`, and an object `parameters` with the rest.
"""

_TGI_ANSWERS = """\
### Answers

```json
{"details": {"finish_reason": "length", "generated_tokens": 1, "prefill": [], "prompt_tokens": 4, "seed": 42,
  "tokens": [{"id": 17, "logprob": -0.5, "special": false, "text": " sea"}]}, "generated_text": " sea"}
```

`details` is there when `details` or `decoder_input_details` is true; `top_tokens`, parallel to `tokens`,
when asked for. `finish_reason` is `eos_token`, `stop_sequence` or `length`; an EOS as the last allowed
token reports `length`. Headers: `x-compute-type`, `x-compute-characters`, `x-compute-time` (seconds),
`x-total-time`, `x-validation-time`, `x-queue-time`, `x-inference-time`, `x-time-per-token` (whole
milliseconds), `x-prompt-tokens`, `x-generated-tokens`; of these a stream has the first two.

A stream has one event per generated token and no `[DONE]`:

```
data: {"index":1,"token":{"id":7,"text":"a","logprob":-1,"special":true},"generated_text":null,"details":null}
```

The last event has `generated_text` and, when details were asked for, `details` with `finish_reason`,
`generated_tokens`, `seed` and `input_length`. The texts of the tokens that are not special join to
`generated_text`. A fault after the first byte is one event `{"error", "error_type"}`, then the stream ends.
"""

_TRITON = """\
## Triton

POST `/v2/models/{model}/generate` and `/generate_stream`, also with `/versions/1` after the model, each
also under `/triton`. An unknown model or version is 404, whatever the body holds.

The body holds `id`, `text_input` and the rest either in an object `parameters` or at the top level; with
both, `parameters` wins. The document's names win over Triton's own (`max_tokens`).

What is not in the table is unknown here and changes nothing, though other routes know it (`adapter_id`, `grammar`,
`truncate`, `best_of`): for an adapter or a grammar use TGI's `/generate` or OpenAI's routes. An adapter's name is no
model's name here.
"""

_TRITON_ANSWERS = """\
### Answers

```json
{"id": "a123", "model_name": "m", "model_version": null, "text_output": " sea", "details":
  {"finish_reason": "length", "generated_tokens": 1, "first_token_cost": null, "decode_cost": null,
  "perf_stat": [[17, 8]]}}
```

`details` is there when asked for. `perf_stat` has one row per token, its id and the whole milliseconds
since the one before; the first row holds the prefill. Without `perf_stat` it is `null`.

`generate_stream` sends events of the same keys whose `text_output` is the new text; the last one alone has
`details`. There is no `[DONE]`. A fault after the first byte is one event `{"error", "error_type"}`, then
the stream ends.
"""

_KSERVE = """\
## KServe v2

POST `/v2/models/{model}/infer`, also with `/versions/1` after the model, each also under `/triton`: inference with
tensors, as the KServe v2 protocol and Triton's extensions of it have them. Errors and the `id` are those of Triton
above.

An input has `name`, `datatype`, `shape` and `data`, a list that is flat or nested as the shape says. Or its data lie
behind the JSON, in the order of the inputs: then its `parameters.binary_data_size` says how many bytes are its own, and
the header `Inference-Header-Content-Length` how long the JSON is. Numbers are little-endian; an element of BYTES has
its length before it as four bytes. BYTES must be UTF-8. One request is one prompt: shapes are `[n]` or `[1, n]`.
Shared memory and classification are refused.

The fields of Triton's table above may stand in the input `sampling_parameters` (the text of a JSON object), in the
`parameters` of the input that holds the prompt, or in those of the request; the first named wins. `timeout` is in
seconds here too, not in Triton's microseconds. Other parameters change nothing, as above; inputs of other names are
refused.
"""

_KSERVE_ANSWERS = """\
A single input of UINT32 may have any name; so may the only output that its request names, which then holds the ids.

```json
{"id": "a123", "model_name": "m", "model_version": "1", "outputs": [
  {"name": "text_output", "shape": [1], "datatype": "BYTES", "data": [" sea"]}]}
```

An output is binary when its `parameters.binary_data` is true, or `parameters.binary_data_output` of the request and
nothing else is said: it then has `parameters.binary_data_size`, the data lie behind the JSON in the order of the
outputs, and the answer has `Inference-Header-Content-Length`.

Beside inference:

| route | answer |
|---|---|
| GET `/v2` | `name`, `version`, `extensions` |
| GET `/v2/health/live` | 200 as soon as the port is open |
| GET `/v2/health/ready`, `/v2/models/{model}/ready` | 200 when requests can be served, else 503 with the reason |
| GET `/v2/models/{model}` | the tensors above |
| GET `/v2/models/{model}/config` | Triton's ModelConfig, and the vendor's `max_seq_len` and the like |
| POST `/v2/repository/index` | the served model and its state; `{"ready": true}` leaves it out while it is not ready |
| POST `/v2/models/{model}/stopInfer` | ends the running request with this `id`; the body comes back |
| GET `/v2/models/{model}/getSlotCount` | places (`--max-concurrent-requests`), free ones, free tokens of KV |

`stopInfer` takes the `id` that a client gave (Triton, KServe), or that of the `x-request-id` header of any answer (see
[operations.md](operations.md), Logs: a caller's own needs the letters of an `id` here). The
request ends with its next token, or at once if it has none yet, and answers with the text so far and `stop_sequence`.
Ids need not be unique: of several requests the oldest is ended. 404: no such request runs.
"""

_NATIVE = """\
## Native

POST `/infer` and `/infer_token`, each also under `/native`; both take text or token ids. The body holds `inputs` or
`input_id`, `stream`, and an object `parameters` with the rest. Errors are TGI's.
"""

_NATIVE_ANSWERS = """\
### Answers

```json
{"generated_text": " sea", "details": {"finish_reason": "length", "generated_tokens": 1, "seed": 42,
  "generated_token_ids": [17]}}
```

`details` is there when asked for. With `stream` there is one event per token, and no `[DONE]`:

```
data: {"prefill_time":12,"decode_time":null,"token":{"id":[17],"text":" sea"}}
```

The times, whole milliseconds, are there with `details` alone. The last event also has `generated_text` and `details`
(`null` when not asked for, without the ids otherwise). The texts of all events join to `generated_text`.
"""

_TOKENS = """\
## Tokens

| route | body | answer |
|---|---|---|
| POST `/tokenize` | `inputs` as on TGI | a list of `{id, text, start, stop}`; the last two count bytes of UTF-8 |
| POST `/tokenize` | `prompt`, `add_special_tokens` (true), `return_token_strs` (false): vLLM's | \
`count`, `max_model_len`, `tokens` (ids), `token_strs` |
| POST `/tokenize` | `messages` and more of a chat completion, `return_token_strs` | the same of the templated text |
| POST `/detokenize` | `tokens` (ids): vLLM's | `prompt`: their text, that of special tokens included |
| POST `/chat_tokenize` | a chat completion's | `tokenize_response` as the list above, `templated_text` |
| POST `/v1/tokenizer` | `inputs`, `do_decode` (true) | `token_number`, `tokens`: their texts; the tokens \
of one character have one text |

They take no permit. On `/tokenize` `prompt` counts before `messages`, and both before `inputs`.
"""

_CONTROL = """\
## Running the server

These routes stand on the data port, or on the management address alone when `--management-port` sets one: then they
are 404 to clients. Health, `/info` and KServe's health are on both; `/metrics` is on the management address, or on
`--metrics-port`. Errors are `{"error", "error_type"}` with the statuses of TGI, and 403 as below.

| route | answer |
|---|---|
| GET `/health/timed`, `/health/timed-T` | 200 when the engine makes a token within T seconds (1 to 600; 10), \
or does steps for others meanwhile; else 503. Another T is 404 |
| GET `/stopService` | refuses new requests at once, answers when those inside have ended (at most `--stop-grace` \
seconds), then the server ends; with `?mode=Force` it waits for nobody. 503 when it is stopping already |
| GET `/v1/status`, `/v2/status` | free places, requests that run and wait, blocks of KV memory |
| GET `/v1/config` | the served model and its limits |
| GET `/metrics-json` | TTFT and TBT (means over the last 1,000 answers, whole milliseconds, 0 before there is one), \
requests that wait and run, free blocks |
| GET `/v2/models/{model}/getSlotCount` | as under KServe |
| POST `/v1/load_lora_adapter` | `lora_name`, `lora_path`, `master_model`: loads a LoRA adapter; a loaded name gets a \
new version |
| POST `/v1/unload_lora_adapter` | `lora_name`: new requests for it are refused, running ones end on it |

The names with `Npu` are the memory of the device, which is the CPU here; nothing is swapped, so those with `Cpu` and
`swapped` are 0, and memory that is sized at the start is -1.

`/stopService` and the two that load and unload change the server's state. They ask for the admin key (`--admin-key`,
`--admin-key-file`) as `Authorization: Bearer KEY`: 401 without it. Without such a key they work on a management address
alone, and are 403 on the data port. The key of the clients does not open them.

## gRPC

With `--grpc-port` and the extra `interlingua[grpc]` the server speaks the KServe v2 protocol over gRPC
(`inference.GRPCInferenceService`): ServerLive, ServerReady, ModelReady, ServerMetadata, ModelMetadata, ModelConfig,
RepositoryIndex, ModelInfer and ModelStreamInfer, with the tensors and parameters of `infer` above. ModelInfer gives one
response. On ModelStreamInfer a request whose input `stream` is true gets one for each token, with the new text and the
new id; each request's last response has the parameter `triton_final_response` true. Several requests of one stream run
side by side and are told apart by their ids; an error ends its own request alone, as `error_message`. The keys of
`--api-key` are asked for as metadata `authorization: Bearer KEY`, the certificates are those of HTTPS.

| what | status |
|---|---|
| a wrong request | INVALID_ARGUMENT |
| unknown model or version | NOT_FOUND |
| no key, or a wrong one | UNAUTHENTICATED |
| no place is free, or the message is too large | RESOURCE_EXHAUSTED |
| loading, stopping or stuck | UNAVAILABLE |
| the request's own time limit | DEADLINE_EXCEEDED |
| a fault inside the server | INTERNAL |
"""

_MEDIA = """\
## Typed parts

A prompt may be a list of `{"type": T, T: value}` with T one of `text`, `image_url`, `video_url`,
`audio_url`; a media value is a string or `{"url": string}`. At most 20 media parts. A value is, decided in
this order, an http or https URL of at most 4,096 characters, a base64 data URI, a local path (or `file://` and one) of
at most 4,096 characters, or for images bare base64.

| kind | files | data URIs | most bytes on TGI | most bytes on Triton |
|---|---|---|---|---|
| image | jpg, jpeg, png | image/jpeg, image/jpg, image/png | 40 MiB | 20 MiB |
| video | mp4, avi, wmv | video/mp4, video/x-msvideo, video/x-ms-wmv | 512 MiB | 512 MiB |
| audio | mp3, wav, flac | audio/mpeg, audio/mp3, audio/x-wav, audio/wav, audio/flac | 40 MiB | 20 MiB |

What a part may name is the operator's to say ([configuration.md](configuration.md), Media):

- The host of a URL must be in `allowed_media_domains` (the variable `ALLOWED_MEDIA_DOMAINS_ENV`), compared exactly in
  lower case and without the port, or on the internet with `allow_public_media`. Without either, no URL is taken.
- A private, loopback, link-local, reserved or metadata address is taken only if the list holds it as such. IPv6
  addresses that hold an IPv4 address are none of the internet. `localhost` is never taken; `*.internal`, `*.local`,
  names without a dot, nip.io and sslip.io only if the list has the whole name.
- A URL has no user, and its host is a name in ASCII without a dot at the end, or an address in its usual notation: not
  in decimal, octal or hex.
- A path is absolute, without `.`, `..` and empty steps, and leads through no symbolic link to a regular file below
  `allowed_local_media_path` (`/data/multimodal_inputs`) that is not larger than the table says.

Every part is refused, since the served model reads text only: nothing is fetched, no name is resolved and no file is
opened. For one that breaks these rules the error also has the rule and what was given.
What only fetching can do does not exist yet: to judge the address that a name leads to, the size and the content of
what comes, and at the start the free disk for it (largest file × requests at once × 1.5). Markdown images in a string
stay plain text.
"""


_KINDS = {"request": "fault inside the server", "not_found": "no such route or model"}


def page() -> str:
    """The whole page, ending with a newline."""
    settings = DialectSettings(model_name="", vocab_size=0)
    tgi_fields = [_tgi_table.INPUTS, _tgi_table.STREAM, *_tgi_table.PARAMETERS.fields]
    native_root = [_native_table.INPUTS, _native_table.INPUT_ID, _native_table.STREAM]
    triton_fields = [_triton_table.ID, _triton_table.TEXT_INPUT, *_triton_table.PARAMETERS.fields]
    sections = [
        _INTRODUCTION,
        _TGI,
        "### Fields\n",
        _fields(tgi_fields, _tgi_table.COLUMNS, settings),
        _TGI_ANSWERS,
        _errors(TGI_STATUSES),
        _TRITON,
        "### Fields\n",
        _fields(triton_fields, _triton_table.COLUMNS, settings),
        _TRITON_ANSWERS,
        _errors(triton.STATUSES),
        _KSERVE,
        _tensors("input", _kserve_table.INPUT_FIELDS),
        _tensors("output", _kserve_table.OUTPUT_FIELDS),
        _KSERVE_ANSWERS,
        *_openai_reference.sections(_fields, settings),
        _NATIVE,
        "### Fields\n",
        _fields([*native_root, *_native_table.PARAMETERS.fields], _native_table.COLUMNS, settings),
        _NATIVE_ANSWERS,
        _TOKENS,
        _CONTROL,
        _MEDIA,
    ]
    return "\n".join(sections)


def _fields(fields: Iterable[Field], columns: Sequence[str], settings: DialectSettings) -> str:
    heads = ["field", "type"]
    for column in columns:
        suffix = f", `{column}`" if len(columns) > 1 else ""
        heads += [f"range{suffix}", f"absent{suffix}"]
    rows = [[*heads, "effect", "range, lenient"]]
    rows.append(["---"] * len(rows[0]))
    for field in fields:
        row = [f"`{field.name}`", field.rule(columns[0], False).type_name]
        for column in columns:
            row += [_range(field.rule(column, False), settings), field.defaults[column]]
        lenient = _range(field.rule(columns[0], True), settings) if "lenient" in field.rules else "same"
        rows.append([*row, f"{field.effect} {field.note}".rstrip(), lenient])
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows) + "\n"


def _tensors(title: str, fields: Iterable[TensorField]) -> str:
    rows = [f"| {title} | datatype | shape | meaning |", "|---|---|---|---|"]
    rows += [f"| `{field.name}` | {field.datatype} | {list(field.shape)} | {field.effect} |" for field in fields]
    return "\n".join(rows) + "\n"


def _range(rule: Rule, settings: DialectSettings) -> str:
    """What a rule accepts, without the words that repeat its type."""
    return rule.accepts(settings).removeprefix("an integer in ").removeprefix("a number ")


def _errors(statuses: Statuses) -> str:
    rows = [
        "### Errors\n",
        '`{"error": string, "error_type": string}`:\n',
        "| what | status | error_type |",
        "|---|---|---|",
    ]
    rows += [
        f"| {_KINDS.get(kind, kind.replace('_', ' '))} | {status} | `{name}` |"
        for kind, (status, name) in statuses.items()
    ]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(page(), end="")
