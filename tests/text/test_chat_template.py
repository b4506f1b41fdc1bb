"""Chat templates against transformers' own renderings, and templates that mean harm."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_tokenizer_golden import folder

from interlingua.contract.errors import NotSupportedError, ValidationError
from interlingua.contract.request import ChatMessage, ChatPrompt, TextPart, ToolCall
from interlingua.hub import resolve
from interlingua.hub.files import from_folder
from interlingua.text.chat_template import ChatTemplate, format_of, special_tokens
from interlingua.text.tokenizer import Tokenizer

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data/golden/chats.json").read_text(encoding="utf-8"))
CHATS, MODELS = GOLDEN["chats"], GOLDEN["models"]
CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"


def message(role: str, text: str | None, *calls: ToolCall, **more: Any) -> ChatMessage:
    return ChatMessage(role=role, parts=None if text is None else (TextPart(text),), tool_calls=calls, **more)


def prompt_of(chat: dict[str, Any]) -> ChatPrompt:
    """A conversation of the golden file."""
    return ChatPrompt(
        messages=tuple(
            message(
                given["role"],
                given["content"],
                *(
                    ToolCall(call["id"], call["function"]["name"], json.dumps(call["function"]["arguments"]))
                    for call in given.get("tool_calls", ())
                ),
                reasoning=given.get("reasoning_content"),
                tool_call_id=given.get("tool_call_id"),
            )
            for given in chat["messages"]
        ),
        tools=tuple(chat.get("tools", ())),
        arguments=chat.get("arguments", {}),
        add_generation_prompt=chat.get("add_generation_prompt", True),
        continue_final=chat.get("continue_final", False),
    )


def put_into_words(source: str, chat: dict[str, Any]) -> bool:
    """Whether this project does more than transformers: the template has no place for what the chat holds."""
    calls = any("tool_calls" in given for given in chat["messages"])
    return ("tools" in chat and "tools" not in source) or (calls and "tool_calls" not in source)


@pytest.fixture
def templates() -> Iterator[list[ChatTemplate]]:
    """Whatever a test puts here is closed."""
    made: list[ChatTemplate] = []
    yield made
    for template in made:
        template.close()


@pytest.mark.parametrize("name", MODELS)
async def test_text_is_that_of_transformers(name: str, templates: list[ChatTemplate]) -> None:
    model = MODELS[name]
    templates.append(template := ChatTemplate(model["source"], model["tokens"]))
    compared = 0
    for chat, text in model["texts"].items():
        if put_into_words(model["source"], CHATS[chat]):
            continue
        if text is None:
            with pytest.raises(ValidationError, match="are refused by the chat template: Conversation roles"):
                await template.render(prompt_of(CHATS[chat]))
            continue
        rendered = await template.render(prompt_of(CHATS[chat]))
        assert rendered.text == text, chat
        assert not rendered.add_special
        compared += 1
    assert compared >= 7


@pytest.mark.parametrize("name", [name for name in MODELS if "ids" in MODELS[name]])
async def test_ids_are_those_of_transformers(name: str, templates: list[ChatTemplate], tmp_path: Path) -> None:
    for file in folder(name).iterdir():
        (tmp_path / file.name).symlink_to(file.absolute())
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    files = from_folder(tmp_path, name)
    tokenizer = Tokenizer.load(files)
    tokens = special_tokens(files.tokenizer_config, tokenizer.bos_text, tokenizer.eos_text)
    templates.append(template := ChatTemplate(files.chat_template, tokens))
    for chat, ids in MODELS[name]["ids"].items():
        rendered = await template.render(prompt_of(CHATS[chat]))
        assert tokenizer.encode(rendered.text, rendered.add_special) == ids
        if tokenizer.bos_id is not None and tokenizer.bos_text in MODELS[name]["texts"][chat]:
            assert ids[0] == tokenizer.bos_id and ids.count(tokenizer.bos_id) == 1


async def test_special_tokens_of_the_demo_model_are_recognised(templates: list[ChatTemplate]) -> None:
    files = resolve("smollm2-135m-instruct")
    tokenizer = Tokenizer.load(files)
    templates.append(template := ChatTemplate(tokenizer.chat_template, {"bos_token": tokenizer.bos_text}))
    rendered = await template.render(ChatPrompt(messages=(message("system", "s"), message("user", "Hi"))))
    ids = tokenizer.encode(rendered.text, rendered.add_special)
    assert [tokenizer.id_to_text(i) for i in ids] == [
        *("<|im_start|>", "system", "\n", "s", "<|im_end|>", "\n"),
        *("<|im_start|>", "user", "\n", "Hi", "<|im_end|>", "\n", "<|im_start|>", "ass", "istant", "\n"),
    ]


@pytest.mark.parametrize(
    ("source", "tools", "reasoning"),
    [
        (MODELS["qwen3"]["source"], "hermes", ("<think>", "</think>")),
        (MODELS["smollm2"]["source"], "hermes", None),
        ("{{ '[TOOL_CALLS]' }}", "mistral", None),
        ("{{ '<|python_tag|>' }}", "llama3", None),
        ('Environment: ipython {{ \'{"name": function name, "parameters": \' }}', "llama3", None),
    ],
)
def test_format_is_read_off_the_template(source: str, tools: str, reasoning: object) -> None:
    assert (format_of(source).tools, format_of(source).reasoning) == (tools, reasoning)


async def test_open_reasoning_is_noticed(templates: list[ChatTemplate]) -> None:
    source = CHATML + "{% if thinking %}<think>\n{% else %}<think></think>{% endif %}"
    templates.append(template := ChatTemplate(source))
    for thinking in (True, False):
        prompt = ChatPrompt(messages=(message("user", "x"),), arguments={"thinking": thinking})
        assert (await template.render(prompt)).reasoning is thinking


# --- turns of tool calls -------------------------------------------------------------------------------------------

CALL = ToolCall("c1", "f", '{"a": "é", "b": [1]}')


@pytest.mark.parametrize(
    ("source", "text"),
    [
        # As transformers: arguments are an object, content that is null stays null.
        ("{{ messages[1].tool_calls[0].function.arguments | tojson }}", '{"a": "é", "b": [1]}'),
        ("{{ messages[1].tool_calls[0].function.arguments.a }}", "é"),
        ("{{ messages[1].content is none }} {{ messages[1].tool_calls[0].id }}", "True c1"),
        # A template that joins text with them gets text.
        (
            "{{ 'x' + messages[1].tool_calls[0].function.arguments if messages[1].content is none }}",
            'x{"a": "\\u00e9", "b": [1]}',
        ),
        ("{{ messages[1].content + messages[1].tool_calls[0].function.name }}", "f"),
        ("{{ messages[1].content + messages[1].tool_calls[0].function.arguments }}", '{"a": "\\u00e9", "b": [1]}'),
    ],
)
async def test_arguments_and_null_content_take_the_form_that_the_template_wants(
    source: str, text: str, templates: list[ChatTemplate]
) -> None:
    templates.append(template := ChatTemplate(source))
    rendered = await template.render(ChatPrompt(messages=(message("user", "x"), message("assistant", None, CALL))))
    assert rendered.text == text


@pytest.mark.parametrize("arguments", ["[1]", "{", "1", "null"])
async def test_arguments_that_are_no_object(arguments: str, templates: list[ChatTemplate]) -> None:
    templates.append(template := ChatTemplate("{{ messages[0].tool_calls }}"))
    with pytest.raises(ValidationError, match=r"`messages\[0\]\.tool_calls` must have arguments"):
        await template.render(ChatPrompt(messages=(message("assistant", None, ToolCall("c", "f", arguments)),)))


async def test_tools_in_words_where_a_template_has_no_place_for_them(templates: list[ChatTemplate]) -> None:
    templates.append(template := ChatTemplate(CHATML))
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    prompt = ChatPrompt(
        messages=(
            message("system", "Be brief."),
            message("user", "x"),
            message("assistant", "So:", CALL),
            message("tool", "done", tool_call_id="c1"),
        ),
        tools=(tool,),
    )
    text = (await template.render(prompt)).text
    assert text.startswith("<|system|>Be brief.\n\n# Tools\n")
    assert f"<tools>\n{json.dumps(tool)}\n</tools>" in text
    assert text.endswith(
        '<|user|>x\n<|assistant|>So:\n<tool_call>\n{"name": "f", "arguments": {"a": "é", "b": [1]}}\n</tool_call>\n'
        "<|user|><tool_response>\ndone\n</tool_response>\n"
    )


# --- what cannot be rendered ---------------------------------------------------------------------------------------

HELLO = ChatPrompt(messages=(message("user", "Hello"),))
BOMBS = [
    ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "100000 steps"),
    ("{% macro m() %}{% for i in range(9) %}{{ m() }}{% endfor %}{% endmacro %}{{ m() }}", "RecursionError|steps"),
    ("{% for i in range(99999) if i < 0 %}{% endfor %}{% for i in range(9999) if i < 0 %}{% endfor %}", "100000 steps"),
    ("{% for i in range(99) %}{{ 'abc' * 100000 }}{% endfor %}", "4194304 characters"),
    ("{{ 'a' * 10 ** 10 }}", "memory"),
    ("{{ '%1000000000d' | format(1) }}", "memory"),
    ("{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "memory|sec"),
    ("{{ range(100000) | select('in', range(100000) | map('string') | list) | list }}", "1 seconds"),
    ("{{ lipsum(n=100000) }}", "seconds|memory"),
    ("{{ range(1000000) | list }}", "OverflowError"),
    ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "RecursionError"),
]


async def test_bombs_end_in_an_error_and_leave_a_renderer_behind(templates: list[ChatTemplate]) -> None:
    templates.append(template := ChatTemplate(CHATML, allow_client=True, seconds=1.0))
    for source, words in BOMBS:
        began = time.monotonic()
        with pytest.raises(ValidationError, match=f"past its limits: .*({words})"):
            await template.render(ChatPrompt(messages=HELLO.messages, template=source))
        assert time.monotonic() - began < 30, source
        # The model's own template waits for no client's.
        assert (await template.render(HELLO)).text == "<|user|>Hello\n"
    good = ChatPrompt(messages=HELLO.messages, template="ok")
    assert (await template.render(good)).text == "ok"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "{{ raise_exception('Only user turns, please') }}",
            "are refused by the chat template: Only user turns, please",
        ),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", r"\(SecurityError\)"),
        ("{{ messages.append(1) }}", r"\(SecurityError\)"),
        ("{{ namespace(_a=1) }}", r"\(SecurityError\)"),
        ("{{ (messages | attr('__class__')) }}x{{ cycler.__init__.__globals__.os }}", r"\(\w+Error\)"),
        ("{% include '/etc/passwd' %}", r"\(TypeError\)"),
        ("{% if %}", r"\(TemplateSyntaxError\)"),
        ("{{ messages[0].nothing.at_all }}", r"\(UndefinedError\)"),
        ("{% if false %}x{% endif %}", "come out of the chat template as nothing"),
        (r"{{ '\ud83d' }}", r"\(UnicodeEncodeError\)"),
        (r"{{ raise_exception('no \ud83d') }}", r"are refused by the chat template: no \?"),
    ],
)
async def test_faults_of_a_template_are_the_callers_errors(
    source: str, words: str, templates: list[ChatTemplate]
) -> None:
    templates.append(template := ChatTemplate(source))
    with pytest.raises(ValidationError, match=words) as caught:
        await template.render(HELLO)
    assert caught.value.field == "messages"


async def test_no_template_and_one_that_is_not_wanted(templates: list[ChatTemplate]) -> None:
    templates += [none := ChatTemplate(None), own := ChatTemplate(CHATML)]
    with pytest.raises(NotSupportedError, match="has no chat template"):
        await none.render(HELLO)
    with pytest.raises(NotSupportedError, match="`chat_template` of a request is not allowed"):
        await own.render(ChatPrompt(messages=HELLO.messages, template="x"))


async def test_continuing_a_text_that_is_not_there(templates: list[ChatTemplate]) -> None:
    templates.append(template := ChatTemplate("{{ messages[0].content }}"))
    chat = ChatPrompt(messages=(message("user", "x"), message("assistant", "It")), continue_final=True)
    with pytest.raises(ValidationError, match="to be continued"):
        await template.render(chat)


async def test_many_at_once_and_clients_that_leave(templates: list[ChatTemplate]) -> None:
    templates.append(template := ChatTemplate(CHATML))
    tasks = [asyncio.create_task(template.render(ChatPrompt(messages=(message("user", f"n {n}"),)))) for n in range(50)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    for n, answer in enumerate(answers):
        if n % 3:
            assert not isinstance(answer, BaseException) and answer.text == f"<|user|>n {n}\n"
        else:
            assert isinstance(answer, asyncio.CancelledError)


async def test_the_environment_stays_outside(templates: list[ChatTemplate], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a template that broke out could read first: the process does not have it."""
    monkeypatch.setenv("INTERLINGUA_API_KEY", "secret")
    templates.append(template := ChatTemplate(CHATML))
    await template.render(HELLO)
    process = template._own._process
    assert process is not None
    environment = Path(f"/proc/{process.pid}/environ").read_bytes()  # noqa: ASYNC240 - no file of a disk
    assert b"secret" not in environment
    template.close()
    assert process.returncode is not None
