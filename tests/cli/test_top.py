"""`interlingua top` against a server of its own, and against what is none."""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
from command_line import refused, run
from rich.console import Console

from interlingua.cli import top
from interlingua.cli.settings import UsageError
from interlingua.contract.engine import EngineStats
from interlingua.service.metrics import Metrics


def page(steps: int, **more: Any) -> bytes:
    """The metrics of a server that has taken so many steps of 10 tokens each."""
    metrics = Metrics()
    metrics.model_name = lambda: "the-model"
    metrics.stats = lambda: EngineStats(
        running=3,
        waiting=2,
        kv_blocks_total=100,
        kv_blocks_used=25,
        kv_block_tokens=32,
        steps_total=steps,
        generated_tokens_total=10 * steps,
        prompt_tokens_total=4 * steps,
        prefix_hit_tokens_total=steps,
    )
    metrics.requests = metrics.successes = steps
    for name, value in more.items():
        setattr(metrics, name, value)
    for _ in range(steps):
        metrics.gaps.observe(0.004)
    return metrics.render()


class Fake:
    """Something that answers on /metrics, twice as much work each time, and on /health."""

    def __init__(self) -> None:
        self.pages: Iterator[bytes] = iter(())
        self.health = 200
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                data = next(fake.pages, b"") if self.path == "/metrics" else b""
                self.send_response(200 if self.path == "/metrics" else fake.health)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def fake() -> Iterator[Fake]:
    started = Fake()
    yield started
    started.close()


def drawn(view: top.View) -> str:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view.render())
    return console.export_text()


def test_rates_and_means_are_those_of_the_time_between() -> None:
    before = top.parse(page(100, failures={"overloaded": 5}).decode(), at=10.0)
    now = top.parse(page(300, failures={"overloaded": 9, "timeout": 1}).decode(), at=12.0)
    text = drawn(top.View("http://host", now, before))
    assert "the-model" in text and "http://host" in text and "serving" in text
    assert "3 running, 2 waiting, 0 permits taken" in text
    assert "25% of 3,200 tokens" in text
    assert "1,000.0 out, 400.0 in, 25% of them cached" in text
    assert "100.0 a second" in text
    assert "100.0, 4 overloaded, 1 timeout" in text
    assert re.search(r"between tokens +4\.0 ms", text) and re.search(r"first token +- ", text)


def test_the_first_look_knows_no_rates() -> None:
    text = drawn(top.View("http://host", top.parse(page(100, failures={"timeout": 3}).decode(), at=1.0)))
    assert re.search(r"tokens/s +- out, - in", text) and "timeout" not in text


def test_one_frame_of_a_running_server(fake: Fake) -> None:
    fake.pages = iter((page(100), page(150)))
    result = run("top", fake.url, "--once", "--interval", "0.1")
    assert (result.returncode, result.stderr) == (0, "")
    assert "the-model" in result.stdout and "3 running, 2 waiting" in result.stdout and "serving" in result.stdout
    assert "\x1b" not in result.stdout, "no colours where there is no terminal"


def test_a_server_that_is_not_well_is_still_shown(fake: Fake) -> None:
    fake.health, fake.pages = 503, iter((page(1), page(1)))
    assert "not serving (503)" in run("top", fake.url, "--once", "--interval", "0.1").stdout


def test_an_address_for_metrics_alone_is_not_called_serving(fake: Fake) -> None:
    fake.health, fake.pages = 404, iter((page(1), page(1)))
    shown = run("top", fake.url, "--once", "--interval", "0.1").stdout
    assert "metrics alone" in shown and "serving" not in shown


def test_an_address_without_metrics_says_where_they_may_be(fake: Fake) -> None:
    fake.health = 404
    problem = refused(run("top", fake.url + "/elsewhere", "--once"))
    assert "--metrics-port" in problem and "--management-port" in problem


def test_a_server_says_itself_where_its_metrics_are(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "there is nothing at /metrics; it stands at port 81 (--management-port)"
    monkeypatch.setattr(top, "_get", lambda url: (404, json.dumps({"error": said})))
    with pytest.raises(UsageError, match=f"http://host has no /metrics: {re.escape(said)}"):
        top.sample("http://host")


def test_an_address_without_a_scheme_is_one_of_http(fake: Fake) -> None:
    fake.pages = iter((page(100), page(150)))
    result = run("top", fake.url.removeprefix("http://"), "--once", "--interval", "0.1")
    assert (result.returncode, result.stderr) == (0, "")
    assert fake.url in result.stdout


def test_a_certificate_of_an_unknown_authority(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    fake.server.socket = context.wrap_socket(fake.server.socket, server_side=True)
    fake.pages = iter((page(7),))
    url = fake.url.replace("http:", "https:")
    with pytest.raises(UsageError, match=r"certificate is refused.*SSL_CERT_FILE"):
        top.sample(url)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    assert top.sample(url)["interlingua_steps_total"] == 7


def test_a_server_that_goes_away_and_comes_back(fake: Fake) -> None:
    fake.pages = iter((page(1), b"", page(3), page(4)))
    first = top.sample(fake.url)
    views = top._views(fake.url, first, 0.01)
    gone, back, more = next(views), next(views), next(views)
    assert "no metrics" in gone.now.ill and gone.rate("interlingua_steps_total") is None
    assert back.now.ill == "" and back.now["interlingua_steps_total"] == 3
    assert (more.rate("interlingua_steps_total") or 0) > 0


def test_what_is_no_server_is_one_line(fake: Fake) -> None:
    fake.pages = iter((b"# nothing\n",))
    assert "no metrics" in refused(run("top", fake.url, "--once"))
    assert "Connection refused" in refused(run("top", "http://127.0.0.1:1", "--once"))
    assert "cannot read" in refused(run("top", "nonsense", "--once"))
    with pytest.raises(UsageError):
        top.parse("up{", 0.0)
