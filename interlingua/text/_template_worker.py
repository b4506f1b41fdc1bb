"""Renders chat templates in a process of its own: `python -I _template_worker.py SECONDS BYTES`.

A template is a program from somebody else. Here it can neither hang the server nor fill its memory: the kernel ends
this process when a rendering takes longer than SECONDS or wants more than BYTES, and `chat_template` starts another.

Each way a frame is four bytes of length, then JSON. In: `{"template", "variables"}`. Out: `{"text"}`, or `{"refused"}`
with the template's own words, or `{"failed"}` with the kind of fault, or `{"limit"}`.

The environment is that of transformers' `apply_chat_template`, so that every template renders to the same text; new is
that each step of a loop and each call of a macro counts, and that the text has a limit. Imports nothing of the project:
that would take longer than to start.
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_STEPS = 100_000
MAX_CHARS = 4 * 1024 * 1024
_SHOWN = 500  # characters of a template's own message


class Refused(TemplateError):  # noqa: N818 - the template's verdict
    """What a template says with `raise_exception`."""


class LimitError(Exception):
    pass


class GenerationBlocks(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; its content stands as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own way

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateDict:
    """`dict` without what hangs on the class itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class TemplateNamespace(Namespace):
    """`namespace` without names that begin with an underscore, which lead into the interpreter."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` is a good name for a variable
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            TemplateNamespace.check(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        TemplateNamespace.check(name)
        Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold {name!r}")


class Environment(ImmutableSandboxedEnvironment):
    """transformers' environment, with a count of steps."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, loopcontrols])
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self.globals["dict"] = TemplateDict()
        self.globals["namespace"] = TemplateNamespace
        self.steps = 0

    def step(self) -> bool:
        """Called by the template itself, once for each step of a loop and each call of a macro."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise LimitError(f"more than {MAX_STEPS} steps")
        return True

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for node in list(template.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
            assert isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
            node.body.insert(0, nodes.ExprStmt(_step(), lineno=node.lineno))
            if isinstance(node, nodes.For) and node.test is not None:
                node.test = nodes.And(_step(), node.test, lineno=node.lineno)
        template.set_environment(self)
        return template


def _step() -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute("step"), [], [], None, None, lineno=0)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own escapes what HTML would take for markup."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: object) -> NoReturn:
    raise Refused(str(message))


ENVIRONMENT = Environment()


@lru_cache(maxsize=8)
def compiled(source: str) -> Template:
    return ENVIRONMENT.from_string(source)


def render(source: str, variables: dict[str, Any]) -> str:
    """The text, at most `MAX_CHARS` of it. Raises LimitError, TemplateError and whatever the template runs into."""
    ENVIRONMENT.steps = 0
    pieces: list[str] = []
    length = 0
    for piece in compiled(source).generate(variables):
        length += len(piece)
        if length > MAX_CHARS:
            raise LimitError(f"more than {MAX_CHARS} characters")
        pieces.append(piece)
    return "".join(pieces)


def forms(variables: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The forms in which turns of tool calls may be given: templates differ in what they can take.

    Arguments as an object, which is transformers' form, or as the JSON text that clients send; content that is null or
    empty. The second half is for templates that cannot take null.
    """
    messages = variables["messages"]
    calls = any("tool_calls" in message for message in messages)
    empty = any(message.get("content") is None for message in messages)
    for content in (None, "") if empty else ("",):
        for as_text in (False, True) if calls else (False,):
            yield {**variables, "messages": [_formed(message, content, as_text) for message in messages]}


def _formed(message: dict[str, Any], content: str | None, as_text: bool) -> dict[str, Any]:
    formed = {**message, "content": content} if message.get("content") is None else dict(message)
    if as_text and "tool_calls" in message:
        formed["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
    return formed


def answer(wanted: dict[str, Any]) -> dict[str, str]:
    """One rendering, whatever becomes of it."""
    kind = ""
    for variables in forms(wanted["variables"]):
        try:
            text = render(wanted["template"], variables)
            text.encode()  # half a surrogate pair is a fault of the template like any other
            return {"text": text}
        except Refused as error:
            return {"refused": (error.message or "")[:_SHOWN].encode("utf-8", "replace").decode()}
        except LimitError as error:
            return {"limit": str(error)}
        except MemoryError:
            return {"limit": "more memory than there is for it"}
        except (OverflowError, RecursionError) as error:
            return {"limit": type(error).__name__}
        except Exception as error:
            kind = kind or type(error).__name__
    return {"failed": kind}


def main(seconds: float, size: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while len(head := source.read(4)) == 4:
        wanted = json.loads(source.read(struct.unpack("<I", head)[0]))
        signal.setitimer(signal.ITIMER_REAL, seconds)  # nobody handles its signal, so it ends the process
        data = json.dumps(answer(wanted)).encode()
        signal.setitimer(signal.ITIMER_REAL, 0)
        sink.write(struct.pack("<I", len(data)) + data)
        sink.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
