"""`interlingua verify`: the promise of docs/reproducibility.md, proved with this model on this machine.

Each request is answered alone first: nothing else in the engine, no cache, no drafts. Then all are answered again in
surroundings that must not matter, and every token and every log-probability is compared with `==`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from interlingua.cli import assemble
from interlingua.cli.options import Options
from interlingua.cli.progress import CountBar
from interlingua.cli.verify_requests import Case, companions, draw_cases
from interlingua.contract.engine import EngineStats
from interlingua.contract.errors import InterlinguaError
from interlingua.contract.events import Answer, TextToken, TokenText
from interlingua.contract.request import GenerationRequest
from interlingua.service.prepare import Limits
from interlingua.service.service import ServedModel, Service

_SEED = 1
_REFERENCE_KV = 256 * 2**20
_SLOW_TIERS = 8  # one request of so many is asked of tiers other than the best
_MOST_ROUNDS = 5  # for what must be forced and depends on chance
_PATIENCE = 86_400.0

Outcome = Answer | InterlinguaError


@dataclass(frozen=True, slots=True)
class Surrounding:
    """Where the requests are answered again.

    Args:
        changes: options that differ from the operator's.
        crowd: requests at once at most.
        rounds: how often the same engine answers all of them, at least.
        every: only one of so many requests, where all would take too long.
        forced: from the engine's counts, what it shows to have happened; "" = it did not yet.
    """

    name: str
    changes: Mapping[str, object] = field(default_factory=dict)
    crowd: int = 48
    rounds: int = 1
    every: int = 1
    forced: Callable[[EngineStats], str] | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """What one surrounding showed. `differences` are in words; `evidence` "" = what it is for did not happen."""

    name: str
    requests: int
    tokens: int
    evidence: str | None
    differences: Sequence[str]

    @property
    def holds(self) -> bool:
        return not self.differences and self.evidence != ""

    def __str__(self) -> str:
        if self.differences:
            verdict = f"{len(self.differences)} DIFFER"
        else:
            verdict = "equal" if self.evidence != "" else "NOT FORCED, nothing is proved"
        note = f" ({self.evidence})" if self.evidence else ""
        return f"{self.name:<34} {self.requests:>5} requests {self.tokens:>8,} tokens  {verdict}{note}"


def run(options: Options) -> int:
    return asyncio.run(_run(options))


async def _run(options: Options) -> int:
    proofs: list[Proof] = []
    async for proof in prove(options):
        proofs.append(proof)
        print(proof, flush=True)
        for difference in proof.differences[:5]:
            print(f"    {difference}")
    failed = [proof.name for proof in proofs if not proof.holds]
    if failed:
        unforced = any(proof.evidence == "" and not proof.differences for proof in proofs)
        hint = "; more requests force more (--requests)" if unforced else ""
        print(f"not verified: {', '.join(failed)}{hint}")
        return 1
    tokens = sum(proof.tokens for proof in proofs)
    print(f"verified: {tokens:,} tokens and their log-probabilities are equal bit for bit, whatever was around them")
    return 0


async def prove(options: Options) -> AsyncIterator[Proof]:
    """The reference first, then each surrounding. Raises ModelError and the errors of single requests."""
    alone = {"prefix_cache": False, "speculate": 0, "kv_memory": _REFERENCE_KV}
    async with _serving(options, alone) as service:
        model = _model(service)
        cases = draw_cases(model, options.requests, _SEED)
        print(f"{model.name}, {model.engine.info.description}")
        kinds = list(dict.fromkeys(case.kind for case in cases))
        print(f"{len(cases)} requests of {len(kinds)} kinds: {', '.join(kinds)}")
        expected = _succeeded(await _answers(service, [case.request for case in cases], 1, "one by one"))
        # A seed that was drawn by the service is sent from now on: it must replay.
        requests = [_seeded(case.request, answer) for case, answer in zip(cases, expected, strict=True)]
        stats = model.engine.stats()
        largest = max(case.tokens for case in cases)
        yield Proof("one by one, no cache, no drafts", len(cases), _count(expected), None, ())

        name = "each of several answers alone"
        single, wanted = _children(requests, expected)
        got = await _answers(service, single, 1, name)
        yield Proof(name, len(single), _count(got), None, list(_compare(cases, single, wanted, got)))

    block = _REFERENCE_KV // stats.kv_blocks_total
    tight = block * (-(-largest // stats.kv_block_tokens) + 3)
    for surrounding in surroundings(options, tight):
        yield await _again(options, surrounding, cases, requests, expected, tight // block * stats.kv_block_tokens)


def surroundings(options: Options, tight: int) -> list[Surrounding]:
    """Everything that must not matter. `tight` is KV memory, in bytes, that hardly holds the largest request."""
    from interlingua.engine.native._native import kernel_names

    cores = len(os.sched_getaffinity(0))
    threads = sorted({1, 2, cores})
    return [
        Surrounding("in company, some leave early", {"prefix_cache": False}),
        Surrounding("in steps of 16 tokens", {"max_batch_tokens": 16}, crowd=16),
        Surrounding("in batches of 3", {"max_batch_size": 3}),
        Surrounding(
            "preempted",
            {"kv_memory": tight, "prefix_cache": False},
            forced=lambda stats: _times(stats.preemptions_total, "preemptions"),
        ),
        Surrounding(
            "preempted, with the cache",
            {"kv_memory": tight},
            forced=lambda stats: _times(stats.preemptions_total, "preemptions"),
        ),
        Surrounding(
            "cold cache, then warm",
            rounds=2,
            forced=lambda stats: _times(stats.prefix_hit_tokens_total, "tokens from the cache"),
        ),
        Surrounding(
            "with drafts",
            {"speculate": 8},
            crowd=2,
            forced=lambda stats: _times(stats.accepted_tokens_total, "drafted tokens taken"),
        ),
        *(Surrounding(f"{count} thread{'s' * (count > 1)}", {"threads": count}) for count in threads),
        *(Surrounding(f"{tier} kernels", {"isa": tier}, every=_SLOW_TIERS) for tier in kernel_names()),
    ]


def _times(count: int, what: str) -> str:
    return f"{count:,} {what}" if count else ""


async def _again(
    options: Options,
    surrounding: Surrounding,
    cases: Sequence[Case],
    requests: Sequence[GenerationRequest],
    expected: Sequence[Answer],
    room: int,
) -> Proof:
    """Answers the requests in a surrounding and compares."""
    chosen = range(0, len(cases), surrounding.every)
    differences: list[str] = []
    tokens = 0
    async with _serving(options, surrounding.changes) as service:
        crowd = [requests[place] for place in chosen]
        evidence: str | None = None
        for turn in itertools.count(1):
            draw = random.Random(f"{surrounding.name} {turn}")
            noise = [] if surrounding.every > 1 else companions(cases, room)
            got = await _answers(service, crowd, surrounding.crowd, surrounding.name, noise, draw)
            wanted = [expected[place] for place in chosen]
            differences += _compare([cases[place] for place in chosen], crowd, wanted, got)
            tokens += _count(got)
            if surrounding.forced is not None:
                evidence = surrounding.forced(_model(service).engine.stats())
            if turn >= surrounding.rounds and (evidence != "" or turn == _MOST_ROUNDS):
                break
    return Proof(surrounding.name, len(chosen) * turn, tokens, evidence, differences)


@asynccontextmanager
async def _serving(options: Options, changes: Mapping[str, object]) -> AsyncIterator[Service]:
    """A service over a fresh engine with some options changed."""
    model = await assemble.load(replace(options, **changes))  # type: ignore[arg-type]
    service = Service(Limits(timeout=_PATIENCE, max_concurrent_requests=1_000_000))
    service.attach(model)
    try:
        yield service
    finally:
        await model.engine.stop()
        service.close()


def _model(service: Service) -> ServedModel:
    assert service.model is not None
    return service.model


async def _answers(
    service: Service,
    requests: Sequence[GenerationRequest],
    crowd: int,
    name: str,
    noise: Sequence[GenerationRequest] = (),
    draw: random.Random | None = None,
) -> list[Outcome]:
    """The answers, at most `crowd` requests at a time; with `draw` they arrive in any order and at any moment, among
    `noise` that leaves when it likes."""
    places = asyncio.Semaphore(crowd)
    answers: dict[int, Outcome] = {}
    order = list(range(len(requests)))
    if draw is not None:
        draw.shuffle(order)

    async def ask(place: int, pause: float) -> None:
        async with places:
            await asyncio.sleep(pause)
            try:
                answers[place] = await service.answer(requests[place])
            except InterlinguaError as error:
                answers[place] = error
            bar.update(len(answers))

    async def disturb(request: GenerationRequest, pause: float, batches: int) -> None:
        await asyncio.sleep(pause)
        stream = service.generate(request)
        async for _ in stream:
            batches -= 1
            if not batches:
                break
        await stream.aclose()

    with CountBar(name, len(requests)) as bar:
        tasks = [asyncio.create_task(ask(place, draw.uniform(0, 0.02) if draw else 0.0)) for place in order]
        others = [
            asyncio.create_task(disturb(request, draw.uniform(0, 0.2), draw.randint(1, 400)))
            for request in noise
            if draw is not None
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in (*tasks, *others):
                task.cancel()
            await asyncio.gather(*tasks, *others, return_exceptions=True)
    return [answers[place] for place in range(len(requests))]


def _seeded(request: GenerationRequest, answer: Answer) -> GenerationRequest:
    if request.sampling.seed is not None:
        return request
    return replace(request, sampling=replace(request.sampling, seed=answer.summary.seed))


def _children(
    requests: Sequence[GenerationRequest], expected: Sequence[Answer]
) -> tuple[list[GenerationRequest], list[Answer]]:
    """Each answer of those requests that have several, as a request of its own with the answer's seed."""
    single: list[GenerationRequest] = []
    wanted: list[Answer] = []
    for request, answer in zip(requests, expected, strict=True):
        for one in (answer, *answer.alternatives) if answer.alternatives else ():
            sampling = replace(request.sampling, seed=one.summary.seed)
            single.append(replace(request, n=1, best_of=1, sampling=sampling))
            wanted.append(replace(one, alternatives=()))
    return single, wanted


def _succeeded(outcomes: Sequence[Outcome]) -> list[Answer]:
    """Raises the first error among the outcomes."""
    answers: list[Answer] = []
    for outcome in outcomes:
        if isinstance(outcome, InterlinguaError):
            raise outcome
        answers.append(outcome)
    return answers


def _count(outcomes: Sequence[Outcome]) -> int:
    answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
    return sum(len(one.tokens) for answer in answers for one in (answer, *answer.alternatives))


# --- comparing -----------------------------------------------------------------------------------------


def _compare(
    cases: Sequence[Case],
    requests: Sequence[GenerationRequest],
    expected: Sequence[Answer],
    got: Sequence[Outcome],
) -> Iterator[str]:
    kinds = {case.request.request_id: case.kind for case in cases}
    for request, wanted, answer in zip(requests, expected, got, strict=True):
        difference = find_difference(wanted, answer)
        if difference:
            yield f"{request.request_id} ({kinds[request.request_id]}): {difference}"


def find_difference(expected: Answer, got: Outcome) -> str:
    """The first place where two answers differ in anything but times and cache hits; "" = nowhere."""
    if isinstance(got, InterlinguaError):
        return f"failed: {got.message}"
    if len(expected.alternatives) != len(got.alternatives):
        return f"{1 + len(got.alternatives)} answers, not {1 + len(expected.alternatives)}"
    for choice, (wanted, answer) in enumerate(
        zip((expected, *expected.alternatives), (got, *got.alternatives), strict=True)
    ):
        difference = _difference(wanted, answer)
        if difference:
            return f"answer {choice}, {difference}"
    return ""


def _difference(expected: Answer, got: Answer) -> str:
    for name, wanted, had in (
        ("prompt token", expected.prefill, got.prefill),
        ("token", tuple(map(_plain, expected.tokens)), tuple(map(_plain, got.tokens))),
    ):
        for place, (one, other) in enumerate(zip(wanted, had, strict=False)):
            if one != other:
                return f"{name} {place}: {other}, not {one}"
        if len(wanted) != len(had):
            return f"{len(had)} {name}s, not {len(wanted)}"
    for field_name in ("text", "finish_reason", "generated_tokens", "prompt_tokens", "seed"):
        wanted, had = getattr(expected.summary, field_name), getattr(got.summary, field_name)
        if wanted != had:
            return f"{field_name}: {had!r}, not {wanted!r}"
    return ""


def _plain(token: TextToken) -> tuple[int, str, float, tuple[TokenText, ...]]:
    return token.id, token.text, token.logprob, token.top
