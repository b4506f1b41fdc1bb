"""Every schema of the official suite that is followed, answered by the demo model: what ends fits."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from schema_suite import groups
from test_engine import collect, idle

from interlingua.contract.errors import ValidationError
from interlingua.contract.events import FailedEvent, FinishReason, TokenEvent
from interlingua.contract.request import Grammar, PreparedRequest, SamplingParams
from interlingua.engine.native.engine import NativeEngine, NativeOptions
from interlingua.hub.files import ModelFiles
from interlingua.text.tokenizer import Tokenizer


async def test_finished_answers_validate(demo_files: ModelFiles) -> None:
    """One answer a schema, half of them greedy, half sampled; those that meet the limit of tokens fit so far."""
    tokenizer = Tokenizer.load(demo_files)
    engine = NativeEngine(demo_files, NativeOptions(kv_memory=128 << 20), None, tokenizer)
    await engine.start()
    # Left alone, the model writes texts without an end where any value fits.
    ends = tuple((i, 8.0) for i, text in enumerate(tokenizer.token_bytes) if text and not text.strip(b'"]}'))
    schemas: dict[str, Any] = {json.dumps(group.schema): group.schema for group in groups()}

    async def answer(number: int, text: str) -> tuple[str, FinishReason | None]:
        """("", None) for a schema that is refused."""
        request = PreparedRequest(
            request_id=text,
            prompt_ids=tuple(tokenizer.encode("An example as JSON:\n")),
            max_new_tokens=60,
            sampling=SamplingParams(do_sample=number % 2 == 1, temperature=0.8, seed=number, logit_bias=ends),
            stop_token_ids=frozenset(tokenizer.eos_ids),
            grammar=Grammar("json_schema", text),
        )
        events = await collect(engine, request)
        if isinstance(events[-1], FailedEvent):
            assert isinstance(events[-1].error, ValidationError), (text, events[-1].error)
            return "", None
        tokens = [event for event in events if isinstance(event, TokenEvent)]
        parts = [tokenizer.token_bytes[t.token_id] for t in tokens if t.token_id not in tokenizer.eos_ids]
        return b"".join(parts).decode(), tokens[-1].finish_reason

    answers = await asyncio.gather(*(answer(number, text) for number, text in enumerate(schemas)))
    await idle(engine)
    await engine.stop()
    finished = 0
    for (text, schema), (found, reason) in zip(schemas.items(), answers, strict=True):
        if reason is FinishReason.EOS and "\\\\p" not in text:  # not in Python's expressions
            finished += 1
            value = json.loads(found)
            # Of the others the package knows nothing, or (of "time") an older meaning.
            checker = FormatChecker(("date", "email", "ipv4", "ipv6")) if "format" in text else None
            Draft202012Validator(schema, format_checker=checker).validate(value)
    followed = sum(reason is not None for _, reason in answers)
    assert followed >= 150 and finished >= 120, (followed, finished)
