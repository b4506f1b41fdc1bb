"""`interlingua detect-watermark` on answers that transformers has judged (scripts/golden/make_watermark.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import refused, run

from interlingua.cli.detect import ids_of
from interlingua.hub import resolve
from interlingua.text.tokenizer import Tokenizer

MODEL = "smollm2-135m-instruct"
GOLDEN = np.load(Path(__file__).parents[1] / "data" / "golden" / "watermark.npz")
MARKED, PLAIN = GOLDEN["answers"][0].tolist(), GOLDEN["answers"][-1].tolist()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(resolve(MODEL))


def report(*arguments: str) -> dict[str, str]:
    """The lines of the command's report."""
    result = run("detect-watermark", MODEL, *arguments)
    assert result.returncode == 0, result.stderr
    return dict(line.split(maxsplit=1) for line in result.stdout.splitlines())


@pytest.mark.parametrize(("ids", "number", "verdict"), [(MARKED, 0, "watermarked"), (PLAIN, -1, "no watermark seen")])
def test_ids_give_the_golden_figures(tmp_path: Path, ids: list[int], number: int, verdict: str) -> None:
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    found = report(str(tmp_path / "ids.json"))
    assert int(found["pairs"]) == GOLDEN["scored"][number]
    assert found["green"].startswith(f"{int(GOLDEN['hits'][number])} (")
    assert found["z"] == f"{GOLDEN['z'][number]:.4f}"
    assert found["p-value"] == f"{GOLDEN['p'][number]:.3g}"
    assert found["verdict"].startswith(verdict)


def test_the_share_is_an_option(tmp_path: Path) -> None:
    """Looked for with another share, the mark fades: the green lists of 0.25 are the first halves of those of 0.5."""
    (tmp_path / "ids.json").write_text(json.dumps(MARKED))
    assert "by chance 25.0%" in report(str(tmp_path / "ids.json"), "--watermark-gamma", "0.25")["green"]
    for share in ("0", "1", "x"):
        message = refused(run("detect-watermark", MODEL, "-", "--watermark-gamma", share))
        assert "--watermark-gamma" in message and "above 0 and below 1" in message and share in message


def test_every_form_of_an_answer_is_read(tokenizer: Tokenizer) -> None:
    text = b"".join(tokenizer.token_bytes[token] for token in MARKED).decode("utf-8", "replace")
    again = tokenizer.encode(text, add_special=False)
    tokens = [{"id": token, "text": "", "logprob": -1.0, "special": False} for token in MARKED]
    with_ids: list[Any] = [
        MARKED,
        [tokenizer.bos_id, *MARKED],
        {"generated_text": "other", "details": {"tokens": tokens}},
        [{"generated_text": "other", "details": {"tokens": tokens}}],
        {"text_output": "other", "details": {"perf_stat": [[token, 7] for token in MARKED]}},
        {"generated_text": "other", "details": {"generated_token_ids": MARKED}},
        {"outputs": [{"name": "output0", "shape": [1, len(MARKED)], "datatype": "UINT32", "data": MARKED}]},
    ]
    with_text: list[Any] = [
        {"generated_text": text},
        [{"generated_text": text, "details": {"tokens": []}}],
        {"text_output": text, "details": {"perf_stat": None}},
        {"choices": [{"message": {"role": "assistant", "content": text}}]},
        {"choices": [{"text": text}]},
        {"text": [text]},
        {"outputs": [{"name": "text_output", "shape": [1], "datatype": "BYTES", "data": [text]}]},
    ]
    for answer in with_ids:
        assert ids_of(json.dumps(answer), tokenizer) == MARKED, answer
    for answer in with_text:
        assert ids_of(json.dumps(answer), tokenizer) == again, answer
    assert ids_of(text, tokenizer) == again
    for literal in (
        '{"a": 1}',
        "[1.5, 2]",
        "[true]",
        "7",
        '{"outputs": [7, {"name": []}]}',
    ):  # JSON, and no answer: a text like any other
        assert ids_of(literal, tokenizer) == tokenizer.encode(literal, add_special=False)


def test_every_form_of_a_stream_is_read(tokenizer: Tokenizer) -> None:
    pieces = [tokenizer.token_bytes[token].decode("utf-8", "replace") for token in MARKED]
    text = "".join(pieces)
    again = tokenizer.encode(text, add_special=False)

    def sse(events: list[Any], end: str = "") -> str:
        return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + end

    costs = {"text_output": "", "details": {"perf_stat": [[token, 7] for token in MARKED]}}
    with_ids = [
        sse([{"index": 1, "token": {"id": token, "text": "x"}, "generated_text": None} for token in MARKED]),
        sse([{"token": {"id": [token], "text": "x"}} for token in MARKED] + [{"token": {"id": [], "text": ""}}]),
        sse([*({"text_output": piece} for piece in pieces), costs]),
        sse([{"token": {"id": token}} for token in MARKED], end='data: {"token": {"id'),  # cut off
    ]
    other = {"choices": [{"index": 1, "text": "other", "delta": {"content": "other"}}]}
    so_far = [{"text": [text[:at], "other"]} for at in range(1, len(text) + 1)]
    with_text = [
        sse([other, *({"choices": [{"index": 0, "text": piece}]} for piece in pieces)], end="data: [DONE]\n\n"),
        sse([*({"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces), other, {"choices": []}]),
        sse([{"text_output": piece} for piece in pieces]).replace("data: ", "data:").replace("\n", "\r\n"),
        sse(so_far),
        "".join(json.dumps(event) + "\n" for event in so_far),
        "".join(json.dumps(event) + "\0" for event in so_far),
    ]
    for stream in with_ids:
        assert ids_of(stream, tokenizer) == MARKED, stream[:200]
    for stream in with_text:
        assert ids_of(stream, tokenizer) == again, stream[:200]
    assert ids_of('{"a": 1}\n{"b": 2}', tokenizer) == tokenizer.encode('{"a": 1}\n{"b": 2}', add_special=False)


def test_a_text_alone_shows_its_mark(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for ids, verdict in ((MARKED, "watermarked"), (PLAIN, "no watermark seen")):
        text = b"".join(tokenizer.token_bytes[token] for token in ids)
        (tmp_path / "text.txt").write_bytes(text.decode("utf-8", "replace").encode())
        assert report(str(tmp_path / "text.txt"))["verdict"].startswith(verdict)


def test_what_cannot_be_judged_is_refused_in_one_line(tmp_path: Path) -> None:
    streams = (
        ("data: [DONE]", "no event"),
        ('data: {"error": "too busy"}', "too busy"),
        ("data: x", "no event"),
        ('data: {"choices": 7}', "no event"),
    )
    for content, says in (
        ("[5]", "two tokens"),
        ("", "two tokens"),
        ("[1, 49152]", "49152"),
        ("[-1, 2]", "-1"),
        *streams,
    ):
        (tmp_path / "bad").write_text(content)
        message = refused(run("detect-watermark", MODEL, str(tmp_path / "bad")))
        assert says in message and "bad" in message
    assert "No such file" in refused(run("detect-watermark", MODEL, str(tmp_path / "none")))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in refused(run("detect-watermark", MODEL, str(tmp_path / "binary")))
