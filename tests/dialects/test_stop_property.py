"""Random texts, tokenisations and stops on every text route: joined stream = answer = a plain search in the text.

From a body to the bytes that go out: decoded, run by the service on the scripted engine, encoded.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from wire import call
from wire_cases import GENERATE, MODEL, ROOT, STREAM, TRITON, TRITON_STREAM

from interlingua.contract.events import Answer, FinishReason, TextEvent, TextToken, fold
from interlingua.contract.request import GenerationRequest, PreparedRequest, SamplingRequest, StopMode
from interlingua.engine.echo import EchoEngine, Script
from interlingua.service.choices import child_seed
from interlingua.service.service import ServedModel, Service

SEED = 7
KEEPS = (ROOT,)  # routes on which the stop itself stays in the text


class Pieces:
    """A vocabulary of these byte strings, and the end of a text after them. Prompts are token 0."""

    bos_id = None

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.token_bytes = [*pieces, b"</s>"]
        self.eos_ids = self.special_ids = frozenset({len(pieces)})

    def id_to_text(self, token_id: int) -> str:
        return self.token_bytes[token_id].decode()

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [0]

    def encode_with_offsets(self, text: str, add_special: bool = True) -> Sequence[Any]:
        raise NotImplementedError


@dataclass(frozen=True)
class Told:
    """A text in tokens, twice: two tokenisations of the same bytes."""

    first: tuple[bytes, ...]
    second: tuple[bytes, ...]


few = st.sampled_from("ab é😀\n")


@st.composite
def told(draw: st.DrawFn) -> Told:
    data = draw(st.text(few, max_size=30)).encode()
    if draw(st.booleans()):  # bytes that are no character, in the middle or at the end
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.sampled_from([b"\xff", b"\xe4\xbd", b"\xf0\x9f\x98"])) + data[at:]

    def cut() -> tuple[bytes, ...]:
        cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=20)) | {0, len(data)})
        return tuple(data[a:b] for a, b in itertools.pairwise(cuts))

    return Told(cut(), cut())


def text_of(tokens: Sequence[bytes]) -> str:
    """The characters; a last one that is incomplete is dropped, what is broken elsewhere is U+FFFD."""
    data = b"".join(tokens)
    begins = next((at for at in range(max(0, len(data) - 3), len(data)) if _is_cut_short(data[at:])), len(data))
    return data[:begins].decode("utf-8", "replace")


def _is_cut_short(end: bytes) -> bool:
    """The bytes are the beginning of one character."""
    try:
        end.decode()
    except UnicodeDecodeError as problem:
        return problem.start == 0 and problem.reason == "unexpected end of data"
    return False


def expected(tokens: Sequence[bytes], stops: Sequence[str], keep: bool, limit: int) -> tuple[str, FinishReason, int]:
    """Text, reason and number of tokens by plain search: of all matches the one that ends first, then the longest."""
    for heard in range(1, limit + 1):
        text = text_of(tokens[:heard])
        ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
        over = heard > len(tokens)  # the end-of-text token
        if ends or over or heard == limit:
            end, length = min(ends, default=(len(text), 0))
            # Length comes before the end of the text, and that before a stop.
            reason = FinishReason.LENGTH if heard == limit else FinishReason.EOS if over else FinishReason.STOP
            return text[: end if keep else end + length], reason, heard
    raise AssertionError("a limit is at least 1")


def service_of(tellings: Sequence[Sequence[bytes]]) -> tuple[Service, EchoEngine]:
    """A service whose answer number i says the tokens of `tellings[i]`, then the end of the text."""
    pieces = [piece for tokens in tellings for piece in tokens]
    vocabulary = Pieces(pieces)
    eos = len(pieces)

    def say(request: PreparedRequest) -> Script:
        seeds = [child_seed(SEED, choice) for choice in range(len(tellings))]
        choice = seeds.index(request.sampling.seed) if request.sampling.seed in seeds else 0
        start = sum(map(len, tellings[:choice]))
        return Script(ids=(*range(start, start + len(tellings[choice])), eos))

    engine = EchoEngine(vocab_size=eos + 1, eos_id=eos, script=say)
    service = Service()
    service.attach(ServedModel(MODEL, engine, vocabulary))  # type: ignore[arg-type]
    return service, engine


async def events_of(service: Service, request: GenerationRequest) -> list[TextEvent]:
    return [event async for batch in service.generate(request) for event in batch]


def body_of(path: str, stops: list[str], limit: int, stream: bool) -> bytes:
    parameters: dict[str, Any] = {"max_new_tokens": limit, "seed": SEED, "details": True}
    triton = path.startswith("/v2")
    parameters["stop"] = stops
    body: dict[str, Any] = {"text_input" if triton else "inputs": "x", "parameters": parameters}
    return json.dumps(body | ({"stream": True} if stream and path == ROOT else {})).encode()


async def over_the_wire(service: Service, path: str, body: bytes) -> tuple[str, str]:
    """(text of the answer, texts of the stream joined) as a client of the route reads them; one of them is ""."""
    made = call(path, body)
    events = await events_of(service, made.request)
    if not made.stream:
        answer = json.loads(made.encoder.answer(fold(events)).body)
        answer = answer[0] if isinstance(answer, list) else answer
        return str(answer["text_output" if path == TRITON else "generated_text"]), ""
    frames = b"".join(map(made.encoder.event, events)).split(b"\n\n")
    told = [json.loads(frame.removeprefix(b"data: ")) for frame in frames if frame]
    if path == TRITON_STREAM:
        return "", "".join(event["text_output"] for event in told)
    return told[-1]["generated_text"], "".join(e["token"]["text"] for e in told if not e["token"]["special"])


stop_lists = st.lists(st.text(few, min_size=1, max_size=5), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(told(), stop_lists, st.integers(1, 25))
def test_every_route_tells_what_a_plain_search_finds(text: Told, stops: list[str], limit: int) -> None:
    async def run() -> None:
        service, engine = service_of([text.first])
        for path in (GENERATE, STREAM, ROOT, TRITON, TRITON_STREAM):
            wanted, _, heard = expected(text.first, stops, path in KEEPS, limit)
            for stream in (False, True) if path == ROOT else (path in (STREAM, TRITON_STREAM),):
                before = engine.stats().generated_tokens_total
                answer, joined = await over_the_wire(service, path, body_of(path, stops, limit, stream))
                assert (joined if path == TRITON_STREAM else answer) == wanted, path
                assert not stream or joined == wanted, path
                assert engine.stats().generated_tokens_total - before == heard, "the engine ran on, or not far enough"
        service.close()

    asyncio.run(run())


@settings(max_examples=150, deadline=None)
@given(told(), stop_lists, st.sampled_from(StopMode))
def test_the_text_does_not_depend_on_its_tokens(text: Told, stops: list[str], mode: StopMode) -> None:
    """Two answers of one request say the same bytes in other tokens; each is what the plain search finds."""

    async def run() -> tuple[list[TextEvent], Answer]:
        service, _ = service_of([text.first, text.second])
        sampling = SamplingRequest(do_sample=True, seed=SEED)
        request = call(GENERATE, body_of(GENERATE, stops, 100, False)).request
        request = replace(request, n=2, sampling=sampling, stop_mode=mode, max_new_tokens=100)
        events, answer = await events_of(service, request), await service.answer(request)
        service.close()
        return events, answer

    events, answer = asyncio.run(run())
    assert [one.summary.text for one in (answer, *answer.alternatives)] == [answer.summary.text] * 2
    for choice, tokens in enumerate((text.first, text.second)):
        wanted, reason, heard = expected(tokens, stops, mode is StopMode.KEEP, 100)
        mine = [event for event in events if isinstance(event, TextToken) and event.choice == choice]
        assert "".join(token.text for token in mine if not token.special) == wanted
        summary = mine[-1].summary
        assert summary is not None
        assert (summary.text, summary.finish_reason, summary.generated_tokens) == (wanted, reason, heard)
        assert len(mine) == heard and [token.index for token in mine] == list(range(1, heard + 1))
