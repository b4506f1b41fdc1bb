"""Conversations to prompt text, with the model's own Jinja template, as transformers renders it.

Templates run in `_template_worker`, a process of its own under limits of time and memory. Here is what surrounds that:
which variables a template gets, what is done for templates that know nothing of tools, and how answers are marked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import orjson

from interlingua.contract.dialect import ChatFormat
from interlingua.contract.errors import NotSupportedError, ValidationError
from interlingua.contract.request import ChatMessage, ChatPrompt, TextPart, TextPrompt

_log = logging.getLogger(__name__)

_WORKER: Final = Path(__file__).with_name("_template_worker.py")
_SECONDS: Final = 5.0
_MEMORY: Final = 512 * 1024 * 1024
_KEPT_VARIABLES: Final = ("LD_LIBRARY_PATH", "TZ")  # of the environment; the rest is none of a template's business
_MARK: Final = "TEXT_TO_BE_CONTINUED_HERE "
_THINK: Final = ("<think>", "</think>")

# For templates without tools: the instructions of the Hermes models, which Qwen's templates also give.
_TOOLS_TEXT: Final = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


class ChatTemplate:
    """The template of one model. Safe to use from one event loop; `close` ends its processes.

    Args:
        source: Jinja text; None = the model has none, and every conversation is refused.
        special_tokens: further variables, `bos_token` and the like; those that the model does not have are absent.
        allow_client: a request may bring a template of its own.
        seconds: for one rendering.
        memory: bytes of address space for a process that renders.
    """

    def __init__(
        self,
        source: str | None,
        special_tokens: Mapping[str, str] | None = None,
        *,
        allow_client: bool = False,
        seconds: float = _SECONDS,
        memory: int = _MEMORY,
    ) -> None:
        self.source: Final = source
        self.format: Final = format_of(source or "")
        self._special_tokens = dict(special_tokens or {})
        self._allow_client = allow_client
        self._own = _Worker(seconds, memory)
        self._client = _Worker(seconds, memory)  # clients' templates wait for each other alone

    async def render(self, prompt: ChatPrompt) -> TextPrompt:
        """The text of a conversation, to be tokenised without special tokens of the tokenizer's.

        Raises:
            NotSupportedError: there is no template, or the client's own is not allowed.
            ValidationError: the template refuses the conversation, cannot render it, or passes its limits.
        """
        source, worker = self.source, self._own
        if prompt.template is not None:
            if not self._allow_client:
                raise NotSupportedError("chat_template", "of a request is not allowed on this server")
            source, worker = prompt.template, self._client
        if source is None:
            raise NotSupportedError(prompt.field, "cannot be rendered: the served model has no chat template")
        text = _text_of(await worker.ask(partial(self._wanted, prompt, source)), prompt)
        if prompt.continue_final:
            text = _cut_at_mark(text, prompt.field)
        reasoning = self.format.reasoning is not None and text.rstrip().endswith(self.format.reasoning[0])
        return TextPrompt((TextPart(text),), prompt.field, add_special=False, reasoning=reasoning)

    def _wanted(self, prompt: ChatPrompt, source: str) -> bytes:
        """What the process is told. Takes as long as the conversation is; raises ValidationError."""
        given = _in_its_words(_marked(prompt) if prompt.continue_final else prompt, source)
        wanted = {"template": source, "variables": {**self._special_tokens, **_variables(given)}}
        try:
            return orjson.dumps(wanted)
        except orjson.JSONEncodeError:  # an integer of more than 64 bits in a tool or an argument
            return json.dumps(wanted).encode()

    def close(self) -> None:
        """Ends the processes. Safe to call twice."""
        self._own.close()
        self._client.close()


def format_of(source: str) -> ChatFormat:
    """How answers are marked, read off the literals of a template."""
    reasoning = _THINK if _THINK[1] in source else None
    if "<tool_call>" in source:
        return ChatFormat("hermes", reasoning)
    if "[TOOL_CALLS]" in source:
        return ChatFormat("mistral", reasoning)
    if "<|python_tag|>" in source or ("ipython" in source and '"parameters"' in source):
        return ChatFormat("llama3", reasoning)
    return ChatFormat("hermes", reasoning)


def special_tokens(config: Mapping[str, Any], bos: str, eos: str) -> dict[str, str]:
    """The variables that name special tokens: those of tokenizer_config.json, else what the tokenizer says."""
    named = {key: value.get("content") if isinstance(value, Mapping) else value for key, value in config.items()}
    known = {"bos_token": bos, "eos_token": eos}
    known |= {key: value for key, value in named.items() if key.endswith("_token") and isinstance(value, str)}
    return {key: value for key, value in known.items() if value}


def _variables(prompt: ChatPrompt) -> dict[str, Any]:
    return {
        "documents": None,
        **prompt.arguments,
        "tools": list(prompt.tools) or None,
        "messages": [_message(message, place, prompt.field) for place, message in enumerate(prompt.messages)],
        "add_generation_prompt": prompt.add_generation_prompt,
    }


def _message(message: ChatMessage, place: int, field: str) -> dict[str, Any]:
    extras = {"name": message.name, "reasoning_content": message.reasoning, "tool_call_id": message.tool_call_id}
    given: dict[str, Any] = {"role": message.role, "content": message.text}
    given |= {name: value for name, value in extras.items() if value is not None}
    if message.tool_calls:
        given["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _object(call.arguments, f"{field}[{place}]")},
            }
            for call in message.tool_calls
        ]
    return given


def _object(arguments: str, field: str) -> dict[str, Any]:
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValidationError(f"{field}.tool_calls", "must have arguments that are the text of a JSON object")
    return value


def _in_its_words(prompt: ChatPrompt, source: str) -> ChatPrompt:
    """The conversation with tools, or turns about them, put into words where the template has no place for them."""
    messages = prompt.messages if "tool_calls" in source else tuple(map(_in_words, prompt.messages))
    if prompt.tools and "tools" not in source:
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in prompt.tools)
        words = _TOOLS_TEXT.format(tools=listed)
        if messages[0].role == "system":
            words = f"{messages[0].text or ''}\n\n{words}"
            messages = messages[1:]
        messages = (ChatMessage(role="system", parts=(TextPart(words),)), *messages)
    return replace(prompt, messages=messages)


def _in_words(message: ChatMessage) -> ChatMessage:
    if message.role == "tool":
        words = f"<tool_response>\n{message.text or ''}\n</tool_response>"
        return ChatMessage(role="user", parts=(TextPart(words),))
    if message.tool_calls:
        calls = [
            f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments or "{}"}}}\n</tool_call>'
            for call in message.tool_calls
        ]
        words = "\n".join(([message.text] if message.text else []) + calls)
        return ChatMessage(role=message.role, parts=(TextPart(words),))
    return message


def _text_of(answer: Mapping[str, str], prompt: ChatPrompt) -> str:
    if "text" in answer:
        if not answer["text"]:
            raise ValidationError(prompt.field, "come out of the chat template as nothing")
        return answer["text"]
    if "refused" in answer:
        raise ValidationError(prompt.field, f"are refused by the chat template: {answer['refused']}")
    if "limit" in answer:
        raise ValidationError(prompt.field, f"take the chat template past its limits: {answer['limit']}")
    raise ValidationError(prompt.field, f"cannot be rendered with the chat template ({answer['failed']})")


def _marked(prompt: ChatPrompt) -> ChatPrompt:
    """The conversation with a mark behind its last text, as transformers finds out where to continue."""
    *others, last = prompt.messages
    return replace(prompt, messages=(*others, replace(last, parts=(*(last.parts or ()), TextPart(_MARK)))))


def _cut_at_mark(text: str, field: str) -> str:
    at = text.rfind(_MARK.strip())
    if at < 0:
        raise ValidationError(field, "must end with a message whose text the chat template shows, to be continued")
    # Without the mark's own space the template trims, and would have trimmed the text's.
    return text[:at] if text.startswith(_MARK, at) else text[:at].rstrip()


class _Worker:
    """A process that renders, one text after the other; started when first asked, and again when it has died."""

    def __init__(self, seconds: float, memory: int) -> None:
        self._seconds = seconds
        self._memory = memory
        self._process: subprocess.Popen[bytes] | None = None
        # One thread: it alone speaks to the process, and a client that leaves does not interrupt it.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="chat-template")

    async def ask(self, wanted: Callable[[], bytes]) -> Mapping[str, str]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, wanted)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._end()

    def _ask(self, make: Callable[[], bytes]) -> Mapping[str, str]:
        wanted = make()
        process = self._process
        if process is None:
            process = self._process = self._start()
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(struct.pack("<I", len(wanted)) + wanted)
            process.stdin.flush()
            (length,) = struct.unpack("<I", _exactly(process.stdout, 4))
            answer: dict[str, str] = orjson.loads(_exactly(process.stdout, length))
            return answer
        except (OSError, EOFError):
            status = self._end()
            _log.warning("a chat template ended its process (%s)", status)
            overdue = status == -signal.SIGALRM
            return {"limit": f"more than {self._seconds:g} seconds" if overdue else "more memory than there is for it"}

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", str(_WORKER), str(self._seconds), str(self._memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
            start_new_session=True,  # Ctrl-C in a terminal is the server's affair
        )

    def _end(self) -> int | None:
        """Ends the process, if there is one; its exit status."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()  # of a process that has ended already this changes nothing, nor its status
        status = process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # what it was still to read
                pipe.close()
        return status


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data
