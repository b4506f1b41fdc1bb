"""`interlingua serve`: a model behind every dialect, until SIGINT or SIGTERM."""

from __future__ import annotations

import contextlib
import logging
import time

from interlingua.cli import assemble
from interlingua.cli.options import Options
from interlingua.server.app import build_app
from interlingua.server.routes import discover
from interlingua.server.run import run as run_server
from interlingua.service.service import ServedModel, Service


def run(options: Options) -> int:
    begun = time.monotonic()
    _set_up_logging(options.log_level)
    service = Service(assemble.limits(options))
    app = build_app(service, discover(), assemble.server_settings(options), assemble.wire_settings(options))

    async def load() -> ServedModel:
        return await assemble.load(options)

    def ready(url: str) -> None:
        model = service.model
        assert model is not None
        engine = model.engine.info
        seconds = time.monotonic() - begun
        others = "".join(f", {name} at {address}" for name, address in app.addresses.items())
        with contextlib.suppress(OSError):  # who reads our output may have left: the server serves all the same
            print(
                f"Ready in {seconds:.1f} s: {model.name}, engine {engine.name} ({engine.description}), "
                f"at {url}, API page {url}/docs{others}",
                flush=True,
            )

    return run_server(app, load, ready)


def _set_up_logging(level: str) -> None:
    """Our own messages from `level` on; those of libraries are news only when they are bad, or when debugging."""
    logging.basicConfig(
        level=logging.DEBUG if level == "debug" else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("interlingua").setLevel(level.upper())
