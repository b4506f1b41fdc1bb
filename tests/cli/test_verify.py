"""`interlingua verify` in its short form, on a tiny model; and that it finds what it is for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest
from command_line import refused, run
from tiny_adapters import adapter_weights, module_shapes, write_adapter
from tiny_models import write_tiny_model

from interlingua.cli import assemble, verify
from interlingua.cli.options import Options
from interlingua.cli.verify_requests import KINDS, draw_cases
from interlingua.contract.errors import GenerationError
from interlingua.contract.events import Answer, FinishReason, Summary, TextToken, Timing, TokenText
from interlingua.engine.native.blocks import block_keys
from interlingua.engine.native.engine import NativeEngine, NativeOptions
from interlingua.engine.native.load import load_model
from interlingua.hub.files import ModelFiles, from_folder
from interlingua.service.service import ServedModel

VOCAB = 128
FORCED = ("preempted", "preempted, with the cache", "cold cache, then warm")


class AsciiTokenizer:
    """A token for each ASCII character; ids 1 and 2 are special."""

    token_bytes = tuple(bytes([value]) for value in range(VOCAB))
    special_ids = frozenset({1, 2})
    eos_ids = frozenset({2})
    bos_id = None
    prefix_space = False

    def id_to_text(self, token_id: int) -> str:
        return self.token_bytes[token_id].decode()

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [min(value, VOCAB - 1) for value in text.encode()]

    def encode_with_offsets(self, text: str, add_special: bool = True) -> Sequence[object]:
        raise NotImplementedError


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return from_folder(write_tiny_model("mha_untied", tmp_path_factory.mktemp("tiny")), "tiny")


@pytest.fixture(scope="module")
def adapters(files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Name and folder of two adapters for all linear layers."""
    shapes = module_shapes(load_model(files, NativeOptions(threads=1)).config)
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: str(write_adapter(folder / name, adapter_weights(shapes, name, rank)))
        for name, rank in (("first", 4), ("second", 16))
    }


@pytest.fixture
def tiny(files: ModelFiles, adapters: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command loads the tiny model and two adapters."""

    async def load(options: Options) -> ServedModel:
        names = ("threads", "kv_memory", "max_batch_tokens", "max_batch_size", "prefix_cache", "speculate", "isa")
        tokenizer = AsciiTokenizer()
        engine = NativeEngine(files, NativeOptions(**{name: getattr(options, name) for name in names}), None, tokenizer)
        await engine.start()
        for name, path in adapters.items():
            await engine.load_adapter(name, path)
        return ServedModel("tiny", engine, tokenizer)  # type: ignore[arg-type]

    monkeypatch.setattr(assemble, "load", load)


def test_a_short_proof(tiny: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.run(Options(requests=48)) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1].startswith("verified: ")
    for kind in KINDS:
        assert kind.name in said
    for name in (*FORCED, "in company", "in steps of 16", "in batches", "alone", "1 thread", "2 threads", "scalar"):
        assert name in said
    assert "DIFFER" not in said and "NOT FORCED" not in said and "scalar kernels" in said


def test_a_cache_that_mixes_prompts_up_is_found(
    tiny: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys that forget what a block holds: only surroundings with the cache are wrong, and the exit code says so."""

    def forgetful(ids: Sequence[int], size: int, parent: bytes = b"", first: int = 0) -> list[bytes]:
        keys = block_keys(ids, size, parent, first)
        return [bytes([first + place]) for place in range(len(keys))]

    monkeypatch.setattr("interlingua.engine.native.scheduler.block_keys", forgetful)
    assert verify.run(Options(requests=34)) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("not verified: ") and "cold cache, then warm" in last
    assert "one by one" not in last and "in company" not in last


def test_what_cannot_be_forced_is_not_proved(
    tiny: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        verify, "surroundings", lambda options, tight: [verify.Surrounding("idle", forced=lambda _: "")]
    )
    assert verify.run(Options(requests=4)) == 1
    said = capsys.readouterr().out
    assert "NOT FORCED" in said and said.endswith("not verified: idle; more requests force more (--requests)\n")


def test_a_request_that_fails_is_a_difference(
    tiny: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In company alone; the others go on."""
    add_sampler = NativeEngine._add_sampler
    asked: list[str] = []

    def break_second(engine: NativeEngine, request: object) -> int:
        name = request.request_id  # type: ignore[attr-defined]
        asked.append(name)
        if name == "case-0" and asked.count(name) == 2:
            raise RuntimeError("injected")
        return add_sampler(engine, request)  # type: ignore[arg-type]

    monkeypatch.setattr(NativeEngine, "_add_sampler", break_second)
    assert verify.run(Options(requests=4)) == 1
    said = capsys.readouterr().out
    assert "case-0 (greedy): failed: " in said and said.count("1 DIFFER") == 1


def test_the_requests_are_the_same_each_time_and_fit(tiny: None) -> None:
    async def draw() -> tuple[object, ...]:
        model = await assemble.load(Options())
        try:
            first, second, other = draw_cases(model, 200, 1), draw_cases(model, 200, 1), draw_cases(model, 200, 2)
            assert all(case.tokens <= model.engine.info.max_context for case in first)
        finally:
            await model.engine.stop()
        return first, second, other

    first, second, other = asyncio.run(draw())
    assert first == second != other


def test_the_command_line_of_it() -> None:
    assert "must be an integer" in refused(run("verify", "--requests", "0"))
    assert "some/folder" in refused(run("verify", "./some/folder"))


# --- comparing -------------------------------------------------------------------------------------------


def answer(
    *,
    text: str = "ab",
    seed: int = 1,
    reason: FinishReason = FinishReason.LENGTH,
    logprob: float = -0.5,
    token: int = 97,
    top: float = -0.5,
    prefill: float = -1.0,
    count: int = 2,
    elapsed: float = 1.0,
) -> Answer:
    summary = Summary(text, reason, count, 2, seed, Timing(arrived=elapsed))
    tops = (TokenText(97, "a", top, False),)
    first = TextToken(1, 97, "a", -0.25, False, elapsed, tops)
    last = TextToken(2, token, "b", logprob, False, elapsed, (), summary)
    rows = (TokenText(1, "", None, True), TokenText(2, "x", prefill, False))
    return Answer(summary, rows, (first, last)[:count])


NEXT = -0.49999999999999994  # the float beside -0.5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"elapsed": 7.0}, ""),
        ({"logprob": NEXT}, "answer 0, token 1: "),
        ({"token": 99}, "answer 0, token 1: "),
        ({"top": NEXT}, "answer 0, token 0: "),
        ({"prefill": -1.0000000000000002}, "answer 0, prompt token 1: "),
        ({"count": 1}, "answer 0, 1 tokens, not 2"),
        ({"text": "ac"}, "answer 0, text: 'ac', not 'ab'"),
        ({"seed": 2}, "answer 0, seed: 2, not 1"),
        ({"reason": FinishReason.EOS}, "answer 0, finish_reason: "),
    ],
)
@pytest.mark.parametrize("place", ["first", "alternative"])
def test_every_difference_is_seen(
    changes: dict[str, object], said: str, place: Literal["first", "alternative"]
) -> None:
    changed = answer(**changes)  # type: ignore[arg-type]
    if place == "first":
        expected, got = answer(), changed
    else:
        expected, got = (replace(answer(), alternatives=(one,)) for one in (answer(), changed))
        said = said.replace("answer 0", "answer 1")
    found = verify.find_difference(expected, got)
    assert found.startswith(said) and bool(found) == bool(said)


def test_missing_answers_and_failures_are_seen() -> None:
    several = replace(answer(), alternatives=(answer(),))
    assert verify.find_difference(several, answer()) == "1 answers, not 2"
    assert verify.find_difference(answer(), GenerationError("bad")) == "failed: bad"
