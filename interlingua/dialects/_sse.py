"""Server-sent events: one `data: ` line and a blank line each; and the other frames that vLLM has used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

MEDIA_TYPE = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"  # how OpenAI's streams end
# How else the objects of vLLM's streams are set apart, by the name of the setting: media type, and what follows each.
VLLM_FRAMES: Mapping[str, tuple[str, bytes]] = {
    "lines": ("application/x-ndjson", b"\n"),  # vLLM's own server today
    "nul": ("application/octet-stream", b"\0"),  # vLLM's own server before 0.6, and the vendor's
}
# Proxies must neither store nor gather events.
HEADERS = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))


def frame(value: Any) -> bytes:
    return frame_json(orjson.dumps(value))


def frame_json(data: bytes) -> bytes:
    """Frames JSON text. U+2028, U+2029 and U+0085 are escaped: many clients split lines at them."""
    if b"\xe2\x80" in data or b"\xc2\x85" in data:
        data = data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
        data = data.replace(b"\xc2\x85", b"\\u0085")
    return b"data: " + data + b"\n\n"
