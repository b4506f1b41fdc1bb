"""The one table of everything an operator can set.

Each field of `Options` is an option: its name is the key in a configuration file, with dashes the flag
(`--max-seq-len`), in capitals the environment variable (`INTERLINGUA_MAX_SEQ_LEN`). The parser, the reading
of variables and files, and docs/configuration.md are made from these rows, so none can drift from another.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from interlingua.cli.kinds import (
    Arguments,
    Choice,
    Hosts,
    Integer,
    Key,
    Kind,
    NamedFolders,
    Number,
    Size,
    Switch,
    Text,
    Texts,
)

ENV_PREFIX = "INTERLINGUA_"
CONFIG_ENV = ENV_PREFIX + "CONFIG"  # names the file itself, so it is no row of the table
DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_URL = "http://127.0.0.1:8080"

T = TypeVar("T")


class Group(Enum):
    """A heading of the help and of docs/configuration.md, with one sentence about it."""

    MODEL = ("Model", "What is loaded, from where, and what it is called on the routes.")
    ENGINE = ("Engine", "Which engine runs it and with what numerics.")
    MEMORY = ("Memory and batching", "How much the native engine takes on at once.")
    LIMITS = ("Limits", "What one request may ask for, by the names of the API documents in snake case.")
    MEDIA = ("Media", "Which images, videos and audio clips a prompt may name. See docs/dialects.md, Typed parts.")
    WIRE = ("Wire", "Where the dialects leave a choice.")
    SERVER = ("Server", "The socket and what is around it.")
    SAMPLING = ("Generation", "How `interlingua generate` chooses tokens.")
    WATCH = ("Watching", "How `interlingua top` looks at a server.")
    PROOF = ("Verification", "How much `interlingua verify` proves.")

    @property
    def title(self) -> str:
        return self.value[0]

    @property
    def sentence(self) -> str:
        return self.value[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A row of the table.

    `default_text` says what an absent value (None) means. `other_env` is a second variable, by the name that the API
    documents give it; ours wins.
    """

    name: str
    kind: Kind[object]
    default: object
    default_text: str
    help: str
    group: Group
    commands: tuple[str, ...]
    positional: bool
    secret: bool
    other_env: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def metavar(self) -> str:
        return self.name.upper() if self.positional else self.kind.metavar


_SERVE = ("serve",)
_RUN = ("serve", "generate")  # the commands that load a model to answer with
_LOAD = ("serve", "generate", "verify")  # those that load one at all
_CPU = ("serve", "generate", "info")
_HUB = ("serve", "generate", "pull", "verify", "detect-watermark")
_ALL = ("serve", "generate", "pull", "verify", "info", "detect-watermark")


def _option(
    kind: Kind[T],
    default: T,
    group: Group,
    help: str,
    *,
    absent: str = "",
    commands: tuple[str, ...] = _SERVE,
    positional: bool = False,
    secret: bool = False,
    other_env: str = "",
) -> T:
    """A field of `Options` that carries its row. `absent` says in words what the default None means."""
    row = {
        "kind": kind,
        "default_text": absent if default is None else kind.show(default),
        "help": help,
        "group": group,
        "commands": commands,
        "positional": positional,
        "secret": secret,
        "other_env": other_env,
    }
    return dataclasses.field(default=default, metadata={"row": row})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Every option with its value. Made by `settings.resolve`; the defaults are here."""

    model: str = _option(
        Text("MODEL"),
        DEFAULT_MODEL,
        Group.MODEL,
        "a known name (see `interlingua info`), a GGUF file, a folder of safetensors, or a Hugging Face id",
        commands=("serve", "verify"),
        positional=True,
    )
    served_model_name: str | None = _option(
        Text("NAME"),
        None,
        Group.MODEL,
        "the model's name on every route",
        absent="the name, or the last part of the path",
    )
    revision: str | None = _option(
        Text("REV"),
        None,
        Group.MODEL,
        "branch, tag or commit of a Hugging Face id",
        absent="main",
        commands=_HUB,
    )
    token: str | None = _option(
        Text("TOKEN"),
        None,
        Group.MODEL,
        "access token for gated Hugging Face models; as a variable it is not seen by others, as a flag it is",
        absent="HF_TOKEN, or none",
        commands=_HUB,
        secret=True,
    )
    cache: str | None = _option(
        Text("FOLDER"),
        None,
        Group.MODEL,
        "where fetched models are kept",
        absent="$XDG_CACHE_HOME/interlingua, or ~/.cache/interlingua",
        commands=_ALL,
    )

    lora_adapters: tuple[tuple[str, str], ...] = _option(
        NamedFolders(),
        (),
        Group.MODEL,
        "adapters (LoRA, in PEFT's format) that are loaded at start; requests choose one by its name",
        commands=("serve", "verify"),
    )
    max_lora_rank: int = _option(
        Integer(1, 4096),
        64,
        Group.MODEL,
        "the highest rank of an adapter; a higher one is refused",
        commands=("serve", "verify"),
    )

    engine: str = _option(
        Choice("native", "vllm", "auto", "echo"),
        "native",
        Group.ENGINE,
        "`native` runs the model on this CPU; `vllm` on what vLLM runs on; `auto` is `vllm` where it is installed and "
        "finds an accelerator, else `native`; `echo` loads the tokenizer alone and answers every prompt with the "
        "prompt's own tokens, for trying clients",
        commands=_RUN,
    )
    vllm_arg: tuple[str, ...] = _option(
        Arguments(),
        (),
        Group.ENGINE,
        "an option of vLLM itself, as in `tensor-parallel-size=4`; may be given several times; `true` and `false` "
        "switch flags",
        commands=_RUN,
    )
    threads: int = _option(
        Integer(0, 1024),
        0,
        Group.ENGINE,
        "threads for the kernels; 0 = every core of this process",
        commands=_CPU,
    )
    isa: str | None = _option(
        Choice("scalar", "avx2", "avxvnni", "avx512", "amx", "amx-emulated"),
        None,
        Group.ENGINE,
        "force a tier of kernels; refused at start if this CPU or this build lacks it; amx-emulated, the AMX tier over "
        "tiles emulated in software, is for tests and slow",
        absent="the best that the CPU has",
        commands=_CPU,
    )
    activations: str = _option(
        Choice("int8", "int16"),
        "int8",
        Group.ENGINE,
        "numerics of the products with 4-bit and 8-bit weights: one int8 term an input, or two (slower, of "
        "float32 quality)",
        commands=_LOAD,
    )
    kv_cache_dtype: str = _option(
        Choice("fp16", "int8"),
        "fp16",
        Group.ENGINE,
        "how keys and values are kept: int8 takes half the memory and half the reading, for a little quality",
        commands=_LOAD,
    )
    speculate: int = _option(
        Integer(0, 64),
        6,
        Group.ENGINE,
        "tokens guessed ahead of a running answer at most, by prompt lookup, and checked in one step; answers are the "
        "same with and without; 0 = none",
        commands=_RUN,
    )
    quantize: str = _option(
        Choice("auto", "none", "int8", "int4"),
        "auto",
        Group.ENGINE,
        "how weights are held: auto keeps a GGUF's Q4_0, Q4_1 and Q8_0 as they are and the rest in bf16; none holds "
        "all in bf16, int8 and int4 round all to groups of 32",
        commands=_LOAD,
    )

    kv_memory: int | None = _option(
        Size(),
        None,
        Group.MEMORY,
        "memory for the KV cache, taken in the first quiet moments and filled by finished prompts (`prefix_cache`); "
        "refused at start if so much is not free",
        absent="a quarter of the free memory, at most eight full contexts or 65,536 tokens, at least one context",
        commands=_CPU,
    )
    max_batch_tokens: int = _option(
        Integer(16, 1_048_576), 512, Group.MEMORY, "tokens computed in one step, prompts and answers together"
    )
    max_batch_size: int = _option(Integer(1, 4096), 256, Group.MEMORY, "requests that run at the same time")
    prefix_cache: bool = _option(
        Switch(),
        True,
        Group.MEMORY,
        "keep the KV of finished prompts and reuse it when a prompt begins the same",
    )

    max_seq_len: int | None = _option(
        Integer(2, 2**31 - 1),
        None,
        Group.LIMITS,
        "prompt and output tokens of one request together",
        absent="the model's context",
        commands=_LOAD,
    )
    max_input_token_len: int | None = _option(
        Integer(1, 2**31 - 1), None, Group.LIMITS, "prompt tokens of one request", absent="max_seq_len - 1"
    )
    truncation: str = _option(
        Choice("off", "head", "tail"),
        "off",
        Group.LIMITS,
        "a prompt of more tokens is refused (`off`) or cut: to its first ones (`head`) or its last (`tail`, where a "
        "BOS that the tokenizer adds stays)",
    )
    max_iter_times: int | None = _option(
        Integer(1, 2**31 - 1),
        None,
        Group.LIMITS,
        "output tokens of one request",
        absent="no limit of its own",
    )
    max_concurrent_requests: int = _option(
        Integer(1, 1_000_000),
        512,
        Group.LIMITS,
        "answers under way, running and waiting (a request for n of them counts n times); one more gets 429 at once",
    )
    max_stop_sequences: int = _option(Integer(0, 1024), 4, Group.LIMITS, "stop sequences on TGI's root route")
    max_best_of: int = _option(Integer(1, 128), 2, Group.LIMITS, "the highest `best_of`")
    max_top_n_tokens: int = _option(Integer(0, 1024), 5, Group.LIMITS, "the highest `top_n_tokens`")
    payload_limit: int = _option(Size(), 40 * 1024**2, Group.LIMITS, "bytes of a request's body; more gets 413")
    max_json_depth: int = _option(Integer(2, 1000), 64, Group.LIMITS, "how deep a body may be nested")
    timeout: float = _option(
        Number(0, 86_400),
        600.0,
        Group.LIMITS,
        "seconds after which a request that names no timeout ends with 504",
    )

    allowed_media_domains: tuple[str, ...] = _option(
        Hosts(),
        (),
        Group.MEDIA,
        "hosts that http and https URLs of media may name, compared exactly and without the port: no subdomains. A "
        "private address must be listed as such",
        other_env="ALLOWED_MEDIA_DOMAINS_ENV",
    )
    allow_public_media: bool = _option(
        Switch(), False, Group.MEDIA, "let such URLs name every public host; without it and without a list, none"
    )
    allowed_local_media_path: str = _option(
        Text("FOLDER"), "/data/multimodal_inputs", Group.MEDIA, "the folder below which paths of media must lie"
    )

    tgi_profile: str = _option(
        Choice("auto", "mindie", "hf"),
        "auto",
        Group.WIRE,
        "rules for TGI's parameters: `mindie` (those of /generate), `hf` (those of /) or `auto` (by route)",
    )
    lenient_ranges: bool = _option(
        Switch(),
        False,
        Group.WIRE,
        "take every value that the real servers take although the documents refuse it",
    )
    ignore_generation_config: bool = _option(
        Switch(), False, Group.WIRE, "take no sampling defaults from the model's generation_config.json and config.json"
    )
    watermark_gamma: float = _option(
        Number(0, below=1),
        0.5,
        Group.WIRE,
        "the share of the vocabulary that `watermark: true` favours at each token; who looks for the mark needs it",
        commands=("serve", "detect-watermark"),
    )
    watermark_delta: float = _option(
        Number(0, 100), 2.0, Group.WIRE, "what `watermark: true` adds to the logits of the favoured tokens"
    )

    vllm_stream: str = _option(
        Choice("lines", "nul", "sse"),
        "lines",
        Group.WIRE,
        "how a stream of vLLM's /generate sets its JSON objects apart: a newline each (vLLM), a NUL byte each (older "
        "vLLM), or server-sent events",
    )
    chat_template: str | None = _option(
        Text("FILE"),
        None,
        Group.WIRE,
        "a Jinja file that turns conversations into prompts",
        absent="the model's own",
    )
    allow_client_chat_template: bool = _option(
        Switch(),
        False,
        Group.WIRE,
        "let a request bring a chat template of its own, which runs in a sandbox with limits",
    )

    host: str = _option(Text("HOST"), "127.0.0.1", Group.SERVER, "the address to listen on; 0.0.0.0 = every one")
    port: int = _option(Integer(0, 65_535), 8080, Group.SERVER, "the port to listen on; 0 = any free one")
    management_host: str = _option(
        Text("HOST"), "127.0.0.1", Group.SERVER, "the address of the routes that run the server, if they have their own"
    )
    management_port: int | None = _option(
        Integer(0, 65_535),
        None,
        Group.SERVER,
        "put the routes that run the server (state, adapters, stop, metrics) on an address of their own, where "
        "clients cannot reach them",
        absent="they share the port of all others",
    )
    metrics_port: int | None = _option(
        Integer(0, 65_535),
        None,
        Group.SERVER,
        "put /metrics on a port of its own, at the management host",
        absent="it stands with the routes that run the server",
    )
    grpc_port: int | None = _option(
        Integer(0, 65_535),
        None,
        Group.SERVER,
        "speak the KServe v2 protocol over gRPC on this port; needs the extra `grpc`",
        absent="no gRPC",
    )
    admin_key: str | None = _option(
        Key(),
        None,
        Group.SERVER,
        "ask for this key, as for `api_key`, where a route changes the server's state; as a variable "
        "it is not seen by others, as a flag it is",
        absent="those routes work on a management address alone",
        secret=True,
    )
    admin_key_file: str | None = _option(
        Text("FILE"),
        None,
        Group.SERVER,
        "more such keys, one on each line; read again when the file changes and on SIGHUP",
        absent="none",
    )
    api_key: str | None = _option(
        Key(),
        None,
        Group.SERVER,
        "ask every generation request for `Authorization: Bearer KEY`; as a variable it is not seen by others, "
        "as a flag it is",
        absent="none asked for",
        secret=True,
    )
    api_key_file: str | None = _option(
        Text("FILE"),
        None,
        Group.SERVER,
        "more such keys, one on each line; read again when the file changes and on SIGHUP",
        absent="none",
    )
    tls_certificate: str | None = _option(
        Text("FILE"),
        None,
        Group.SERVER,
        "serve HTTPS with this certificate and its chain (PEM); read again when it changes and on SIGHUP",
        absent="plain HTTP",
    )
    tls_key: str | None = _option(Text("FILE"), None, Group.SERVER, "the certificate's key (PEM)", absent="none")
    tls_key_password_file: str | None = _option(
        Text("FILE"), None, Group.SERVER, "the password of an encrypted key", absent="none"
    )
    tls_client_ca: tuple[str, ...] = _option(
        Texts("FILE"),
        (),
        Group.SERVER,
        "serve only clients whose certificate one of these has signed (mutual TLS); may be given several times",
    )
    tls_crl: tuple[str, ...] = _option(
        Texts("FILE"), (), Group.SERVER, "revoked certificates of clients (PEM); may be given several times"
    )
    cors_allow_origin: tuple[str, ...] = _option(
        Texts("ORIGIN"),
        (),
        Group.SERVER,
        "let pages of this origin (https://example.org, or * for all) call from a browser; may be given several times",
    )
    max_header_bytes: int = _option(
        Size(), 64 * 1024, Group.SERVER, "bytes of a request's line and headers together; more gets 431"
    )
    max_headers: int = _option(Integer(1, 10_000), 100, Group.SERVER, "headers of a request; more get 431")
    header_timeout: float = _option(
        Number(0, 86_400), 10.0, Group.SERVER, "seconds for a request's headers to arrive, and for a handshake of TLS"
    )
    body_timeout: float = _option(
        Number(0, 86_400), 30.0, Group.SERVER, "seconds without a byte of a request's body arriving"
    )
    write_timeout: float = _option(
        Number(0, 86_400), 30.0, Group.SERVER, "seconds without the client taking a byte of its answer"
    )
    keep_alive_timeout: float = _option(
        Number(0, 86_400), 75.0, Group.SERVER, "seconds that a connection may idle between two requests"
    )
    stop_grace: float = _option(
        Number(0, 86_400), 90.0, Group.SERVER, "seconds for running requests to end after SIGINT or SIGTERM"
    )
    log_level: str = _option(
        Choice("debug", "info", "warning", "error"),
        "info",
        Group.SERVER,
        "the least serious message that is printed",
    )

    log_format: str = _option(
        Choice("text", "json"), "text", Group.SERVER, "lines for people, or one JSON object on each line"
    )
    log_requests: bool = _option(
        Switch(), False, Group.SERVER, "write a line for each request when it has ended, without its text"
    )
    log_prompts: bool = _option(
        Switch(), False, Group.SERVER, "write these lines with the first 1000 characters of the prompt"
    )
    otlp_endpoint: str | None = _option(
        Text("URL"),
        None,
        Group.SERVER,
        "send a trace of each request to this OpenTelemetry collector (OTLP over HTTP, http://HOST:4318); needs the "
        "extra `otel`",
        absent="no traces",
    )
    otlp_service_name: str = _option(Text("NAME"), "interlingua", Group.SERVER, "the name under which traces are sent")

    max_new_tokens: int = _option(
        Integer(1, 2**31 - 1), 256, Group.SAMPLING, "stop after this many tokens", commands=("generate",)
    )
    temperature: float | None = _option(
        Number(0, closed=True),
        None,
        Group.SAMPLING,
        "divide the logits by this; 0 = greedy, whatever else is said of sampling",
        absent="greedy, unless another option of sampling is given",
        commands=("generate",),
    )
    top_k: int | None = _option(
        Integer(1, 2**31 - 1),
        None,
        Group.SAMPLING,
        "keep the k best tokens",
        absent="all",
        commands=("generate",),
    )
    top_p: float | None = _option(
        Number(0, 1),
        None,
        Group.SAMPLING,
        "keep the best tokens that together reach this probability",
        absent="all",
        commands=("generate",),
    )
    typical_p: float | None = _option(
        Number(0, 1),
        None,
        Group.SAMPLING,
        "keep the most typical tokens that together reach this probability",
        absent="all",
        commands=("generate",),
    )
    seed: int | None = _option(
        Integer(0, 2**64 - 1),
        None,
        Group.SAMPLING,
        "the same seed gives the same answer; this and the four options above it switch sampling on",
        absent="drawn",
        commands=("generate",),
    )
    repetition_penalty: float | None = _option(
        Number(0),
        None,
        Group.SAMPLING,
        "weaken tokens that were there before (above 1) or strengthen them (below 1)",
        absent="none",
        commands=("generate",),
    )
    stop: tuple[str, ...] = _option(
        Texts(),
        (),
        Group.SAMPLING,
        "end before this text; may be given several times",
        commands=("generate",),
    )

    interval: float = _option(
        Number(0, 3600), 1.0, Group.WATCH, "seconds between two looks, of which rates are made", commands=("top",)
    )
    once: bool = _option(Switch(), False, Group.WATCH, "look twice, draw once and end", commands=("top",))

    requests: int = _option(
        Integer(1, 1_000_000),
        200,
        Group.PROOF,
        "requests that are answered again in every surrounding; fewer prove less, sooner",
        commands=("verify",),
    )


def _row(field: dataclasses.Field[Any]) -> Option:
    return Option(name=field.name, default=field.default, **field.metadata["row"])


OPTIONS: tuple[Option, ...] = tuple(_row(field) for field in dataclasses.fields(Options))
BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}
