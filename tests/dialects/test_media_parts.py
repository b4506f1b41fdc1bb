"""Well-formed media parts: what the dialect hands on. Malformed ones are in the table of cases."""

from __future__ import annotations

import json

import pytest
from wire import call, call_or_reply
from wire_cases import GENERATE, TRITON

from interlingua.contract.dialect import Reply
from interlingua.contract.request import MediaPart, TextPart, TextPrompt
from interlingua.dialects._parts import MiB

GOOD = [
    ("file", "image_url", "/data/multimodal_inputs/test.png"),
    ("file", "image_url", "file:///data/multimodal_inputs/é_1.JPG"),
    ("file", "image_url", "relative/a.jpeg"),
    ("url", "image_url", "http://h.example/a.png"),
    ("url", "image_url", "HTTPS://h.example:8443/a/b.JPEG?size=1&x=.gif"),
    ("url", "image_url", "http://[2001:db8::1]/a.png"),
    ("data", "image_url", "data:image/png;base64,AAAA"),
    ("data", "image_url", "data:image/jpeg;base64,AAA="),
    ("data", "image_url", "AAAA/+=="),
    ("file", "video_url", "/data/a.mp4"),
    ("url", "video_url", "http://h.example/a.avi"),
    ("data", "video_url", "data:video/x-ms-wmv;base64,AA=="),
    ("file", "audio_url", "a.flac"),
    ("url", "audio_url", "http://h.example/a.mp3"),
    ("data", "audio_url", "data:audio/x-wav;base64,AAAA"),
]


@pytest.mark.parametrize(("form", "kind", "source"), GOOD)
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(("path", "prompt"), [(GENERATE, "inputs"), (TRITON, "text_input")])
def test_good_media_become_parts(form: str, kind: str, source: str, wrapped: bool, path: str, prompt: str) -> None:
    value = {"url": source, "detail": "low"} if wrapped else source
    body = {prompt: [{"type": "text", "text": "a"}, {"type": kind, kind: value}, {"type": "text", "text": "b"}]}
    request = call(path, json.dumps(body).encode()).request
    assert isinstance(request.prompt, TextPrompt)
    suffix = ".url" if wrapped else ""
    sizes = {"image_url": (40, 20), "video_url": (512, 512), "audio_url": (40, 20)}[kind]
    most = sizes[path == TRITON] * MiB
    media = MediaPart(kind.removesuffix("_url"), form, source, f"{prompt}[1].{kind}{suffix}", most)  # type: ignore[arg-type]
    assert request.prompt.parts == (TextPart("a"), media, TextPart("b"))
    assert request.prompt.text == "ab"


def test_twenty_media_parts_are_allowed() -> None:
    part = {"type": "image_url", "image_url": "/data/a.png"}
    request = call(GENERATE, json.dumps({"inputs": [part] * 20}).encode()).request
    assert isinstance(request.prompt, TextPrompt)
    assert len(request.prompt.parts) == 20


@pytest.mark.parametrize(("path", "prompt", "mebibytes"), [(GENERATE, "inputs", 40), (TRITON, "text_input", 20)])
def test_base64_media_are_measured_when_decoded(path: str, prompt: str, mebibytes: int) -> None:
    def outcome(size: int) -> object:
        whole, rest = divmod(size, 3)
        data = "AAAA" * whole + ("", "AA==", "AAA=")[rest]
        body = f'{{"{prompt}":[{{"type":"image_url","image_url":"data:image/png;base64,{data}"}}]}}'
        return call_or_reply(path, body.encode())

    limit = mebibytes * MiB
    assert not isinstance(outcome(limit), Reply)
    refused = outcome(limit + 1)
    assert isinstance(refused, Reply)
    assert (
        f"`{prompt}[0].image_url` must be image data of at most {limit} bytes, got {limit + 1} bytes"
        in json.loads(refused.body)["error"]
    )
