"""The requests of `interlingua verify`: every kind that a client can make, drawn from one seed.

A kind turns a plain request into its own. A new parameter gets a row in `KINDS`, and is proved from then on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from interlingua.contract.engine import EngineInfo
from interlingua.contract.request import GenerationRequest, Grammar, SamplingRequest, StopMode, TokenPrompt
from interlingua.service.service import ServedModel

# Prompts are pieces of it. It repeats itself here and there, so that drafts by prompt lookup are taken.
PASSAGE = """\
A river begins where water has no other way to go. It comes down from the hills as rain, gathers in the hollows, and
runs towards the sea, and on its way it meets other water that runs towards the sea. Question: why does the river
bend? Answer: because the ground is not the same everywhere. Question: why does the river never stop? Answer: because
the rain never stops. People settled where the river was shallow, built a bridge of stone, and wrote down what they
sold: 12 sacks of grain, 7 barrels of oil, 30 cups of glass.
def cross(bridge): return [stone for stone in bridge if stone.holds]
Der Fluss fließt weiter, auch wenn niemand hinsieht; 河は流れ続ける、誰も見ていなくても.
In the end the water is lifted again into the air, and falls as rain, and runs towards the sea, and a river begins
where water has no other way to go.
"""
_MOST_TOKENS = 512  # of a prompt and its answer together
_STARTS = 4  # places in the passage where prompts begin, so that many begin the same


@dataclass(frozen=True, slots=True)
class Draw:
    """What a kind may draw from."""

    random: random.Random
    vocab_size: int
    adapters: Sequence[str]

    def token(self) -> int:
        return self.random.randrange(self.vocab_size)


@dataclass(frozen=True, slots=True)
class Kind:
    """`needs` is the field of `PreparedRequest` that an engine must honour for it, if not every engine does."""

    name: str
    make: Callable[[GenerationRequest, Draw], GenerationRequest]
    needs: str = ""


def _sampled(request: GenerationRequest, **parameters: object) -> GenerationRequest:
    values = {"do_sample": True, **parameters}
    return replace(request, sampling=replace(request.sampling, **values))  # type: ignore[arg-type]


def _greedy(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    return request


def _sampling(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    return _sampled(request, temperature=draw.random.choice([0.3, 1.0, 1.7]))


def _warped(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    return _sampled(
        request,
        temperature=draw.random.uniform(0.2, 2.0),
        top_k=draw.random.choice([1, 5, 50, 10**9]),
        top_p=draw.random.choice([0.1, 0.9, 1.0]),
    )


def _typical(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    return _sampled(request, typical_p=draw.random.choice([0.2, 0.95]), min_p=draw.random.choice([0.0, 0.05]))


def _penalties(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    return _sampled(
        request,
        do_sample=draw.random.random() < 0.7,
        repetition_penalty=draw.random.choice([0.8, 1.2]),
        frequency_penalty=draw.random.choice([-0.5, 1.0]),
        presence_penalty=draw.random.choice([0.0, 0.7]),
        frequency_over=draw.random.choice(["all", "output"]),
    )


def _bias(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    return _sampled(request, logit_bias=tuple((draw.token(), draw.random.uniform(-20, 20)) for _ in range(8)))


def _top_tokens(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    return replace(_sampled(request), top_n_tokens=draw.random.randint(1, 20))


def _prompt_logprobs(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    return replace(_sampled(request), prompt_logprobs=True)


def _n(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    return replace(_sampled(request), n=draw.random.randint(2, 4), prompt_logprobs=draw.random.random() < 0.3)


def _best_of(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    return replace(_sampled(request), n=1, best_of=draw.random.randint(2, 4))


def _stops(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    stops = tuple(draw.random.sample([" the", "e", "\n", ".", " and ", "towards the sea", "河"], 3))
    return replace(_sampled(request), stop=stops, stop_mode=draw.random.choice(list(StopMode)))


def _endings(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    ends = tuple(draw.token() for _ in range(draw.vocab_size // 50))
    return replace(
        _sampled(request),
        stop_token_ids=ends,
        ignore_eos=draw.random.random() < 0.5,
        min_new_tokens=draw.random.randint(0, 8),
    )


def _drawn_seed(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    return _sampled(request, seed=None)


def _one_token(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    return replace(_sampled(request), max_new_tokens=1, n=draw.random.choice([1, 2]))


def _watermark(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    return _sampled(request, watermark=True, repetition_penalty=draw.random.choice([None, 1.3]))


_GRAMMARS = (
    Grammar("json_schema", '{"type": "object", "properties": {"river": {"type": "string", "maxLength": 20}}}'),
    Grammar("json_schema", '{"type": "array", "items": {"enum": ["rain", "stone", 12]}, "maxItems": 4}'),
    Grammar("regex", "(the|a) [a-z ]{5,60}[.]"),
    Grammar("regex", "[0-9]{1,3}(, [0-9]{1,3}){2,9}"),
    Grammar("choice", '["rain", "rain and stone", "towards the sea"]'),
)


def _grammar(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    return replace(_sampled(request), grammar=draw.random.choice(_GRAMMARS))


def _adapter(request: GenerationRequest, draw: Draw) -> GenerationRequest:
    return replace(_sampled(request), adapter_id=draw.random.choice(draw.adapters))


KINDS = (
    Kind("greedy", _greedy),
    Kind("temperature", _sampling),
    Kind("top-k and top-p", _warped),
    Kind("typical-p and min-p", _typical),
    Kind("penalties", _penalties),
    Kind("logit bias", _bias),
    Kind("top tokens", _top_tokens),
    Kind("prompt logprobs", _prompt_logprobs),
    Kind("n answers", _n),
    Kind("best of", _best_of),
    Kind("stop strings", _stops),
    Kind("stop tokens", _endings),
    Kind("drawn seed", _drawn_seed),
    Kind("one token", _one_token),
    Kind("watermark", _watermark),
    Kind("grammar", _grammar, needs="grammar"),
    Kind("adapter", _adapter, needs="adapter"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A request to prove. `tokens` bounds its prompt and one answer together."""

    kind: str
    request: GenerationRequest
    tokens: int


def draw_cases(model: ServedModel, count: int, seed: int) -> list[Case]:
    """`count` requests, each kind in turn that the model can honour; the same ones for the same model and seed."""
    passage = list(model.tokenizer.encode(PASSAGE))
    while len(passage) < 2 * _MOST_TOKENS:
        passage += passage
    info = model.engine.info
    adapters = sorted(model.engine.adapters)
    missing = info.unsupported if adapters else {*info.unsupported, "adapter"}
    kinds = [kind for kind in KINDS if kind.needs not in missing]
    cases = []
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        request = _plain(number, passage, info, chance)
        assert isinstance(request.prompt, TokenPrompt) and request.max_new_tokens is not None
        tokens = len(request.prompt.ids) + request.max_new_tokens
        kind = kinds[number % len(kinds)]
        cases.append(Case(kind.name, kind.make(request, Draw(chance, info.vocab_size, adapters)), tokens))
    return cases


def _plain(number: int, passage: Sequence[int], info: EngineInfo, chance: random.Random) -> GenerationRequest:
    """A greedy request for a piece of the passage; its lengths lie around the borders of blocks and contexts too."""
    room = min(info.max_context, _MOST_TOKENS)
    new = min(chance.choice([2, 16, 16, 40, 40, 120]), room // 3)
    prompt = min(chance.choice([1, 5, 31, 32, 33, chance.randint(1, room - new), room - new]), room - new)
    start = chance.randrange(_STARTS) * 64
    return GenerationRequest(
        request_id=f"case-{number}",
        prompt=TokenPrompt(tuple(min(token, info.vocab_size - 1) for token in passage[start : start + prompt])),
        max_new_tokens=new,
        sampling=SamplingRequest(seed=chance.randrange(2**64)),
        priority=chance.randint(1, 5),
    )


def companions(cases: Sequence[Case], tokens: int) -> list[GenerationRequest]:
    """Requests that only get in the way: urgent, as long as `tokens` lets them, deaf to the end of the text."""
    return [
        replace(
            case.request,
            request_id=f"companion-{number}",
            max_new_tokens=max(1, tokens - case.tokens + (case.request.max_new_tokens or 0)),
            ignore_eos=True,
            stop=(),
            stop_token_ids=(),
            grammar=None,
            n=1,
            best_of=1,
            priority=1,
        )
        for number, case in enumerate(cases[:: max(1, len(cases) // 12)])
    ]
