"""Options become the other rooms' own values: settings, limits, files, engine, served model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from interlingua.cli.options import BY_NAME, Options
from interlingua.cli.progress import WeightsBar
from interlingua.contract.engine import Engine
from interlingua.contract.errors import ModelError
from interlingua.contract.request import Watermark
from interlingua.engine.threads import in_thread
from interlingua.media.sources import MediaSources
from interlingua.service.prepare import Limits, ModelDefaults
from interlingua.service.service import ServedModel
from interlingua.text.chat_template import ChatTemplate, special_tokens
from interlingua.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # `generate` needs no server
    from interlingua.contract.dialect import DialectSettings
    from interlingua.hub import ModelFiles
    from interlingua.server.settings import ServerSettings

# Options that one engine alone has a use for. Given to the other, they would be ignored in silence.
_ENGINES_OWN = {
    "native": ("threads", "isa", "activations", "kv_cache_dtype", "speculate", "quantize"),
    "vllm": ("vllm_arg",),
}
_DEFAULT_BATCH_TOKENS = BY_NAME["max_batch_tokens"].default


def server_settings(options: Options) -> ServerSettings:
    from interlingua.server.settings import ServerSettings

    return ServerSettings(
        host=options.host,
        port=options.port,
        management_host=options.management_host,
        management_port=options.management_port,
        metrics_port=options.metrics_port,
        grpc_port=options.grpc_port,
        admin_key=options.admin_key,
        admin_key_file=options.admin_key_file,
        api_key=options.api_key,
        api_key_file=options.api_key_file,
        tls_certificate=options.tls_certificate,
        tls_key=options.tls_key,
        tls_key_password_file=options.tls_key_password_file,
        tls_client_ca=options.tls_client_ca,
        tls_crl=options.tls_crl,
        cors_allow_origin=options.cors_allow_origin,
        payload_limit=options.payload_limit,
        max_header_bytes=options.max_header_bytes,
        max_headers=options.max_headers,
        header_timeout=options.header_timeout,
        body_timeout=options.body_timeout,
        write_timeout=options.write_timeout,
        keep_alive_timeout=options.keep_alive_timeout,
        stop_grace=options.stop_grace,
    )


def wire_settings(options: Options) -> DialectSettings:
    """What the dialects are told; the server adds the loaded model's name and vocabulary."""
    from interlingua.contract.dialect import DialectSettings

    return DialectSettings(
        model_name="",
        vocab_size=0,
        tgi_profile=cast(Literal["auto", "mindie", "hf"], options.tgi_profile),
        lenient_ranges=options.lenient_ranges,
        max_stop_sequences=options.max_stop_sequences,
        max_best_of=options.max_best_of,
        max_top_n_tokens=options.max_top_n_tokens,
        max_json_depth=options.max_json_depth,
        vllm_stream=cast(Literal["lines", "nul", "sse"], options.vllm_stream),
    )


def limits(options: Options) -> Limits:
    from interlingua.dialects._rules import LENIENT_PROMPT_CHARS, MAX_PROMPT_CHARS

    return Limits(
        max_input_token_len=options.max_input_token_len,
        truncation=cast(Literal["off", "head", "tail"], options.truncation),
        max_seq_len=options.max_seq_len,
        max_iter_times=options.max_iter_times,
        max_concurrent_requests=options.max_concurrent_requests,
        max_prompt_chars=LENIENT_PROMPT_CHARS if options.lenient_ranges else MAX_PROMPT_CHARS,
        timeout=options.timeout,
    )


def media(options: Options) -> MediaSources:
    return MediaSources(
        hosts=frozenset(options.allowed_media_domains),
        public=options.allow_public_media,
        folder=options.allowed_local_media_path,
    )


def find(options: Options) -> ModelFiles:
    """The model's files, fetched if need be, with progress on standard error. Raises ModelError."""
    from interlingua.hub import resolve

    return resolve(options.model, revision=options.revision, token=options.token, cache_dir=options.cache)


async def load(options: Options) -> ServedModel:
    """The model, its engine started. Blocks the event loop nowhere. Raises ModelError."""
    _check_engines_own(options)
    with WeightsBar() as bar:

        def read() -> tuple[ModelFiles, Tokenizer, Engine]:
            files = find(options)
            chosen = _chosen_engine(options)
            if chosen.engine == "native":
                from interlingua.engine.native.load import find_family

                find_family(files)  # the plainest reason first: what cannot run needs no tokenizer
            tokenizer = Tokenizer.load(files)
            return files, tokenizer, _engine(chosen, files, tokenizer, bar)

        files, tokenizer, engine = await in_thread("load", read)
        await engine.start()
    name = options.served_model_name or files.name
    try:
        for adapter, folder in options.lora_adapters:
            if adapter == name:
                raise ModelError(f"lora_adapters: an adapter cannot have the served model's name {name!r}")
            await engine.load_adapter(adapter, folder)
    except ModelError:
        await engine.stop()
        raise
    defaults = ModelDefaults() if options.ignore_generation_config else None
    return ServedModel(
        name=name,
        engine=engine,
        tokenizer=tokenizer,
        defaults=defaults or ModelDefaults.from_files(files.generation_config, files.config),
        source=str(files.paths[0]),
        chat=chat_template(options, files, tokenizer),
        watermark=Watermark(options.watermark_gamma, options.watermark_delta),
    )


def _check_engines_own(options: Options) -> None:
    """Raises ModelError for an option of the engine that was not chosen. With `auto` either's may be given."""
    other = {"native": "vllm", "vllm": "native"}.get(options.engine, "")
    for name in _ENGINES_OWN.get(other, ()):
        if getattr(options, name) != BY_NAME[name].default:
            hint = "; `vllm_arg` passes vLLM's own options on" if other == "native" else ""
            raise ModelError(f"{name}: is an option of engine {other}, and engine {options.engine} was chosen{hint}")


def _chosen_engine(options: Options) -> Options:
    """The options with `auto` decided."""
    if options.engine != "auto":
        return options
    from interlingua.engine.vllm import accelerated

    return replace(options, engine="vllm" if accelerated() else "native")


def chat_template(options: Options, files: ModelFiles, tokenizer: Tokenizer) -> ChatTemplate:
    """The operator's own template, else the model's. Raises ModelError if the file cannot be read."""
    source = tokenizer.chat_template
    if options.chat_template is not None:
        try:
            source = Path(options.chat_template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "not UTF-8 text"
            raise ModelError(f"{options.chat_template}: cannot be read ({reason})") from None
    tokens = special_tokens(files.tokenizer_config, tokenizer.bos_text, tokenizer.eos_text)
    return ChatTemplate(source, tokens, allow_client=options.allow_client_chat_template)


def _engine(options: Options, files: ModelFiles, tokenizer: Tokenizer, bar: WeightsBar) -> Engine:
    if options.engine == "echo":
        from interlingua.engine.echo import EchoEngine

        return EchoEngine(
            vocab_size=tokenizer.vocab_size,
            max_context=_context(files),
            eos_id=tokenizer.eos_id,
            max_running=options.max_batch_size,
            max_lora_rank=options.max_lora_rank,
        )
    if options.engine == "vllm":
        return _vllm(options, files, tokenizer)
    from interlingua.engine.native.engine import NativeEngine, NativeOptions

    return NativeEngine(
        files,
        NativeOptions(
            threads=options.threads,
            activations=cast(Literal["int8", "int16"], options.activations),
            kv_cache_dtype=cast(Literal["fp16", "int8"], options.kv_cache_dtype),
            quantize=cast(Literal["auto", "none", "int8", "int4"], options.quantize),
            kv_memory=options.kv_memory,
            max_batch_tokens=options.max_batch_tokens,
            max_batch_size=options.max_batch_size,
            prefix_cache=options.prefix_cache,
            speculate=options.speculate,
            max_seq_len=options.max_seq_len,
            max_lora_rank=options.max_lora_rank,
            isa=options.isa,
        ),
        bar.show,
        tokenizer,
    )


def _vllm(options: Options, files: ModelFiles, tokenizer: Tokenizer) -> Engine:
    from interlingua.engine.vllm import VllmEngine, VllmOptions

    if files.kind != "safetensors":
        raise ModelError(
            f"engine vllm: {files.name} is a GGUF file, and vLLM is given safetensors; "
            "`scripts/demo-safetensors FOLDER MODEL` writes one as such"
        )
    arguments = dict(item.split("=", 1) for item in options.vllm_arg)
    loras = arguments.pop("max-loras", "4" if options.lora_adapters else "0")
    if not loras.isdigit():
        raise ModelError(f"vllm_arg: max-loras must be an integer, got {loras!r}")
    return VllmEngine(
        str(files.paths[0].parent),
        VllmOptions(
            arguments=tuple(arguments.items()),
            max_seq_len=options.max_seq_len,
            kv_memory=options.kv_memory,
            max_batch_size=options.max_batch_size,
            # Our default suits a CPU.
            max_batch_tokens=None if options.max_batch_tokens == _DEFAULT_BATCH_TOKENS else options.max_batch_tokens,
            prefix_cache=options.prefix_cache,
            max_lora_rank=options.max_lora_rank,
            max_loras=int(loras),
        ),
        tokenizer,
    )


def _context(files: ModelFiles) -> int:
    """The model's context for an engine that reads no weights; 8192 where the files name none."""
    architecture = files.config.get("general.architecture")
    value = files.config.get(f"{architecture}.context_length", files.config.get("max_position_embeddings"))
    return value if isinstance(value, int) and value > 1 else 8192
