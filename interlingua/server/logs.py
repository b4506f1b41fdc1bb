"""Log lines: for people, or as one JSON object each; and one line for each request, where wanted."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Any

import orjson

from interlingua.contract.request import ChatPrompt, GenerationRequest, TextPrompt
from interlingua.contract.words import counted
from interlingua.server.exchange import Exchange

_requests = logging.getLogger("interlingua.requests")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PROMPT_CHARS = 1000  # of a prompt, as TGI
_LEFT = 499  # the status of a request whose client left before an answer, as in nginx's logs


class JsonFormatter(logging.Formatter):
    """One JSON object on each line: time, level, logger, message, and what `extra` names."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def set_up(level: str, as_json: bool) -> None:
    """Our own messages from `level` on; those of libraries are news only when they are bad, or when debugging."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if as_json else text)
    logging.basicConfig(level=logging.DEBUG if level == "debug" else logging.WARNING, handlers=[handler])
    logging.getLogger("interlingua").setLevel(level.upper())


class RequestLog:
    """Writes a line when a request has ended. Prompts are in it only where `prompts` asks for them."""

    def __init__(self, prompts: bool) -> None:
        self._prompts = prompts

    def ended(self, exchange: Exchange) -> None:
        seconds = time.monotonic() - exchange.arrived
        status = exchange.status or _LEFT
        fields: dict[str, Any] = {
            "request_id": exchange.request_id,
            "method": exchange.method,
            "path": exchange.shown_path,
            "status": status,
            "seconds": round(seconds, 6),
        }
        if exchange.caller_id:
            fields["caller_request_id"] = exchange.caller_id
        outcome = exchange.outcome
        tokens = ""
        kind = exchange.failure or (outcome.kind if outcome is not None else "")
        if kind:
            fields["outcome"] = kind
            tokens = f", {kind}"
        if outcome is not None:
            timing, summary = outcome.timing, outcome.summary
            if outcome.prepared is not None:
                fields["prompt_tokens"] = len(outcome.prepared.prompt_ids)
            if timing.started:
                fields["queue_seconds"] = round(timing.started - timing.queued, 6)
            if timing.first_token:
                fields["first_token_seconds"] = round(timing.first_token - timing.arrived, 6)
            if summary is not None:
                fields["generated_tokens"] = summary.generated_tokens
                fields["finish_reason"] = summary.finish_reason.value
                told = f", {counted(summary.prompt_tokens, 'token')} in, {summary.generated_tokens} out"
                tokens = tokens + told if exchange.failure else told
            if self._prompts:
                fields["prompt"] = _prompt(outcome.request)
                tokens += f", prompt {fields['prompt']!r}"
        _requests.info(
            "%s %s %d in %.3f s%s, request %s",
            *(exchange.method, fields["path"], status, seconds, tokens, exchange.shown_id),
            extra=fields,
        )


def _prompt(request: GenerationRequest) -> str:
    """The beginning of the prompt; of ids, their numbers."""
    prompt = request.prompt
    if isinstance(prompt, TextPrompt):
        return prompt.text[:_PROMPT_CHARS]
    if isinstance(prompt, ChatPrompt):
        return "\n".join(f"{turn.role}: {turn.text or ''}" for turn in prompt.messages)[:_PROMPT_CHARS]
    return " ".join(map(str, prompt.ids[: _PROMPT_CHARS // 8]))
