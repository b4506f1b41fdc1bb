"""vLLM as an engine: GPUs, NPUs, several devices and several machines behind the same contract.

Ids go in and ids come out: tokenizing, UTF-8, stop strings and cuts stay in our own text path, so that an answer does
not differ by engine. What vLLM cannot do itself, or not in our order, is done by `vllm_processors` in its workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from interlingua.contract.engine import EngineInfo, EngineStats
from interlingua.contract.errors import (
    GenerationError,
    ModelError,
    RequestError,
    UnavailableError,
    ValidationError,
)
from interlingua.contract.events import (
    EngineEvent,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    StartedEvent,
    TokenEvent,
)
from interlingua.contract.request import Adapter, PreparedRequest, SamplingParams
from interlingua.engine.native.guide import Guide, Guides, Vocabulary
from interlingua.engine.peft import read_config

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_log = logging.getLogger(__name__)

PROCESSOR = "interlingua.engine.vllm_processors:Processor"
EXTRA = "interlingua"  # key of vLLM's extra_args under which a request's parameters travel to the workers

Pairs = tuple[tuple[str, str], ...]
Place = Literal["vLLM", "our processor", "our service"]

# Who does what, for docs/engines.md. A test holds it to the fields of `SamplingParams`.
CAPABILITIES: Mapping[str, Place] = {
    "temperature": "vLLM",
    "top_k": "vLLM",
    "top_p": "vLLM",
    "min_p": "vLLM",
    "repetition_penalty": "vLLM",
    "presence_penalty": "vLLM",
    "frequency_penalty (of the output)": "vLLM",
    "logit_bias": "vLLM",
    "min_new_tokens": "vLLM",
    "seed": "vLLM",
    "logprobs, top_n_tokens": "vLLM",
    "prompt logprobs": "vLLM",
    "priority": "vLLM",
    "adapters": "vLLM",
    "prefix cache": "vLLM",
    "typical_p": "our processor",
    "watermark": "our processor",
    "frequency_penalty (TGI's, of prompt and output)": "our processor",
    "grammar": "our processor",
    "min_p beside top_k or top_p": "our processor",
    "logit_bias beside a repetition penalty": "our processor",
    "n, best_of": "our service",
    "stop strings": "our service",
    "timeout": "our service",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """What an operator can set. `arguments` are vLLM's own options by name, without dashes in front."""

    arguments: Pairs = ()
    max_seq_len: int | None = None
    kv_memory: int | None = None  # bytes on each device; None = vLLM's own share of its memory
    max_batch_size: int = 256
    max_batch_tokens: int | None = None  # None = vLLM's own choice
    prefix_cache: bool = True
    max_lora_rank: int = 64
    max_loras: int = 0  # adapters in one batch; 0 = none can be loaded


def available() -> bool:
    """Whether vLLM is installed. Imports nothing."""
    return importlib.util.find_spec("vllm") is not None


def accelerated() -> bool:
    """Whether vLLM is installed and finds an accelerator that it can run on. Imports vLLM."""
    if not available():
        return False
    from vllm.platforms import current_platform

    return not (current_platform.is_cpu() or current_platform.is_unspecified())


class _Gauges:
    """What vLLM's scheduler said last. Written by its stat logger, on the event loop."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.usage = 0.0  # share of KV blocks in use
        self.hits = 0
        self.preemptions = 0
        self.steps = 0
        self.at = 0.0


class VllmEngine:
    """Engine of the contract over vLLM's asynchronous engine, whose core runs in processes of its own.

    Args:
        model: a folder or a hub id, as vLLM takes it.
        vocabulary: of the model's tokenizer, for grammars.

    All methods run on the event loop.
    """

    def __init__(self, model: str, options: VllmOptions, vocabulary: Vocabulary) -> None:
        if not available():
            raise ModelError("engine vllm: vLLM is not installed; install interlingua[vllm], or choose --engine native")
        self._model = model
        self._options = options
        self._vocabulary = vocabulary
        self._guides: Guides | None = None
        self._llm: AsyncLLM | None = None
        self._info: EngineInfo | None = None
        self._adapters: dict[str, Adapter] = {}
        self._loads = 0
        self._gauges = _Gauges()
        self._blocks = 0
        self._block_tokens = 1
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._stopping = False
        self._failure: BaseException | None = None

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "info is known after start"
        return self._info

    @property
    def failure(self) -> BaseException | None:
        llm = self._llm
        if self._failure is None and llm is not None and llm.errored and not self._stopping:
            self._failure = llm.dead_error
        return self._failure

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        return MappingProxyType(self._adapters)

    async def start(self) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        from vllm.platforms import current_platform

        if current_platform.is_cuda() and current_platform.has_device_capability(90):
            os.environ.setdefault("VLLM_BATCH_INVARIANT", "1")
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = self._arguments()
        try:
            # In a thread: it takes seconds to minutes, and health is asked meanwhile.
            config = await asyncio.to_thread(arguments.create_engine_config)
            self._llm = AsyncLLM.from_vllm_config(config, stat_loggers=[self._logger()])
        except ModelError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ModelError(f"engine vllm: {reason[:500]}") from error
        config = self._llm.vllm_config
        model = config.model_config
        self._blocks = int(config.cache_config.num_gpu_blocks or 0)
        self._block_tokens = int(config.cache_config.block_size or 1)
        parallel = config.parallel_config
        devices = parallel.tensor_parallel_size * parallel.pipeline_parallel_size * parallel.data_parallel_size
        device = str(config.device_config.device_type)
        self._info = EngineInfo(
            name="vllm",
            vocab_size=int(model.get_vocab_size()),
            max_context=int(model.max_model_len),
            dtype=str(model.dtype).removeprefix("torch."),
            device=device,
            unsupported=frozenset() if self._can_guide(int(model.get_vocab_size())) else frozenset({"grammar"}),
            description=f"vLLM on {devices} × {device}, {str(model.dtype).removeprefix('torch.')}",
        )

    def _can_guide(self, vocab_size: int) -> bool:
        if not Guides.fits(self._vocabulary, vocab_size):
            return False
        self._guides = Guides(self._vocabulary, vocab_size, lambda: None)
        return True

    async def stop(self) -> None:
        _ = self.failure  # what vLLM died of is known no more once it is shut down
        self._stopping = True
        if self._guides is not None:
            self._guides.close()
        if self._llm is not None:
            llm, self._llm = self._llm, None
            await asyncio.to_thread(llm.shutdown)

    async def load_adapter(self, name: str, path: str) -> Adapter:
        from vllm.lora.request import LoRARequest

        if not self._options.max_loras or self._llm is None:
            raise ModelError("adapters: engine vllm takes them when it was started with --vllm-arg max-loras=N")
        config = read_config(Path(path), self._options.max_lora_rank)
        self._loads += 1
        version = self._loads
        try:
            await self._llm.add_lora(LoRARequest(name, version, path))
        except Exception as error:
            raise ModelError(f"adapter {name}: vLLM cannot load it ({type(error).__name__})") from error
        adapter = Adapter(name=name, version=version, path=path, rank=config.highest_rank)
        self._adapters[name] = adapter
        return adapter

    async def unload_adapter(self, name: str) -> None:
        adapter = self._adapters.pop(name)
        if self._llm is not None:
            await self._llm.remove_lora(adapter.version)

    def stats(self) -> EngineStats:
        gauges = self._gauges
        return EngineStats(
            running=gauges.running,
            waiting=gauges.waiting,
            kv_blocks_total=self._blocks,
            kv_blocks_used=round(gauges.usage * self._blocks),
            kv_block_tokens=self._block_tokens,
            preemptions_total=gauges.preemptions,
            prefix_hit_tokens_total=gauges.hits,
            prompt_tokens_total=self._prompt_tokens,
            generated_tokens_total=self._generated_tokens,
            steps_total=gauges.steps,
            last_progress=gauges.at,
        )

    async def generate(self, request: PreparedRequest) -> AsyncGenerator[EngineEvent, None]:
        llm = self._llm
        if llm is None or self._stopping:
            yield FailedEvent(UnavailableError("the engine does not take requests any more"))
            return
        guide: Guide | None = None
        try:
            lora = self._lora(request)
            if request.grammar is not None:
                assert self._guides is not None, "the service refuses grammars where they are unsupported"
                guide = await self._guides.make(request.grammar)
        except RequestError as error:
            yield FailedEvent(error)
            return
        self._prompt_tokens += len(request.prompt_ids)
        story = _Story(request, guide)
        outputs = llm.generate(
            {"prompt_token_ids": list(request.prompt_ids)},
            self._sampling(request),
            request.request_id,
            lora_request=lora,
            priority=request.priority,
        )
        try:
            async for output in outputs:
                events = story.tell(output)
                for event in events:
                    if isinstance(event, TokenEvent):
                        self._generated_tokens += 1
                    yield event
                if story.ended:
                    return
            yield FailedEvent(GenerationError("vLLM ended the request without a last token"))
        except Exception as error:
            if self._stopping:
                yield FailedEvent(UnavailableError("the server is stopping"))
            else:
                _log.exception("request %s failed in vLLM", request.request_id)
                died = llm.errored
                what = "the engine has failed" if died else f"vLLM refused the request ({type(error).__name__})"
                yield FailedEvent(GenerationError(what))
        finally:
            # Closing an unfinished generator aborts the request in vLLM.
            with contextlib.suppress(Exception):
                await outputs.aclose()

    # --- to vLLM's words ---

    def _arguments(self) -> Any:
        """vLLM's own engine arguments: ours first, then what the operator passed through. Raises ModelError."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        class Parser(FlexibleArgumentParser):  # type: ignore[misc]
            def error(self, message: str) -> Any:
                raise ModelError(f"vllm_arg: {message}")

        options = self._options
        words = ["--model", self._model, "--max-num-seqs", str(options.max_batch_size), "--skip-tokenizer-init"]
        words += ["--logits-processors", PROCESSOR, "--scheduling-policy", "priority", "--max-logprobs", "1024"]
        words += ["--enable-prefix-caching" if options.prefix_cache else "--no-enable-prefix-caching"]
        if options.max_seq_len is not None:
            words += ["--max-model-len", str(options.max_seq_len)]
        if options.kv_memory is not None:
            words += ["--kv-cache-memory-bytes", str(options.kv_memory)]
        if options.max_batch_tokens is not None:
            words += ["--max-num-batched-tokens", str(options.max_batch_tokens)]
        if options.max_loras:
            words += ["--enable-lora", "--max-loras", str(options.max_loras)]
            words += ["--max-lora-rank", str(options.max_lora_rank)]
        for name, value in options.arguments:
            if value.lower() in ("", "true"):
                words.append(f"--{name}")
            elif value.lower() == "false":
                words.append(f"--no-{name}")
            else:
                words += [f"--{name}", value]
        parser = AsyncEngineArgs.add_cli_args(Parser())
        return AsyncEngineArgs.from_cli_args(parser.parse_args(words))

    def _sampling(self, request: PreparedRequest) -> Any:
        """vLLM's sampling parameters; what its own order cannot express travels to our processor instead."""
        from vllm import SamplingParams as VllmSampling
        from vllm.sampling_params import RequestOutputKind

        sampling = request.sampling
        common: dict[str, Any] = {
            "max_tokens": request.max_new_tokens,
            "stop_token_ids": sorted(request.stop_token_ids),
            "ignore_eos": True,  # the model's end tokens are among the ids above, unless the client ignores them
            "logprobs": request.top_n_tokens,
            "prompt_logprobs": 0 if request.prompt_logprobs else None,
            "detokenize": False,
            "output_kind": RequestOutputKind.DELTA,
            "seed": _signed(sampling.seed) if sampling.do_sample else None,
        }
        if needs_processor(request):
            neutral = 1.0 if sampling.do_sample else 0.0
            return VllmSampling(temperature=neutral, extra_args={EXTRA: parameters(request)}, **common)
        return VllmSampling(
            temperature=sampling.temperature if sampling.do_sample else 0.0,
            top_k=sampling.top_k if sampling.do_sample else 0,
            top_p=sampling.top_p if sampling.do_sample else 1.0,
            min_p=sampling.min_p if sampling.do_sample else 0.0,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            logit_bias=dict(sampling.logit_bias) or None,
            min_tokens=request.min_new_tokens,
            **common,
        )

    def _lora(self, request: PreparedRequest) -> Any:
        if request.adapter is None:
            return None
        from vllm.lora.request import LoRARequest

        adapter = request.adapter
        if self._adapters.get(adapter.name) != adapter:
            raise ValidationError("adapter_id", f"names an adapter that is no longer loaded: {adapter.name!r}")
        return LoRARequest(adapter.name, adapter.version, adapter.path)

    def _logger(self) -> Any:
        """A factory of vLLM's stat loggers that writes our gauges."""
        from vllm.v1.metrics.loggers import StatLoggerBase

        gauges = self._gauges

        class Logger(StatLoggerBase):  # type: ignore[misc]
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                pass

            def record(
                self,
                scheduler_stats: Any,
                iteration_stats: Any,
                mm_cache_stats: Any = None,
                engine_idx: int = 0,
            ) -> None:
                gauges.steps += 1
                gauges.at = time.monotonic()
                if scheduler_stats is not None:
                    gauges.running = scheduler_stats.num_running_reqs
                    gauges.waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
                    gauges.usage = scheduler_stats.kv_cache_usage
                    gauges.hits += scheduler_stats.prefix_cache_stats.hits
                if iteration_stats is not None:
                    gauges.preemptions += iteration_stats.num_preempted_reqs

            def log_engine_initialized(self) -> None:
                pass

        return Logger


class _Story:
    """Tells vLLM's outputs of one request as engine events."""

    def __init__(self, request: PreparedRequest, guide: Guide | None) -> None:
        self.ended = False
        self._guide = guide  # the workers' twin: they cannot say that a grammar has failed
        self._request = request
        self._made = 0
        self._announced = False

    def tell(self, output: Any) -> Sequence[EngineEvent]:
        now = time.monotonic()
        events: list[EngineEvent] = []
        completion = output.outputs[0]
        if not self._announced and completion.token_ids:
            self._announced = True
            events.append(self._started(output, now))
        for index, token in enumerate(completion.token_ids):
            self._made += 1
            if self._guide is not None and not self._guide.takes(token):
                self.ended = True
                events.append(FailedEvent(GenerationError("its grammar cannot be followed")))
                return events
            row = completion.logprobs[index]
            reason: FinishReason | None = None
            if self._made >= self._request.max_new_tokens:
                reason = FinishReason.LENGTH
            elif token in self._request.stop_token_ids:
                reason = FinishReason.EOS
            events.append(TokenEvent(token, row[token].logprob, now, self._top(row), reason))
            if reason is not None:
                self.ended = True
                events.append(FinishedEvent(reason, self._made))
                return events
        if output.finished:
            self.ended = True
            events.append(FailedEvent(GenerationError(f"vLLM ended the request: {completion.finish_reason}")))
        return events

    def _started(self, output: Any, now: float) -> StartedEvent:
        scores: tuple[float | None, ...] | None = None
        if self._request.prompt_logprobs:
            rows = output.prompt_logprobs or []
            scores = tuple(
                None if row is None else row[token].logprob
                for token, row in zip(self._request.prompt_ids, rows, strict=True)
            )
        # A moment of the engine's process, on the same clock: CLOCK_MONOTONIC is one for a machine.
        started = getattr(output.metrics, "scheduled_ts", 0.0) or now
        return StartedEvent(started, output.num_cached_tokens or 0, scores)

    def _top(self, row: Mapping[int, Any]) -> tuple[tuple[int, float], ...]:
        count = self._request.top_n_tokens
        if not count:
            return ()
        ranked = sorted((-entry.logprob, token) for token, entry in row.items() if entry.rank <= count)
        return tuple((token, -score) for score, token in ranked)


def needs_processor(request: PreparedRequest) -> bool:
    """Whether a request asks for what vLLM lacks, or does in an order of its own."""
    sampling = request.sampling
    filters = sampling.do_sample and (sampling.top_k > 0 or sampling.top_p < 1)
    return (
        request.grammar is not None
        or sampling.watermark is not None
        or (sampling.do_sample and sampling.typical_p < 1)
        or (sampling.frequency_penalty != 0 and sampling.frequency_over == "all")
        or (filters and sampling.min_p > 0)
        or (bool(sampling.logit_bias) and sampling.repetition_penalty != 1)
        or not -2 <= sampling.frequency_penalty <= 2  # vLLM's own range
        or not -2 <= sampling.presence_penalty <= 2
    )


def parameters(request: PreparedRequest) -> dict[str, Any]:
    """What the processor must know of a request, as plain values that travel between processes."""
    sampling: SamplingParams = request.sampling
    mark, grammar = sampling.watermark, request.grammar
    return {
        "do_sample": sampling.do_sample,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "typical_p": sampling.typical_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_over_output": sampling.frequency_over == "output",
        "logit_bias": [[token, bias] for token, bias in sampling.logit_bias],
        "watermark": None if mark is None else [mark.gamma, mark.delta],
        "grammar": None if grammar is None else [grammar.kind, grammar.value],
        "stop_token_ids": sorted(request.stop_token_ids),
        "min_new_tokens": request.min_new_tokens,
    }


def _signed(seed: int) -> int:
    """A 64-bit seed as the signed number of the same bits, which is what travels to vLLM's workers."""
    return seed - 2**64 if seed >= 2**63 else seed
