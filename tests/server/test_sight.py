"""What operators see: metrics under the names that dashboards know, one line for each request, traces."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import orjson
import pytest
from byte_model import NAME, script
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from server_site import Site, Start
from sockets import Connection

from interlingua.contract.errors import ModelError
from interlingua.engine.echo import Script
from interlingua.server.logs import JsonFormatter, RequestLog
from interlingua.server.tracing import Tracer
from interlingua.service.prepare import Limits

TGI = {
    *("tgi_request_count", "tgi_request_success", "tgi_queue_size", "tgi_batch_current_size"),
    *("tgi_request_duration_bucket", "tgi_request_validation_duration_sum", "tgi_request_queue_duration_count"),
    *("tgi_request_inference_duration_sum", "tgi_request_mean_time_per_token_duration_bucket"),
    *("tgi_request_generated_tokens_bucket", "tgi_request_input_length_sum", "tgi_request_max_new_tokens_count"),
    *("tgi_batch_current_max_tokens", "tgi_batch_max_total_tokens"),
}
VLLM = {
    *(
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
    ),
    *("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:num_preemptions_total"),
    *("vllm:time_to_first_token_seconds_bucket", "vllm:inter_token_latency_seconds_bucket"),
    *("vllm:time_per_output_token_seconds_sum", "vllm:e2e_request_latency_seconds_count"),
    *("vllm:request_queue_time_seconds_sum", "vllm:request_prefill_time_seconds_sum"),
    *("vllm:request_decode_time_seconds_sum", "vllm:request_prompt_tokens_bucket"),
    *("vllm:request_generation_tokens_bucket", "vllm:request_max_num_generation_tokens_bucket"),
    *("vllm:request_params_n_bucket", "vllm:request_success_total", "vllm:cache_config_info"),
    *("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
    *("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"),
}


async def scrape(site: Site) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name, then by the values of their labels; as Prometheus' own library reads them."""
    answer = await site.ask("GET", "/metrics")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain")
    samples: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            # The library lets each counter end so; Prometheus takes TGI's as they are written.
            name = sample.name.removesuffix("_total") if sample.name.startswith("tgi_") else sample.name
            rows = samples.setdefault(name, {})
            assert tuple(sample.labels.values()) not in rows, f"{sample.name} stands there twice"
            rows[tuple(sample.labels.values())] = sample.value
    return samples


async def until_inside(site: Site, count: int) -> None:
    for _ in range(3000):
        if site.home.service.inside == count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{site.home.service.inside} requests are inside, not {count}")


def body(**parameters: Any) -> dict[str, Any]:
    return {"inputs": "Hi", "parameters": parameters}


async def test_every_name_that_a_dashboard_asks_for(start: Start):
    site = await start(script("hello"))
    samples = await scrape(site)
    assert samples.keys() >= TGI | VLLM
    await site.post("/generate", body())
    samples = await scrape(site)
    assert all(NAME in labels for name in VLLM for labels in samples[name])
    assert not any(NAME in labels for name in TGI for labels in samples[name])


async def test_each_request_is_counted_once_with_its_outcome(start: Start):
    plans = iter(
        (
            script("hello"),
            script("hello"),
            Script(ids=(97,) * 50),
            Script(ids=(97,) * 9, fail_at=2),
            Script(start_delay=30),
            Script(start_delay=30),
        )
    )
    site = await start(lambda request: next(plans), limits=Limits(max_concurrent_requests=2))
    assert (await site.post("/generate", body())).status == 200
    assert (await site.post("/generate_stream", body(stop=["ll"]))).status == 200
    assert (await site.post("/generate", body(max_new_tokens=7))).status == 200
    assert (await site.post("/generate", body())).status == 500
    assert (await site.post("/generate", b"{")).status == 422
    assert (await site.post("/generate", body(top_p=7))).status == 422
    assert (await site.post("/nothing", b"")).status == 404
    holders = [await site.connect() for _ in range(2)]
    for connection in holders:
        connection.send("POST", "/generate", body())
    await until_inside(site, 2)
    assert (await site.post("/generate", body())).status == 429
    during = await scrape(site)
    assert during["vllm:num_requests_running"] == {(NAME,): 2} and during["tgi_batch_current_size"] == {(): 2}
    assert during["vllm:kv_cache_usage_perc"][NAME,] == during["vllm:gpu_cache_usage_perc"][NAME,]
    for connection in holders:
        connection.close()
    await site.home.emptied()
    samples = await scrape(site)
    assert samples["tgi_request_count"] == {(): 10} and samples["tgi_request_success"] == {(): 3}
    assert samples["tgi_request_failure"] == {
        ("dropped",): 2,
        ("incomplete",): 1,
        ("not_found",): 1,
        ("overloaded",): 1,
        ("validation",): 2,
    }
    assert samples["vllm:request_success_total"] == {
        ("stop", NAME): 2,
        ("length", NAME): 1,
        ("abort", NAME): 2,
        ("error", NAME): 1,
    }
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert samples[name] == {(NAME,): 0}
    assert samples["tgi_request_duration_count"] == {(): 3}, "durations are those of whole answers"
    # Of the three: 6 tokens with the end, 4 up to the stop, 7; and 2 of the one that failed.
    assert samples["vllm:request_generation_tokens_sum"] == {(NAME,): 6 + 4 + 7}
    assert samples["vllm:inter_token_latency_seconds_count"] == {(NAME,): 5 + 3 + 6 + 1}
    assert samples["vllm:request_prompt_tokens_sum"] == {(NAME,): 9}, "with the mark of the beginning"
    assert samples["tgi_request_max_new_tokens_sum"] == {(): 20 + 20 + 7}


async def test_times_of_a_request_fit_together(start: Start):
    site = await start(Script(ids=(97,) * 5, start_delay=0.05, delay=0.02))
    await site.post("/generate", body(max_new_tokens=5))
    samples = await scrape(site)

    def total(name: str) -> float:
        (value,) = samples[name + "_sum"].values()
        return value

    whole = total("vllm:e2e_request_latency_seconds")
    assert whole == total("tgi_request_duration") > 0.12
    parts = ("queue", "prefill", "decode")
    spent = sum(total(f"vllm:request_{part}_time_seconds") for part in parts)
    assert spent + total("tgi_request_validation_duration") == pytest.approx(whole)
    assert total("vllm:inter_token_latency_seconds") == pytest.approx(
        total("vllm:request_decode_time_seconds"), abs=0.5
    )
    assert total("vllm:time_to_first_token_seconds") > 0.05


async def test_a_models_name_cannot_break_the_page(start: Start):
    site = await start(script("hello"))
    site.home.service.metrics.model_name = lambda: 'a"b\\c\nd'
    assert (await scrape(site))["vllm:num_requests_running"] == {('a"b\\c\nd',): 0}


# --- logs ------------------------------------------------------------------------------------------------


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, Any]]]:
    """What the JSON log says, line by line."""
    written: list[dict[str, Any]] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = self.format(record)
            assert "\n" not in line
            written.append(json.loads(line))

    keeper = Keeper()
    keeper.setFormatter(JsonFormatter())
    logger = logging.getLogger("interlingua")
    logger.addHandler(keeper)
    caplog.set_level(logging.INFO, "interlingua")
    yield written
    logger.removeHandler(keeper)


async def test_a_line_for_each_request_with_its_id(start: Start, lines: list[dict[str, Any]]):
    site = await start(lambda request: Script(start_delay=30) if len(request.prompt_ids) > 5 else script("hello\n"))
    site.app.witnesses.append(RequestLog(prompts=False))
    answer = await site.post("/generate_stream", body())
    (await site.connect()).close()
    refused = await site.post("/generate", body(top_k="many\nlines"))
    nowhere = await site.ask("GET", "/no%0d%0awhere")
    gone = await site.connect()
    gone.send("POST", "/generate", {"inputs": "leaves early"})
    await until_inside(site, 1)
    gone.close()
    await site.home.emptied()
    assert len(lines) == 4
    by_id = {line["request_id"]: line for line in lines}
    line = by_id[answer.headers["x-request-id"]]
    assert (line["method"], line["path"], line["status"], line["outcome"]) == (
        "POST",
        "/generate_stream",
        200,
        "success",
    )
    assert (line["prompt_tokens"], line["generated_tokens"], line["finish_reason"]) == (3, 7, "eos_token")
    assert 0 <= line["queue_seconds"] <= line["first_token_seconds"] <= line["seconds"]
    assert line["level"] == "info" and line["logger"] == "interlingua.requests" and line["time"].endswith("+00:00")
    told = by_id[refused.headers["x-request-id"]]
    assert (told["status"], told["outcome"]) == (422, "validation") and ", validation, request" in told["message"]
    lost = by_id[nowhere.headers["x-request-id"]]
    assert (lost["status"], lost["outcome"]) == (404, "not_found")
    assert "/no%0D%0Awhere" in lost["message"], "no request writes a line of its own"
    (left,) = (line for line in lines if line["status"] == 499)
    assert left["outcome"] == "dropped" and left["prompt_tokens"] == 13
    assert not any("Hi" in json.dumps(line) or "leaves early" in json.dumps(line) for line in lines)


async def test_every_refusal_has_its_outcome_as_the_metrics_have_it(start: Start, lines: list[dict[str, Any]]):
    site = await start(script("hello"), server={"payload_limit": 1000, "api_key": "k"})
    site.app.witnesses.append(RequestLog(prompts=False))
    key = ("Authorization: Bearer k",)
    wanted = [
        ("POST", "/generate", b"{", key, 422, "validation"),
        ("POST", "/generate", b'{"inputs":"a","parameters":{"top_p":2}}', key, 422, "validation"),
        ("POST", "/v1/chat/completions", b'{"messages":[],"n":"1"}', key, 400, "validation"),
        ("POST", "/v1/completions", b'{"prompt":"a","model":"other"}', key, 404, "not_found"),
        ("POST", "/v1/completions", b'{"prompt":["a",[99999]]}', key, 400, "validation"),
        ("POST", "/v2/models/other/generate", b"{}", key, 404, "not_found"),
        ("POST", "/tokenize", b"{}", key, 422, "validation"),
        ("POST", "/generate", b"{}", (), 401, "unauthorized"),
        ("POST", "/generate", b" " * 1001, key, 413, "payload_too_large"),
        ("GET", "/generate", b"", key, 405, "method_not_allowed"),
    ]
    for method, path, data, headers, status, _ in wanted:
        connection = await site.connect()
        connection.send_head(method, path, f"content-length: {len(data)}", *headers)
        connection.writer.write(data)
        assert (await connection.answer()).status == status, path
    assert [(line["status"], line["outcome"]) for line in lines] == [one[4:] for one in wanted]
    site.home.service.begin_stop()
    assert (await site.ask("GET", "/health")).status == 503
    assert lines[-1]["outcome"] == "unavailable"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_callers_own_id_comes_back_and_stands_in_the_log(
    start: Start, lines: list[dict[str, Any]], stream: bool
):
    site = await start(script("hello"))
    site.app.witnesses.append(RequestLog(prompts=False))
    path = "/generate_stream" if stream else "/generate"
    connection = await site.connect()
    assert await traced(connection, path, body(), "X-Request-Id: trace-7/a:b") == "trace-7/a:b"
    ours = lines[0]["request_id"]
    assert lines[0]["caller_request_id"] == "trace-7/a:b" and len(ours) == 32
    assert lines[0]["message"].endswith(f", request {ours}, the caller's trace-7/a:b")
    refused = await traced(await site.connect(), path, {}, "X-Request-Id: r-2")
    assert refused == "r-2" and lines[1]["caller_request_id"] == "r-2"


@pytest.mark.parametrize("given", ["a b", "x" * 257, "caf\xe9", "a\tb", ""])
async def test_an_id_that_no_line_could_hold_is_passed_over(start: Start, lines: list[dict[str, Any]], given: str):
    site = await start(script("hello"))
    site.app.witnesses.append(RequestLog(prompts=False))
    got = await traced(await site.connect(), "/generate", body(), f"X-Request-Id: {given}")
    assert got == lines[0]["request_id"] and "caller_request_id" not in lines[0]


async def test_prompts_are_logged_where_the_operator_asks_for_them(start: Start, lines: list[dict[str, Any]]):
    site = await start(script("hello"))
    site.app.witnesses.append(RequestLog(prompts=True))
    await site.post("/generate", {"inputs": "What\nis this? " + "x" * 5000})
    assert lines[0]["prompt"] == ("What\nis this? " + "x" * 5000)[:1000]
    assert "hello" not in json.dumps(lines)


def test_json_lines_hold_whatever_happens():
    record = logging.makeLogRecord(
        {"msg": "a %s\nb", "args": ("x",), "levelname": "ERROR", "name": "n", "weird": object()}
    )
    try:
        raise ValueError("café\n😀")
    except ValueError:
        import sys

        record.exc_info = sys.exc_info()
    line = JsonFormatter().format(record)
    read = json.loads(line)
    assert "\n" not in line and read["message"] == "a x\nb" and "ValueError: café\n😀" in read["exception"]
    assert read["weird"].startswith("<object")


# --- traces ----------------------------------------------------------------------------------------------

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def traced(connection: Connection, path: str, data: object, *headers: str) -> str:
    raw = orjson.dumps(data)
    connection.send_head("POST", path, f"content-length: {len(raw)}", *headers)
    connection.writer.write(raw)
    return str((await connection.answer()).headers["x-request-id"])


def named(spans: Sequence[ReadableSpan], request_id: str) -> dict[str, ReadableSpan]:
    """The spans of a request by name; the outermost is "request"."""
    (outer,) = (s for s in spans if s.attributes and s.attributes.get("interlingua.request_id") == request_id)
    assert outer.context is not None
    inner = [span for span in spans if span.parent is not None and span.parent.span_id == outer.context.span_id]
    return {"request": outer, **{span.name: span for span in inner}}


async def test_spans_of_a_request(start: Start):
    site = await start(Script(ids=(97,) * 5, start_delay=0.05, delay=0.01))
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter, "test")
    site.app.witnesses.append(tracer)
    connection = await site.connect()
    with_parent = await traced(
        connection, "/v2/models/bytes/generate_stream", {"text_input": "x"}, f"traceparent: 00-{TRACE}-{PARENT}-01"
    )
    unsampled = await traced(connection, "/generate", body(), f"traceparent: 00-{TRACE}-{PARENT}-00")
    alone = await traced(connection, "/generate", body(max_new_tokens=3), "traceparent: 00-nonsense")
    refused = await traced(connection, "/generate", body(top_p=3))
    connection.close()
    await site.home.emptied()
    tracer.close()
    spans = exporter.get_finished_spans()
    whole = named(spans, with_parent)
    assert set(whole) == {"request", "prepare", "queue", "prefill", "decode"}
    outer = whole["request"]
    assert outer.name == "POST /v2/models/{model}/generate_stream" and outer.parent is not None and outer.context
    assert f"{outer.parent.trace_id:032x}" == TRACE and f"{outer.parent.span_id:016x}" == PARENT
    assert outer.context.trace_id == outer.parent.trace_id
    inner = [whole[name] for name in ("prepare", "queue", "prefill", "decode")]
    assert outer.start_time == inner[0].start_time
    for before, after in itertools.pairwise(inner):
        assert before.end_time == after.start_time
    assert outer.end_time and inner[-1].end_time and outer.end_time >= inner[-1].end_time
    assert outer.attributes is not None
    assert outer.attributes["gen_ai.usage.input_tokens"] == 2 and outer.attributes["gen_ai.usage.output_tokens"] == 6
    assert whole["prefill"].end_time - whole["prefill"].start_time > 40e6  # type: ignore[operator]
    assert not any(s.attributes and s.attributes.get("interlingua.request_id") == unsampled for s in spans)
    assert named(spans, alone)["request"].parent is None
    assert set(named(spans, refused)) == {"request"}, "it never reached the service"


async def test_a_request_that_ends_early_has_the_spans_that_it_came_to(start: Start):
    site = await start(Script(start_delay=30), limits=Limits(timeout=0.1))
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter, "test")
    site.app.witnesses.append(tracer)
    connection = await site.connect()
    late = await traced(connection, "/generate", body())
    connection.close()
    await site.home.emptied()
    tracer.close()
    spans = named(exporter.get_finished_spans(), late)
    assert set(spans) == {"request", "prepare", "queue"}
    assert spans["request"].attributes is not None and spans["request"].attributes["interlingua.outcome"] == "timeout"
    assert not spans["request"].status.is_ok


async def test_spans_reach_a_collector(start: Start):
    """Over the wire, as the protocol's own messages read them."""
    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    try:
        site = await start(script("ok"))
        tracer = Tracer.to(f"http://127.0.0.1:{collector.server_port}", "my-service")
        site.app.witnesses.append(tracer)
        await site.post("/generate", body())
        await site.home.emptied()
        await asyncio.to_thread(tracer.close)
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()
    ((path, data),) = received
    assert path == "/v1/traces"
    assert b"gzip" not in data[:4]
    (resource,) = ExportTraceServiceRequest.FromString(data).resource_spans
    assert ("service.name", "my-service") in {(one.key, one.value.string_value) for one in resource.resource.attributes}
    names = [span.name for scope in resource.scope_spans for span in scope.spans]
    assert sorted(names) == ["POST /generate", "decode", "prefill", "prepare", "queue"]


@pytest.mark.parametrize("endpoint", ["collector:4318", "grpc://collector", "http://", ""])
def test_a_bad_endpoint_is_a_bad_start(endpoint: str):
    with pytest.raises(ModelError, match="otlp_endpoint"):
        Tracer.to(endpoint, "x")
