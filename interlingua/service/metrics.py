"""What the server counts about itself, under the names that dashboards of TGI and of vLLM know.

Counting is plain integers and lists, because `prometheus_client`'s own objects cost tens of microseconds a
request; its registry reads them when somebody asks. Gauges are never counted up and down: they are read from
the engine at that moment, so they cannot leak.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from interlingua.contract.engine import EngineStats
from interlingua.contract.events import FinishReason, Summary, Timing
from interlingua.contract.request import GenerationRequest, PreparedRequest

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SUCCESS = "success"
DROPPED = "dropped"  # the client left before its answer was complete
STOPPED = "stopped"  # by its id, before its first token
_DURATIONS = tuple(0.0001 * 1.5**k for k in range(1, 36))  # seconds; TGI's own buckets
_COUNTS = tuple(float(2**k) for k in range(21))  # tokens
# vLLM's own buckets, in seconds; the first ones of gaps are ours, since a small model needs 3 ms for a token.
_LATENCIES = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5),
    *(10, 20, 40, 80, 160, 640, 2560),
)
_GAPS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1),
    *(2.5, 5, 7.5, 10, 20, 40, 80),
)
_ERR = {"incomplete_generation": "incomplete", "cancelled": DROPPED}  # kinds whose TGI name differs
_FINISHED = {FinishReason.EOS: "stop", FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}  # vLLM's words
_ABORTED = (DROPPED, STOPPED, "timeout")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended. There is one for each request that reached the service.

    `prepared` is None and times are 0.0 as far as it did not come; `timing.finished` is always set.
    """

    request: GenerationRequest
    kind: str  # SUCCESS, DROPPED, STOPPED or the kind of the error
    timing: Timing
    prepared: PreparedRequest | None
    summary: Summary | None


class Histogram:
    """Observations in fixed buckets."""

    __slots__ = ("bounds", "counts", "doc", "name", "total")

    def __init__(self, name: str, doc: str, bounds: tuple[float, ...]) -> None:
        self.name = name
        self.doc = doc
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it), the last bound infinite."""
        rows = []
        running = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            rows.append(("+Inf" if bound == float("inf") else repr(bound), float(running)))
        return rows


class Recent:
    """The last 1,000 answers: how long the first token took, and how long each one after it."""

    def __init__(self) -> None:
        self._answers: deque[tuple[float, float, int]] = deque(maxlen=1000)

    def add(self, first: float, others: float, tokens: int) -> None:
        """`first`, `others`: seconds to the first token, and from it to the last of `tokens`."""
        self._answers.append((first, others, tokens - 1))

    @property
    def first_token_ms(self) -> float:
        """Mean; 0.0 before the first answer."""
        return 1000 * sum(first for first, _, _ in self._answers) / max(1, len(self._answers))

    @property
    def between_tokens_ms(self) -> float:
        """Mean over all tokens but the first ones; 0.0 before there are any."""
        gaps = sum(count for _, _, count in self._answers)
        return 1000 * sum(others for _, others, _ in self._answers) / max(1, gaps)


class Metrics:
    """The counters of one service. Mutated by the service and the server on the event loop only.

    `inside`, `stats` and `model_name` are set by the service: permits taken, one for each answer, the engine's numbers
    (None while no model is loaded), and the label of vLLM's metrics.
    """

    def __init__(self) -> None:
        self.inside: Callable[[], int] = lambda: 0
        self.stats: Callable[[], EngineStats | None] = lambda: None
        self.model_name: Callable[[], str] = lambda: ""
        self.requests = 0
        self.successes = 0
        self.failures: dict[str, int] = {}  # by `err`, which is mostly the kind of error
        self.finished = dict.fromkeys(("stop", "length", "abort", "error"), 0)  # by vLLM's `finished_reason`
        self.duration = Histogram("tgi_request_duration", "seconds from arrival to end", _DURATIONS)
        self.validation = Histogram(
            "tgi_request_validation_duration", "seconds from arrival to the engine's queue", _DURATIONS
        )
        self.queue = Histogram("tgi_request_queue_duration", "seconds in the engine's queue", _DURATIONS)
        self.inference = Histogram(
            "tgi_request_inference_duration", "seconds from the first batch to the end", _DURATIONS
        )
        self.per_token = Histogram(
            "tgi_request_mean_time_per_token_duration", "seconds of inference per token", _DURATIONS
        )
        self.input_length = Histogram("tgi_request_input_length", "prompt tokens", _COUNTS)
        self.generated = Histogram("tgi_request_generated_tokens", "output tokens", _COUNTS)
        self.recent = Recent()
        self.allowed = Histogram("tgi_request_max_new_tokens", "output tokens allowed", _COUNTS)
        self.first_token = Histogram(
            "vllm:time_to_first_token_seconds", "seconds from arrival to the first token", _FIRST
        )
        self.gaps = Histogram("vllm:inter_token_latency_seconds", "seconds between two tokens", _GAPS)
        self.latency = Histogram("vllm:e2e_request_latency_seconds", "seconds from arrival to end", _LATENCIES)
        self.waiting = Histogram("vllm:request_queue_time_seconds", "seconds in the engine's queue", _LATENCIES)
        self.prefill = Histogram(
            "vllm:request_prefill_time_seconds", "seconds from the first batch to the first token", _LATENCIES
        )
        self.decode = Histogram(
            "vllm:request_decode_time_seconds", "seconds from the first token to the end", _LATENCIES
        )
        self._answers = Histogram("vllm:request_params_n", "answers asked for", _COUNTS[:8])
        # The same observations under a second name, which the other one's boards know.
        self._histograms: dict[Histogram, tuple[str, ...]] = {
            self.duration: (),
            self.validation: (),
            self.queue: (),
            self.inference: (),
            self.per_token: (),
            self.input_length: ("vllm:request_prompt_tokens",),
            self.generated: ("vllm:request_generation_tokens",),
            self.allowed: ("vllm:request_params_max_tokens", "vllm:request_max_num_generation_tokens"),
            self.first_token: (),
            self.gaps: ("vllm:time_per_output_token_seconds",),
            self.latency: (),
            self.waiting: (),
            self.prefill: (),
            self.decode: (),
            self._answers: (),
        }

    def failed(self, kind: str) -> None:
        """A request ended without its answer; `kind` is that of the error, or one of the words above."""
        name = _ERR.get(kind, kind)
        self.failures[name] = self.failures.get(name, 0) + 1

    def refused(self, kind: str) -> None:
        """A request that never reached the service, such as one whose body could not be decoded."""
        self.requests += 1
        self.failed(kind)

    def ended(self, outcome: Outcome) -> None:
        """Counts a request that reached the service, once. Durations are those of whole answers alone, as in TGI."""
        timing, prepared, summary = outcome.timing, outcome.prepared, outcome.summary
        if summary is None:
            self.failed(outcome.kind)
            if prepared is not None:  # vLLM counts what reached the engine
                self.finished["abort" if outcome.kind in _ABORTED else "error"] += 1
            return
        assert prepared is not None
        self.successes += 1
        self.finished[_FINISHED[summary.finish_reason]] += 1
        whole = timing.finished - timing.arrived
        self.duration.observe(whole)
        self.latency.observe(whole)
        self.validation.observe(timing.queued - timing.arrived)
        waiting = timing.started - timing.queued
        self.queue.observe(waiting)
        self.waiting.observe(waiting)
        inference = timing.finished - timing.started
        self.inference.observe(inference)
        self.per_token.observe(inference / max(1, summary.generated_tokens))
        self.first_token.observe(timing.first_token - timing.arrived)
        self.prefill.observe(timing.first_token - timing.started)
        self.decode.observe(timing.finished - timing.first_token)
        self.input_length.observe(summary.prompt_tokens)
        self.generated.observe(summary.generated_tokens)
        first = timing.first_token
        self.recent.add(first - timing.arrived, timing.finished - first, summary.generated_tokens)
        self.allowed.observe(prepared.max_new_tokens)
        self._answers.observe(outcome.request.choices)

    @cached_property
    def registry(self) -> CollectorRegistry:
        """All but TGI's counters, and this process's own numbers. Imported late, which spares a start 60 ms."""
        from prometheus_client import CollectorRegistry, ProcessCollector

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        ProcessCollector(registry=registry)
        return registry

    def collect(self) -> Iterator[Metric]:
        """For `prometheus_client`. TGI's metrics have no label; vLLM's carry the model's name."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        stats = self.stats() or EngineStats(kv_block_tokens=0)
        model = self.model_name()
        for histogram, others in self._histograms.items():
            rows = histogram.cumulative()
            for name in (histogram.name, *others):
                labels = _labels(name, model)
                histograms = HistogramMetricFamily(name, histogram.doc, labels=tuple(labels))
                histograms.add_metric(tuple(labels.values()), rows, histogram.total)
                yield histograms
        for name, doc, value in _gauges(stats, self.inside()):
            labels = _labels(name, model)
            gauges = GaugeMetricFamily(name, doc, labels=tuple(labels))
            gauges.add_metric(tuple(labels.values()), value)
            yield gauges
        for name, doc, value in _counters(stats):
            labels = _labels(name, model)
            counters = CounterMetricFamily(name, doc, labels=tuple(labels))
            counters.add_metric(tuple(labels.values()), value)
            yield counters
        finished = CounterMetricFamily(
            "vllm:request_success", "requests that the engine is done with", labels=("model_name", "finished_reason")
        )
        for reason, count in self.finished.items():
            finished.add_metric((model, reason), count)
        yield finished
        cache = GaugeMetricFamily(
            "vllm:cache_config_info", "the KV pool", labels=("model_name", "block_size", "num_gpu_blocks")
        )
        cache.add_metric((model, str(stats.kv_block_tokens), str(stats.kv_blocks_total)), 1)
        yield cache

    def render(self) -> bytes:
        """The text that GET /metrics answers with. TGI's counters keep their names, which end in no `_total`."""
        from prometheus_client import generate_latest

        lines = [
            *_counter("tgi_request_count", "requests received", {"": self.requests}),
            *_counter("tgi_request_success", "requests answered in full", {"": self.successes}),
            *_counter(
                "tgi_request_failure",
                "requests that ended otherwise",
                {f'{{err="{name}"}}': count for name, count in sorted(self.failures.items())},
            ),
        ]
        return "".join(lines).encode() + generate_latest(self.registry)


def _labels(name: str, model: str) -> dict[str, str]:
    return {"model_name": model} if name.startswith("vllm:") else {}


def _gauges(stats: EngineStats, inside: int) -> tuple[tuple[str, str, float], ...]:
    usage = stats.kv_blocks_used / max(1, stats.kv_blocks_total)
    return (
        ("tgi_queue_size", "requests that wait for the engine", stats.waiting),
        ("tgi_batch_current_size", "requests that the engine runs", stats.running),
        (
            "tgi_batch_current_max_tokens",
            "tokens that the memory of running requests has room for",
            stats.kv_blocks_used * stats.kv_block_tokens,
        ),
        (
            "tgi_batch_max_total_tokens",
            "tokens that the KV pool has room for",
            stats.kv_blocks_total * stats.kv_block_tokens,
        ),
        ("interlingua_requests_inside", "permits taken, one for each answer", inside),
        ("interlingua_tasks", "tasks of the event loop, the one that answers this among them", _tasks()),
        ("interlingua_kv_blocks_total", "blocks of the KV pool", stats.kv_blocks_total),
        ("interlingua_kv_blocks_used", "blocks held by running requests", stats.kv_blocks_used),
        ("interlingua_kv_block_tokens", "tokens in a block", stats.kv_block_tokens),
        ("vllm:num_requests_running", "requests that the engine runs", stats.running),
        ("vllm:num_requests_waiting", "requests that wait for the engine", stats.waiting),
        ("vllm:kv_cache_usage_perc", "share of the KV pool held by running requests, 0 to 1", usage),
        ("vllm:gpu_cache_usage_perc", "the same, by its older name", usage),
    )


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # nobody serves
        return 0


def _counters(stats: EngineStats) -> tuple[tuple[str, str, int], ...]:
    """Names without `_total`, which the library adds."""
    return (
        ("interlingua_steps", "steps of the engine", stats.steps_total),
        ("interlingua_preemptions", "requests put back", stats.preemptions_total),
        ("interlingua_prompt_tokens", "tokens read", stats.prompt_tokens_total),
        ("interlingua_generated_tokens", "tokens made", stats.generated_tokens_total),
        ("interlingua_prefix_hit_tokens", "prompt tokens whose KV was in the cache", stats.prefix_hit_tokens_total),
        ("vllm:prompt_tokens", "tokens read", stats.prompt_tokens_total),
        ("vllm:generation_tokens", "tokens made", stats.generated_tokens_total),
        ("vllm:num_preemptions", "requests put back", stats.preemptions_total),
        ("vllm:prefix_cache_queries", "prompt tokens looked up in the cache", stats.prompt_tokens_total),
        ("vllm:prefix_cache_hits", "prompt tokens whose KV was in the cache", stats.prefix_hit_tokens_total),
        ("vllm:spec_decode_num_draft_tokens", "tokens guessed ahead", stats.drafted_tokens_total),
        ("vllm:spec_decode_num_accepted_tokens", "guessed tokens that were right", stats.accepted_tokens_total),
    )


def _counter(name: str, doc: str, values: dict[str, int]) -> Iterator[str]:
    yield f"# HELP {name} {doc}\n# TYPE {name} counter\n"
    for labels, value in values.items():
        yield f"{name}{labels} {value}\n"
