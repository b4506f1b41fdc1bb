"""`interlingua generate`: one answer in the terminal, through the same service and engine that serve."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

from interlingua.cli import assemble
from interlingua.cli.options import Options
from interlingua.contract.events import FailedEvent, TextToken
from interlingua.contract.request import GenerationRequest, SamplingRequest, TextPart, TextPrompt
from interlingua.service.service import Service


def run(options: Options, prompt: str) -> int:
    text = sys.stdin.read() if prompt == "-" else prompt
    asyncio.run(_generate(options, request_of(options, text)))
    return 0


def request_of(options: Options, prompt: str) -> GenerationRequest:
    """The request for one answer. Any sampling option, a seed too, switches sampling on; temperature 0 keeps it off."""
    if options.temperature == 0:
        options = replace(options, temperature=None, top_k=None, top_p=None, typical_p=None, seed=None)
    chosen = (options.temperature, options.top_k, options.top_p, options.typical_p, options.seed)
    sampling = SamplingRequest(
        do_sample=any(value is not None for value in chosen),
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        typical_p=options.typical_p,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
    )
    return GenerationRequest(
        request_id="terminal",
        prompt=TextPrompt((TextPart(prompt),), field="PROMPT"),
        max_new_tokens=options.max_new_tokens,
        sampling=sampling,
        stop=options.stop,
    )


async def _generate(options: Options, request: GenerationRequest) -> None:
    model = await assemble.load(options)
    service = Service(assemble.limits(options))
    service.attach(model)
    try:
        async for batch in service.generate(request):
            for event in batch:
                if isinstance(event, FailedEvent):
                    raise event.error
                if isinstance(event, TextToken) and not event.special:
                    sys.stdout.write(event.text)
            sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()
    finally:
        await model.engine.stop()
        service.close()
