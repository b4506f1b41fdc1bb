"""Answers held to grammars: they belong to the language, and nobody's answer depends on anybody's mask."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_engine import BLOCK_BYTES, Running, collect, essence, idle, make_request
from tiny_models import write_tiny_model

from interlingua.contract.errors import GenerationError, NotSupportedError, UnavailableError, ValidationError
from interlingua.contract.events import EngineEvent, FailedEvent, FinishedEvent, FinishReason, StartedEvent, TokenEvent
from interlingua.contract.request import Grammar, PreparedRequest, SamplingParams
from interlingua.engine.native import guide as module
from interlingua.engine.native.engine import NativeEngine
from interlingua.engine.native.guide import Guide, Guides
from interlingua.hub.files import ModelFiles, from_folder

EOS = 2
SPELLED = [*(chr(c) for c in range(32, 127) if chr(c) not in "@^`~"), "ab", '": ']  # ids 3..95


def token(text: str) -> int:
    return 3 + SPELLED.index(text)


class Characters:
    """A vocabulary of ASCII characters, for the tiny model's 96 ids."""

    token_bytes: Sequence[bytes] = (b"", b"<s>", b"</s>", *(text.encode() for text in SPELLED))
    special_ids: Collection[int] = frozenset({0, 1, EOS})
    eos_ids: Collection[int] = frozenset({EOS})
    prefix_space = False

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [token(character) for character in text]


WORDS = Characters()


def text_of(events: list[EngineEvent]) -> str:
    ids = [event.token_id for event in events if isinstance(event, TokenEvent)]
    return b"".join(WORDS.token_bytes[i] for i in ids if i != EOS).decode()


def guided(request: PreparedRequest, kind: Any, value: object, **more: Any) -> PreparedRequest:
    text = value if isinstance(value, str) else json.dumps(value)
    return replace(request, grammar=Grammar(kind, text), **more)


def ending(events: list[EngineEvent]) -> FinishReason:
    assert isinstance(events[-1], FinishedEvent), events[-1]
    return events[-1].reason


def error(events: list[EngineEvent]) -> Exception:
    assert isinstance(events[-1], FailedEvent), events[-1]
    return events[-1].error


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return from_folder(write_tiny_model("gqa_tied", tmp_path_factory.mktemp("tiny")), "tiny")


def run(files: ModelFiles, **options: object) -> Running:
    running = Running(files, **options)
    running.engine = NativeEngine(files, running.engine._options, None, WORDS)
    return running


PERSON = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
}
REGEX = "[a-d]{40,60}(-[0-9]{2})+"


def belongs(request: PreparedRequest, text: str) -> bool:
    grammar = request.grammar
    assert grammar is not None
    if grammar.kind == "regex":
        return re.fullmatch(grammar.value, text) is not None
    if grammar.kind == "choice":
        return text in json.loads(grammar.value)
    if grammar.kind == "lark":
        return re.fullmatch("(a[0-9])*z", text) is not None
    value = json.loads(text)
    return list(value) == ["a", "b"] and 0 <= value["a"] <= 99 and value["b"] in ("x", "yy")


GRAMMARS: list[tuple[Any, object]] = [
    ("json_schema", PERSON),
    ("regex", REGEX),
    ("choice", ["abab", "b|c", "a.b", "\\d", "ab ab"]),
    ("lark", 'start: ("a" NUMBER)* "z"\nNUMBER: /[0-9]/'),
]


def mixed(count: int, new: int = 90) -> list[PreparedRequest]:
    """Requests of all kinds of sampling; every fourth is free, the others follow grammars in turn."""
    requests = [make_request(200 + i, 3 + 7 * i % 60, new, sample=i % 5 != 0) for i in range(count)]
    return [
        r if i % 4 == 3 else guided(r, *GRAMMARS[i % len(GRAMMARS)], stop_token_ids=frozenset({EOS}))
        for i, r in enumerate(requests)
    ]


@pytest.fixture(scope="module")
def solo(tiny: ModelFiles) -> dict[PreparedRequest, list[object]]:
    async def answers() -> dict[PreparedRequest, list[object]]:
        async with run(tiny, prefix_cache=False) as engine:
            return {request: essence(await collect(engine, request)) for request in mixed(16)}

    return asyncio.run(answers())


async def test_answers_belong_to_their_grammars(tiny: ModelFiles) -> None:
    ended = 0
    async with run(tiny) as engine:
        for request in mixed(24, new=120):
            if request.grammar is None:
                continue
            events = await collect(engine, request)
            if ending(events) is FinishReason.EOS:
                ended += 1
                assert belongs(request, text_of(events)), (request.grammar, text_of(events))
        await idle(engine)
    assert ended >= 12


async def test_company_is_invisible(tiny: ModelFiles, solo: dict[PreparedRequest, list[object]]) -> None:
    """In one batch, with a pool that forces preemptions, with masks that come late at random: the same answers."""
    draw = random.Random(5)
    advance = Guide.advance

    def late(self: Guide, token: int) -> None:
        if draw.random() < 0.3:
            time.sleep(draw.random() * 0.01)
        advance(self, token)

    for options in ({}, {"kv_memory": 6 * BLOCK_BYTES}, {"max_batch_tokens": 16, "threads": 1}):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Guide, "advance", late)
            async with run(tiny, **options) as engine:
                requests = list(solo)
                draw.shuffle(requests)
                answers = await asyncio.wait_for(asyncio.gather(*(collect(engine, r) for r in requests)), 120)
                assert "kv_memory" not in options or engine.stats().preemptions_total > 0
                await idle(engine)
        for request, events in zip(requests, answers, strict=True):
            assert essence(events) == solo[request]


async def test_children_of_one_group_each_have_a_matcher(tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share the prompt's blocks, not their places in the grammar; also where masks come late."""
    base = guided(make_request(31, 70, 80), "regex", REGEX)
    children = [replace(base, sampling=replace(base.sampling, do_sample=True, seed=i)) for i in range(6)]
    async with run(tiny, prefix_cache=False) as engine:
        alone = [essence(await collect(engine, child)) for child in children]
    assert len({repr(events) for events in alone}) > 3
    advance, draw = Guide.advance, random.Random(3)

    def late(self: Guide, token: int) -> None:
        time.sleep(draw.choice((0, 0, 0.005)))
        advance(self, token)

    monkeypatch.setattr(Guide, "advance", late)
    for options in ({}, {"kv_memory": 9 * BLOCK_BYTES}):
        async with run(tiny, **options) as engine:
            together = await asyncio.wait_for(
                asyncio.gather(*(collect(engine, replace(child, group="g")) for child in children)), 60
            )
            await idle(engine)
        assert [essence(events) for events in together] == alone


class Gate:
    """Holds up every mask until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.waiting = threading.Event()
        advance = Guide.advance

        def held(guide: Guide, token: int) -> None:
            self.waiting.set()
            assert self.open.wait(60)
            advance(guide, token)

        patch.setattr(Guide, "advance", held)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    yield made
    made.open.set()


async def until(what: Callable[[], bool]) -> None:
    for _ in range(6_000):
        if what():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nothing happened for a minute")


async def test_a_late_mask_holds_up_its_own_row_alone(tiny: ModelFiles, gate: Gate) -> None:
    slow = guided(make_request(1, 9, 40), "regex", REGEX)
    free = make_request(2, 20, 60, stops=False)
    async with run(tiny) as engine:
        held = asyncio.create_task(collect(engine, slow))
        await until(gate.waiting.is_set)
        neighbour = await asyncio.wait_for(collect(engine, free), 60)  # ends while the other waits
        assert len([e for e in neighbour if isinstance(e, TokenEvent)]) == 60 and not held.done()
        await until(lambda: engine._scheduler is not None and all(s.sits_out for s in engine._scheduler.running))
        steps = engine.stats().steps_total
        await asyncio.sleep(0.05)
        assert engine.stats().steps_total == steps, "nothing is computed while all sit out"
        gate.open.set()
        late = await asyncio.wait_for(held, 60)
        assert essence(late) == essence(await collect(engine, slow))
        assert essence(neighbour) == essence(await collect(engine, free))
        await idle(engine)


async def test_leaving_while_the_mask_is_late(tiny: ModelFiles, gate: Gate) -> None:
    async with run(tiny) as engine:
        stream = engine.generate(guided(make_request(1, 9, 40), "regex", REGEX))
        assert isinstance(await anext(stream), StartedEvent)
        await until(gate.waiting.is_set)
        await stream.aclose()
        await idle(engine)
        held = asyncio.create_task(collect(engine, guided(make_request(1, 9, 40), "regex", REGEX)))
        await until(lambda: engine.stats().running == 1)
        await engine.stop()
        assert "stopping" in str(error(await held))


async def test_one_compile_for_all_and_none_for_the_broken(tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Grammar] = []
    compile_one = Guides.compile

    def counted(self: Guides, grammar: Grammar) -> Guide:
        compiled.append(grammar)
        return compile_one(self, grammar)

    monkeypatch.setattr(Guides, "compile", counted)
    good, bad = guided(make_request(1, 9, 30), "regex", REGEX), guided(make_request(2, 9, 30), "regex", "(")
    async with run(tiny) as engine:
        answers = await asyncio.gather(*(collect(engine, r) for r in [good] * 8 + [bad] * 4))
        assert len({repr(essence(events)) for events in answers[:8]}) == 1
        assert compiled.count(good.grammar) == 1  # type: ignore[arg-type]
        for events in answers[8:]:
            problem = error(events)
            assert isinstance(problem, ValidationError) and problem.field == "grammar" and "unclosed" in str(problem)
        await collect(engine, bad)
        assert compiled.count(bad.grammar) == 2, "a failure is not kept"  # type: ignore[arg-type]
        monkeypatch.setattr(module, "CACHED", 2)
        for pattern in ("a", "b", "c"):
            await collect(engine, guided(make_request(1, 9, 2), "regex", pattern))
        assert len(engine._guides._compiled) <= 4  # type: ignore[union-attr]
        await idle(engine)


async def test_a_fault_while_compiling_is_not_kept(tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Guides, grammar: Grammar) -> Guide:
        raise MemoryError

    request = guided(make_request(1, 9, 30), "regex", REGEX)
    async with run(tiny) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(Guides, "compile", broken)
            assert isinstance(error(await collect(engine, request)), GenerationError)
        assert isinstance((await collect(engine, request))[-1], FinishedEvent)


async def test_leaving_and_running_out_of_time_while_compiling(
    tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = threading.Event()
    compile_one = Guides.compile

    def held(self: Guides, grammar: Grammar) -> Guide:
        assert opened.wait(60)
        return compile_one(self, grammar)

    monkeypatch.setattr(Guides, "compile", held)
    request = guided(make_request(1, 9, 30), "regex", REGEX)
    async with run(tiny) as engine:
        leaving = asyncio.create_task(collect(engine, request))
        staying = asyncio.create_task(collect(engine, request))
        free = await asyncio.wait_for(collect(engine, make_request(3, 9, 30)), 60)
        assert isinstance(free[-1], FinishedEvent), "others run meanwhile"
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert leaving.cancelled() and not staying.done()
        monkeypatch.setattr(module, "COMPILE_SECONDS", 0.05)
        problem = error(await asyncio.wait_for(collect(engine, request), 60))
        assert isinstance(problem, ValidationError) and "within 0.05 seconds" in str(problem)
        opened.set()
        assert isinstance((await asyncio.wait_for(staying, 60))[-1], FinishedEvent)
        await idle(engine)


async def test_a_grammar_that_fails_when_its_request_has_left(
    tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio would log its message, with a piece of the client's grammar and a traceback."""
    opened, started = threading.Event(), threading.Event()
    complaints: list[object] = []

    def held(self: Guides, grammar: Grammar) -> Guide:
        started.set()
        assert opened.wait(60)
        raise ValidationError("grammar", "came too late")

    monkeypatch.setattr(Guides, "compile", held)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    request = guided(make_request(1, 9, 30), "regex", REGEX)
    async with run(tiny) as engine:
        leaving = asyncio.create_task(collect(engine, request))
        await asyncio.to_thread(started.wait)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        opened.set()
        assert "too late" in str(error(await asyncio.wait_for(collect(engine, request), 60)))
        await idle(engine)
    del leaving
    gc.collect()
    assert complaints == []


async def test_stopping_while_compiling(tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grammars that are being compiled, and those that wait for it: everybody is told, nobody waits."""
    opened, started = threading.Event(), threading.Semaphore(0)

    def held(self: Guides, grammar: Grammar) -> Guide:
        started.release()
        assert opened.wait(60)
        raise ValidationError("grammar", "came too late")

    monkeypatch.setattr(Guides, "compile", held)
    async with run(tiny) as engine:
        tasks = [
            asyncio.create_task(collect(engine, guided(make_request(i, 9, 5), "regex", f"a{{{i}}}")))
            for i in range(1, 6)
        ]
        for _ in range(2):
            await asyncio.to_thread(started.acquire)
        await engine.stop()
        waiting = await asyncio.wait_for(asyncio.gather(*tasks[2:]), 60)
        assert all(isinstance(error(events), UnavailableError) for events in waiting)
        opened.set()
        await asyncio.wait_for(asyncio.gather(*tasks[:2]), 60)
        late = await collect(engine, guided(make_request(9, 9, 5), "regex", "b"))
        assert isinstance(error(late), UnavailableError)


async def test_a_limit_in_mid_answer_ends_that_request_alone(
    tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch, solo: dict[PreparedRequest, list[object]]
) -> None:
    from llguidance import LLParserLimits

    # Each "a" adds 200 to the places from which the pattern may go on: some answers outgrow 60 states.
    limits = LLParserLimits(step_lexer_fuel=50_000, max_lexer_states=60, verbose_errors=False)
    hard = [guided(make_request(i, 9, 90), "regex", ".*a.{1,200}b.*ab") for i in range(6)]
    easy = [r for r in solo if r.grammar is None]
    monkeypatch.setattr(module, "_limits", lambda: limits)
    async with run(tiny) as engine:
        answers = await asyncio.wait_for(asyncio.gather(*(collect(engine, r) for r in [*hard, *easy])), 60)
        await idle(engine)
    failed = [events for events in answers[:6] if isinstance(events[-1], FailedEvent)]
    assert failed and all(isinstance(error(events), ValidationError) for events in failed)
    assert any(len(events) > 2 for events in failed), "in mid-answer"
    assert "too many states" in str(error(failed[0]))
    assert [essence(events) for events in answers[6:]] == [solo[r] for r in easy]


async def test_a_fault_in_one_mask_ends_that_request_alone(
    tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch, solo: dict[PreparedRequest, list[object]]
) -> None:
    requests = [r for r in solo if r.grammar is not None]
    compute, count = Guide.compute, [0]

    def faulty(self: Guide) -> None:
        count[0] += 1
        if count[0] == 40:
            raise RuntimeError("injected")
        compute(self)

    monkeypatch.setattr(Guide, "compute", faulty)
    async with run(tiny) as engine:
        answers = await asyncio.wait_for(asyncio.gather(*(collect(engine, r) for r in requests)), 60)
        await idle(engine)
    failed = [events for events in answers if isinstance(events[-1], FailedEvent)]
    assert len(failed) == 1 and isinstance(error(failed[0]), GenerationError)
    whole = [(r, events) for r, events in zip(requests, answers, strict=True) if events is not failed[0]]
    assert all(essence(events) == solo[r] for r, events in whole)


@pytest.mark.parametrize("sample", [False, True])
async def test_the_end_of_the_language(tiny: ModelFiles, sample: bool) -> None:
    base = make_request(11, 9, 60, sample=sample)
    async with run(tiny) as engine:
        # one text alone: it comes whole, then EOS and nothing else
        events = await collect(engine, guided(base, "regex", "d{7}"))
        assert text_of(events) == "d" * 7 and ending(events) is FinishReason.EOS
        assert [e.token_id for e in events if isinstance(e, TokenEvent)][-1] == EOS
        # EOS held back: it comes where nothing else can, and ends the answer even so
        events = await collect(engine, guided(base, "regex", "d{2,6}", min_new_tokens=60))
        assert text_of(events) == "d" * 6 and ending(events) is FinishReason.EOS
        # without EOS among its stop ids, too
        events = await collect(engine, guided(base, "regex", "d{7}", stop_token_ids=frozenset()))
        assert text_of(events) == "d" * 7 and ending(events) is FinishReason.EOS
        # length comes first
        events = await collect(engine, guided(base, "regex", "d{7}", max_new_tokens=7))
        assert text_of(events) == "d" * 7 and ending(events) is FinishReason.LENGTH
        await idle(engine)


async def test_hostile_company(tiny: ModelFiles) -> None:
    """Bias, penalties and filters have only what the mask leaves."""
    banned = ((token("d"), -100.0),)
    settings = [
        {"logit_bias": banned},
        {"logit_bias": ((token("x"), 100.0),)},
        {"top_k": 1},
        {"top_k": 1_000_000},
        {"top_p": 1e-9},
        {"typical_p": 1e-9},
        {"min_p": 1.0},
        {"temperature": 1e-6},
        {"temperature": 1e6},
        {"repetition_penalty": 1e6},
    ]
    async with run(tiny) as engine:
        requests = [
            guided(make_request(i, 9, 60), "regex", "d{5}", sampling=SamplingParams(do_sample=True, seed=i, **each))  # type: ignore[arg-type]
            for i, each in enumerate(settings)
        ]
        for request, events in zip(
            requests, await asyncio.gather(*(collect(engine, r) for r in requests)), strict=True
        ):
            assert text_of(events) == "ddddd" and ending(events) is FinishReason.EOS, request.sampling
        await idle(engine)


async def test_logprobs_are_the_raw_models(tiny: ModelFiles) -> None:
    """A forced text has the logprobs that the same text has as a prompt."""
    base = make_request(12, 9, 60, sample=False)
    forced = "Hello, world"
    async with run(tiny, prefix_cache=False) as engine:
        events = await collect(engine, guided(base, "regex", forced, top_n_tokens=2))
        tokens = [e for e in events if isinstance(e, TokenEvent)]
        ids = tuple(t.token_id for t in tokens)
        assert text_of(events) == forced
        scored = replace(base, prompt_ids=base.prompt_ids + ids, prompt_logprobs=True, max_new_tokens=1)
        started = (await collect(engine, scored))[0]
    assert isinstance(started, StartedEvent) and started.prompt_logprobs is not None
    assert list(started.prompt_logprobs[-len(ids) :]) == [t.logprob for t in tokens]
    assert any(t.token_id not in [i for i, _ in t.top] for t in tokens), "top tokens are not the mask's"


async def test_no_vocabulary_no_grammar(tiny: ModelFiles) -> None:
    async with Running(tiny) as engine:
        assert "grammar" in engine.info.unsupported
        problem = error(await collect(engine, guided(make_request(1, 9, 5), "regex", "a")))
        assert isinstance(problem, NotSupportedError)
        await idle(engine)


def test_the_vocabulary_is_cut_or_filled_to_the_models_width(tmp_path: Path) -> None:
    """A tokenizer that is narrower or wider than the logits, and an EOS that the model does not have."""

    class Wide(Characters):
        token_bytes = (*Characters.token_bytes, *([b"q"] * 10))
        eos_ids = frozenset({EOS, 100})

    guides = Guides(Wide(), 96, lambda: None)
    assert guides._tokenizer.vocab_size == 96 and guides._tokenizer.eos_tokens == [EOS]
    guides.close()

    class Narrow(Characters):
        token_bytes = Characters.token_bytes[:50]

    guides = Guides(Narrow(), 96, lambda: None)
    guide = asyncio.run(guides.make(Grammar("regex", "[ -/]*")))
    allowed = [i for i in range(96) if guide.allowed[i // 32] >> i % 32 & 1]
    assert allowed == [EOS, *range(token(" "), token("/") + 1)]
    guides.close()
    assert not Guides.fits(Wide(), 2)


def test_forced_texts_are_spelled_as_the_model_would_and_never_otherwise() -> None:
    """A tokenizer that puts a space before every text, one that knows other tokens than it says, and one in order."""

    class Spaced(Characters):
        prefix_space = True

        def encode(self, text: str, add_special: bool = True) -> list[int]:
            return [token(" "), *(0 if character == "\x02" else token(character) for character in text)]

    class Wrong(Characters):
        def encode(self, text: str, add_special: bool = True) -> list[int]:
            return [token("x"), 1_000] if "a" in text else []

    for vocabulary in (Spaced(), Wrong(), Characters()):
        guides = Guides(vocabulary, 96, lambda: None)
        guide = asyncio.run(guides.make(Grammar("regex", "baab c")))
        text = ""
        while not guide.allowed[EOS // 32] >> EOS & 1:
            (chosen,) = [i for i in range(96) if guide.allowed[i // 32] >> i % 32 & 1][:1]
            text += vocabulary.token_bytes[chosen].decode()
            guide.expect()
            guide.advance(chosen)
            assert not guide.failed
        assert text == "baab c"
        guides.close()
