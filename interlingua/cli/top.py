"""`interlingua top`: a server's queue, batch, memory and speed in the terminal, read from its /metrics."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from interlingua.cli.options import Options
from interlingua.cli.settings import UsageError

_PATIENCE = 10.0  # seconds for an answer

_TIMES: tuple[tuple[str, str], ...] = (
    ("first token", "vllm:time_to_first_token_seconds"),
    ("between tokens", "vllm:inter_token_latency_seconds"),
    ("in the queue", "vllm:request_queue_time_seconds"),
    ("whole answer", "vllm:e2e_request_latency_seconds"),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """What a server said of itself at one moment."""

    at: float  # time.monotonic()
    values: Mapping[str, float]  # by name, summed over labels
    failures: Mapping[str, float]  # by kind
    model: str
    ill: str | None  # what /health has against it; "" = well, None = no health there: an address for metrics alone

    def __getitem__(self, name: str) -> float:
        """0.0 for what this server does not count."""
        return self.values.get(name, 0.0)


@dataclass(frozen=True, slots=True)
class View:
    """Two samples, the older one None at the beginning: rates and means are of the time between them."""

    url: str
    now: Sample
    before: Sample | None = None

    def rate(self, name: str) -> float | None:
        """Per second; None = not known yet."""
        if self.before is None or self.now.at <= self.before.at:
            return None
        return max(0.0, self.now[name] - self.before[name]) / (self.now.at - self.before.at)

    def mean(self, histogram: str) -> float | None:
        """Of the observations between the samples; None = there was none."""
        if self.before is None:
            return None
        count = self.now[f"{histogram}_count"] - self.before[f"{histogram}_count"]
        total = self.now[f"{histogram}_sum"] - self.before[f"{histogram}_sum"]
        return total / count if count > 0 else None

    def render(self) -> Panel:
        now = self.now
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim")
        rows.add_row("requests", _requests(now))
        rows.add_row("KV memory", _bar(now["vllm:kv_cache_usage_perc"], now["tgi_batch_max_total_tokens"]))
        rows.add_row("tokens/s", self._tokens())
        rows.add_row("steps", self._steps())
        rows.add_row("answers/s", self._answers())
        for label, histogram in _TIMES:
            rows.add_row(label, _milliseconds(self.mean(histogram)))
        state = (
            Text("serving", "green") if now.ill == "" else Text(now.ill or "metrics alone", "red" if now.ill else "dim")
        )
        title = Text.assemble(now.model or "no model yet", "  ", self.url, "  ", state)
        return Panel(Group(rows), title=title, title_align="left", expand=False, width=78)

    def _tokens(self) -> str:
        parts = (("out", "vllm:generation_tokens_total"), ("in", "vllm:prompt_tokens_total"))
        text = ", ".join(f"{_number(self.rate(name))} {word}" for word, name in parts)
        hits, asked = self.rate("vllm:prefix_cache_hits_total"), self.rate("vllm:prefix_cache_queries_total")
        return text + (f", {hits / asked:.0%} of them cached" if hits and asked else "")

    def _steps(self) -> str:
        steps = self.rate("interlingua_steps_total")
        put_back = self.rate("vllm:num_preemptions_total")
        return f"{_number(steps)} a second" + (f", {put_back:.1f} requests put back" if put_back else "")

    def _answers(self) -> str:
        text = _number(self.rate("tgi_request_success"))
        earlier = self.before.failures if self.before else self.now.failures
        news = {kind: count - earlier.get(kind, 0.0) for kind, count in self.now.failures.items()}
        return text + "".join(f", {count:.0f} {kind}" for kind, count in news.items() if count > 0)


def run(options: Options, url: str) -> int:
    """Draws until interrupted, or once. Raises UsageError when there is nothing to draw."""
    url = url.rstrip("/")
    if "://" not in url:
        url = f"http://{url}"
    first = sample(url)
    if options.once:
        time.sleep(options.interval)
        Console().print(View(url, sample(url), first).render())
        return 0
    with Live(View(url, first).render(), auto_refresh=False) as live:
        for view in _views(url, first, options.interval):
            live.update(view.render(), refresh=True)
    return 0


def _views(url: str, first: Sample, interval: float) -> Iterator[View]:
    """One view after the other, for ever. A server that does not answer is shown as it was last, with the reason."""
    before = now = first
    while True:
        time.sleep(interval)
        try:
            before, now = now, sample(url)
            yield View(url, now, before)
        except UsageError as problem:
            before = now
            yield View(url, Sample(now.at, now.values, now.failures, now.model, str(problem)))


def sample(url: str) -> Sample:
    """Asks the server at `url`. Raises UsageError when what answers there is not one."""
    at = time.monotonic()
    status, page = _get(url + "/metrics")
    if status == 404:
        elsewhere = "with --metrics-port or --management-port they are at that address"
        raise UsageError(f"{url} has no /metrics: {_error(page) or elsewhere}")
    if status != 200:
        raise UsageError(f"{url}/metrics answers {status}")
    health, _ = _get(url + "/health")
    return parse(page, at, {200: "", 404: None}.get(health, f"not serving ({health})"))


@dataclass(slots=True)
class _Sums:
    values: dict[str, float] = field(default_factory=dict)
    failures: dict[str, float] = field(default_factory=dict)
    model: str = ""


def parse(page: str, at: float, ill: str | None = "") -> Sample:
    """A page of metrics as a sample. Raises UsageError when it is none of ours."""
    sums = _Sums()
    try:
        for family in text_string_to_metric_families(page):
            for one in family.samples:
                # The library lets each counter end in `_total`; TGI's do not.
                name = one.name.removesuffix("_total") if one.name.startswith("tgi_") else one.name
                sums.values[name] = sums.values.get(name, 0.0) + one.value
                sums.model = one.labels.get("model_name", sums.model)
                if name == "tgi_request_failure":
                    sums.failures[one.labels["err"]] = one.value
    except (ValueError, KeyError):
        raise UsageError("what answers there are no metrics") from None
    if "tgi_request_count" not in sums.values:
        raise UsageError("what answers there are no metrics of this server")
    return Sample(at, sums.values, sums.failures, sums.model, ill)


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE) as answer:
            return answer.status, answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as problem:
        return problem.code, problem.read().decode("utf-8", "replace")
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "reason", problem)
        if isinstance(reason, ssl.SSLCertVerificationError):
            why = f"its certificate is refused ({reason.verify_message}); SSL_CERT_FILE names the authorities to trust"
            raise UsageError(f"cannot read {url}: {why}") from None
        raise UsageError(f"cannot read {url}: {getattr(reason, 'strerror', None) or reason}") from None


def _error(page: str) -> str:
    """What a refusal of ours says, which may be where the metrics are; "" = it is none of ours."""
    try:
        error = json.loads(page)["error"]
    except (ValueError, KeyError, TypeError):
        return ""
    return error if isinstance(error, str) else ""


def _requests(now: Sample) -> str:
    running, waiting = now["vllm:num_requests_running"], now["vllm:num_requests_waiting"]
    return f"{running:.0f} running, {waiting:.0f} waiting, {now['interlingua_requests_inside']:.0f} permits taken"


def _bar(share: float, room: float) -> Table:
    row = Table.grid(padding=(0, 1))
    row.add_row(ProgressBar(total=1.0, completed=share, width=30), f"{share:.0%} of {room:,.0f} tokens")
    return row


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 10 else f"{seconds * 1000:,.1f} ms"
