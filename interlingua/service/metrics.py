"""What the server counts about itself, under the names that TGI's dashboards know.

Counting is plain integers and lists, because `prometheus_client`'s own objects cost tens of microseconds a
request; its registry reads them when somebody asks. Gauges are never counted up and down: they are read from
the engine at that moment, so they cannot leak.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from interlingua.contract.engine import EngineStats
from interlingua.contract.events import Summary

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DROPPED = "dropped"  # the client left before its answer was complete
STOPPED = "stopped"  # by its id, before its first token
_DURATIONS = tuple(0.0001 * 1.5**k for k in range(1, 36))  # seconds; TGI's own buckets
_COUNTS = tuple(float(2**k) for k in range(21))  # tokens
_ERR = {"incomplete_generation": "incomplete", "cancelled": DROPPED}  # kinds whose TGI name differs


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

    `inside` and `stats` are set by the service: requests that hold a permit, and the engine's own numbers
    (None while no model is loaded).
    """

    def __init__(self) -> None:
        self.inside: Callable[[], int] = lambda: 0
        self.stats: Callable[[], EngineStats | None] = lambda: None
        self.requests = 0
        self.successes = 0
        self.failures: dict[str, int] = {}  # by `err`, which is mostly the kind of error
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
        self.first_token = Histogram(
            "interlingua_time_to_first_token_duration", "seconds from arrival to the first token", _DURATIONS
        )
        self.input_length = Histogram("tgi_request_input_length", "prompt tokens", _COUNTS)
        self.generated = Histogram("tgi_request_generated_tokens", "output tokens", _COUNTS)
        self.recent = Recent()
        self._histograms = (
            self.duration,
            self.validation,
            self.queue,
            self.inference,
            self.per_token,
            self.first_token,
            self.input_length,
            self.generated,
        )

    def failed(self, kind: str) -> None:
        """A request ended without its answer; `kind` is that of the error, or one of the words above."""
        name = _ERR.get(kind, kind)
        self.failures[name] = self.failures.get(name, 0) + 1

    def refused(self, kind: str) -> None:
        """A request that never reached the service, such as one whose body could not be decoded."""
        self.requests += 1
        self.failed(kind)

    def succeeded(self, summary: Summary) -> None:
        """An answer is complete. Durations are recorded for these requests alone, as TGI does."""
        self.successes += 1
        timing = summary.timing
        self.duration.observe(timing.finished - timing.arrived)
        self.validation.observe(timing.queued - timing.arrived)
        self.queue.observe(timing.started - timing.queued)
        inference = timing.finished - timing.started
        self.inference.observe(inference)
        self.per_token.observe(inference / max(1, summary.generated_tokens))
        self.first_token.observe(timing.first_token - timing.arrived)
        self.input_length.observe(summary.prompt_tokens)
        self.generated.observe(summary.generated_tokens)
        first = timing.first_token
        self.recent.add(first - timing.arrived, timing.finished - first, summary.generated_tokens)

    @cached_property
    def registry(self) -> CollectorRegistry:
        """All but the counters, and this process's own numbers. Imported late, which spares a start 60 ms."""
        from prometheus_client import CollectorRegistry, ProcessCollector

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        ProcessCollector(registry=registry)
        return registry

    def collect(self) -> Iterator[Metric]:
        """For `prometheus_client`."""
        from prometheus_client.metrics_core import GaugeMetricFamily, HistogramMetricFamily

        for histogram in self._histograms:
            family = HistogramMetricFamily(histogram.name, histogram.doc)
            family.add_metric([], histogram.cumulative(), histogram.total)
            yield family
        stats = self.stats() or EngineStats(kv_block_tokens=0)
        for name, doc, value in (
            ("tgi_queue_size", "requests that wait for the engine", stats.waiting),
            ("tgi_batch_current_size", "requests that the engine runs", stats.running),
            ("interlingua_requests_inside", "requests that hold a permit", self.inside()),
            ("interlingua_kv_blocks_total", "blocks of the KV pool", stats.kv_blocks_total),
            ("interlingua_kv_blocks_used", "blocks held by running requests", stats.kv_blocks_used),
            ("interlingua_kv_block_tokens", "tokens in a block", stats.kv_block_tokens),
        ):
            yield GaugeMetricFamily(name, doc, value)

    def render(self) -> bytes:
        """The text that GET /metrics answers with. Counters keep TGI's names, which end in no `_total`."""
        from prometheus_client import generate_latest

        stats = self.stats() or EngineStats()
        lines = [
            *_counter("tgi_request_count", "requests received", {"": self.requests}),
            *_counter("tgi_request_success", "requests answered in full", {"": self.successes}),
            *_counter(
                "tgi_request_failure",
                "requests that ended otherwise",
                {f'{{err="{name}"}}': count for name, count in sorted(self.failures.items())},
            ),
            *_counter("interlingua_steps_total", "steps of the engine", {"": stats.steps_total}),
            *_counter("interlingua_preemptions_total", "requests put back", {"": stats.preemptions_total}),
            *_counter("interlingua_prompt_tokens_total", "tokens read", {"": stats.prompt_tokens_total}),
            *_counter("interlingua_generated_tokens_total", "tokens made", {"": stats.generated_tokens_total}),
            *_counter(
                "interlingua_prefix_hit_tokens_total",
                "prompt tokens whose KV was in the cache",
                {"": stats.prefix_hit_tokens_total},
            ),
        ]
        return "".join(lines).encode() + generate_latest(self.registry)


def _counter(name: str, doc: str, values: dict[str, int]) -> Iterator[str]:
    yield f"# HELP {name} {doc}\n# TYPE {name} counter\n"
    for labels, value in values.items():
        yield f"{name}{labels} {value}\n"
