"""`interlingua serve`: a model behind every dialect, until SIGINT or SIGTERM."""

from __future__ import annotations

import contextlib
import logging
import time

from interlingua.cli import assemble
from interlingua.cli.options import Options
from interlingua.server import logs
from interlingua.server.app import build_app
from interlingua.server.routes import discover
from interlingua.server.run import run as run_server
from interlingua.server.tracing import Tracer
from interlingua.service.service import ServedModel, Service

_log = logging.getLogger(__name__)


def run(options: Options) -> int:
    begun = time.monotonic()
    logs.set_up(options.log_level, options.log_format == "json")
    service = Service(assemble.limits(options), media=assemble.media(options))
    app = build_app(service, discover(), assemble.server_settings(options), assemble.wire_settings(options))

    async def load() -> ServedModel:
        return await assemble.load(options)

    def ready(url: str) -> None:
        model = service.model
        assert model is not None
        engine = model.engine.info
        seconds = time.monotonic() - begun
        others = "".join(f", {name}: {address}" for name, address in app.addresses.items())
        line = (
            f"Ready in {seconds:.1f} s: {model.name}, engine {engine.name} ({engine.description}), "
            f"at {url}, API page {url}/docs{others}"
        )
        if options.log_format == "json":
            extra = {"model": model.name, "engine": engine.name, "url": url, "seconds": round(seconds, 3)}
            _log.info("%s", line, extra=extra)
            return
        with contextlib.suppress(OSError):  # who reads our output may have left: the server serves all the same
            print(line, flush=True)

    if options.log_requests or options.log_prompts:
        app.witnesses.append(logs.RequestLog(options.log_prompts))
    if options.otlp_endpoint is None:
        return run_server(app, load, ready)
    tracer = Tracer.to(options.otlp_endpoint, options.otlp_service_name)
    app.witnesses.append(tracer)
    try:
        return run_server(app, load, ready)
    finally:
        tracer.close()
