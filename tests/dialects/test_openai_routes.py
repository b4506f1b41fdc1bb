"""OpenAI's routes and vLLM's: fields, answers, errors, and the known bugs of other servers on these themes."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import struct
from dataclasses import replace
from typing import Any

import pytest
from served import EOS, ByteTokenizer, Served, say
from wire import SETTINGS, SETUPS, attribute, call, call_or_reply
from wire_cases import ADAPTERS, MODEL, NO_BOOLEANS, NO_INTEGERS, NO_NUMBERS
from wire_client import Got, connect, metric, send, together, wait_until

from interlingua.contract import errors
from interlingua.contract.dialect import Call, Reply
from interlingua.contract.events import FailedEvent, TextToken
from interlingua.contract.request import ChatPrompt, Grammar, TokenPrompt
from interlingua.dialects import openai
from interlingua.engine.echo import EchoEngine
from interlingua.server.app import build_app
from interlingua.server.routes import discover
from interlingua.server.run import bind, listening
from interlingua.server.settings import ServerSettings
from interlingua.service.service import ServedModel, Service
from interlingua.text.chat_template import ChatTemplate

CHAT, COMPLETIONS, VLLM = "/v1/chat/completions", "/v1/completions", "/vllm/generate"
STATUS = {CHAT: 400, COMPLETIONS: 400, VLLM: 422}
USER = [{"role": "user", "content": "Hi"}]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
PLAIN = {"type": "function", "function": {"name": "plain"}}


def body(path: str, fields: str = "") -> bytes:
    """A small body with more fields, as JSON text."""
    prompt = f'"messages":{json.dumps(USER)}' if path == CHAT else '"prompt":"Hi"'
    return ("{" + prompt + ("," + fields if fields else "") + "}").encode()


def request(path: str, fields: str = "", setup: str = "plain") -> Any:
    return call(path, body(path, fields), SETUPS[setup]).request


# --- fields --------------------------------------------------------------------------------------------------------

# name, routes, good values, bad values; all JSON text
EDGES: list[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = [
    ("temperature", (CHAT, COMPLETIONS), ("0", "0.7", "2", "1e-12"), ("-0.1", "2.1", *NO_NUMBERS)),
    ("temperature", (VLLM,), ("0", "0.7", "2.1"), ("-0.1", *NO_NUMBERS)),
    ("top_p", (CHAT, COMPLETIONS, VLLM), ("1", "1.0", "0.0001"), ("0", "1.1", *NO_NUMBERS)),
    ("top_k", (CHAT, COMPLETIONS, VLLM), ("-1", "0", "5000000"), ("-2", "2147483648", *NO_INTEGERS)),
    ("min_p", (CHAT, COMPLETIONS, VLLM), ("0", "1"), ("-0.1", "1.1", *NO_NUMBERS)),
    ("presence_penalty", (CHAT, COMPLETIONS, VLLM), ("-2", "2"), ("-2.1", "2.1", *NO_NUMBERS)),
    ("frequency_penalty", (CHAT, COMPLETIONS, VLLM), ("-2", "2"), ("-2.1", "2.1", *NO_NUMBERS)),
    ("repetition_penalty", (CHAT, COMPLETIONS, VLLM), ("0.1", "50"), ("0", "-1", *NO_NUMBERS)),
    (
        "logit_bias",
        (CHAT, COMPLETIONS, VLLM),
        ("{}", '{"5":-100,"7":1.5}'),
        ('{"x":1}', '{"5":101}', '{"5":true}', "[]"),
    ),
    ("seed", (CHAT, COMPLETIONS, VLLM), ("0", "-1", "9223372036854775807"), ("9223372036854775808", *NO_INTEGERS)),
    ("n", (CHAT, COMPLETIONS, VLLM), ("1", "2"), ("0", "129", *NO_INTEGERS)),
    ("stop", (CHAT, COMPLETIONS), ('"x"', "[]", '["a","b","c","d"]'), ('""', '["a",""]', '["a","b","c","d","e"]', "1")),
    ("stop", (VLLM,), ('"x"', '["a","b","c","d","e"]'), ('""', "[1]")),
    ("stop_token_ids", (CHAT, COMPLETIONS, VLLM), ("[]", "[5]"), ("[-1]", '["5"]', "5")),
    ("max_tokens", (CHAT, COMPLETIONS, VLLM), ("1", "2147483647"), ("-1", "2147483648", *NO_INTEGERS)),
    ("max_tokens", (CHAT, VLLM), (), ("0",)),
    ("max_completion_tokens", (CHAT,), ("1",), ("0", *NO_INTEGERS)),
    ("min_tokens", (CHAT, COMPLETIONS, VLLM), ("0", "1"), ("-1", *NO_INTEGERS)),
    ("priority", (CHAT, COMPLETIONS, VLLM), ("1", "5"), ("0", "6", *NO_INTEGERS)),
    ("truncate_prompt_tokens", (CHAT, COMPLETIONS, VLLM), ("1",), ("0", *NO_INTEGERS)),
    *(
        (name, (CHAT, COMPLETIONS, VLLM), ("true", "false"), NO_BOOLEANS)
        for name in ("stream", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output")
    ),
    ("logprobs", (CHAT,), ("true", "false"), NO_BOOLEANS),
    ("logprobs", (COMPLETIONS,), ("0", "5"), ("-1", "6", "true", *NO_INTEGERS)),
    ("echo", (COMPLETIONS,), ("true", "false"), NO_BOOLEANS),
    ("best_of", (COMPLETIONS, VLLM), ("1", "3"), ("0", "21", *NO_INTEGERS)),
    ("suffix", (COMPLETIONS,), ('""',), ('"x"', "1")),
    ("model", (CHAT, COMPLETIONS, VLLM), ('"tiny"',), ('""', "1", f'"{"x" * 257}"')),
    ("guided_regex", (CHAT, COMPLETIONS, VLLM), ('"a+"',), ('""', "1", "[]")),
    ("guided_choice", (CHAT, COMPLETIONS, VLLM), ('["a","b"]',), ("[]", '[""]', '"a"', "[1]")),
    ("guided_json", (CHAT, COMPLETIONS, VLLM), ("{}", '"{}"'), ("[]", '"{oops"', "1", '"[]"', r'"{\"const\":NaN}"')),
    ("guided_grammar", (CHAT, COMPLETIONS, VLLM), ('"start: A"',), ('""', "1")),
    ("structured_outputs", (CHAT, COMPLETIONS, VLLM), ('{"regex":"a"}',), ("{}", '{"regex":"a","choice":["a"]}', "1")),
    ("use_beam_search", (CHAT, COMPLETIONS, VLLM), ("false",), ("true",)),
    ("stream_options", (CHAT, COMPLETIONS), (), ("1", "[]", '{"include_usage":1}', '{"include_usage":true}')),
    (
        "response_format",
        (CHAT, COMPLETIONS),
        (
            '{"type":"text"}',
            '{"type":"json_object"}',
            '{"type":"json_schema","json_schema":{"name":"x","schema":{}}}',
            '{"type":"json_object","json_schema":null,"value":null}',
            '{"type":"json","value":{}}',
            '{"type":"regex","value":"a"}',
        ),
        (
            '{"type":"xml"}',
            '{"type":"json_schema"}',
            '{"type":"json_schema","json_schema":{"name":"x"}}',
            '{"type":"json_schema","json_schema":{"schema":{}}}',
            '{"type":"json_schema","json_schema":{"name":"a b","schema":{}}}',
            '{"type":"json_schema","json_schema":{"name":"x","schema":{}},"value":{"schema":{}}}',
            '{"type":"json_schema","value":{}}',
            '{"type":"json_object","json_schema":{"name":"x","schema":{}}}',
            '{"type":"json_object","value":[]}',
            '{"type":"json_object","value":"{"}',
            '{"type":"json"}',
            '{"type":"json","json_schema":{"name":"x","schema":{}},"value":{}}',
            '{"type":"regex"}',
            '{"type":"regex","value":{}}',
            '{"type":"text","value":{}}',
            '{"type":["json"]}',
            "{}",
            "1",
        ),
    ),
    ("tools", (CHAT,), ("[]", json.dumps([WEATHER, PLAIN])), ("{}", "[1]", '[{"type":"x"}]', json.dumps([PLAIN] * 2))),
    ("tools", (CHAT,), (), ('[{"type":"function","function":{"name":"a b"}}]',)),
    ("tools", (CHAT,), (), ('[{"type":"function","function":{"name":"a","parameters":[]}}]',)),
    ("tool_choice", (CHAT,), ('"none"', '"auto"'), ('"required"', '"x"', '""', "1", "[]", "{}")),
    ("tool_choice", (CHAT,), (), ('{"type":"function"}', '{"type":"x","function":{"name":"plain"}}')),
    ("tool_choice", (CHAT,), (), ('{"function":{}}', '{"function":{"name":""}}', '{"function":{"name":1}}')),
    ("functions", (CHAT,), ("[]",), ('[{"name":"x"}]',)),
    ("modalities", (CHAT,), ('["text"]',), ('["audio"]',)),
    ("top_logprobs", (CHAT,), ("0",), ("21", "1", *NO_INTEGERS)),
]
TABLE = [
    (path, name, text, good)
    for name, paths, good_ones, bad_ones in EDGES
    for path in paths
    for texts, good in ((good_ones, True), (bad_ones, False))
    for text in texts
]


@pytest.mark.parametrize(("path", "name", "text", "good"), TABLE, ids=lambda part: str(part)[:40])
def test_edges(path: str, name: str, text: str, good: bool) -> None:
    outcome = call_or_reply(path, body(path, f'"{name}":{text}'))
    if good:
        assert isinstance(outcome, Call), outcome
        return
    assert isinstance(outcome, Reply) and outcome.status == STATUS[path]
    answer = json.loads(outcome.body)
    message = answer["error"] if path == VLLM else answer["error"]["message"]
    assert message.startswith(f"`{name}") or text in ("NaN", "1e400"), message
    if path != VLLM and message.startswith("`"):
        assert answer["error"]["param"] == message.split("`")[1]
        assert (answer["error"]["type"], answer["error"]["code"]) == ("invalid_request_error", None)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, VLLM])
def test_null_is_absent_and_unknown_fields_change_nothing(path: str) -> None:
    names = {name for name, paths, *_ in EDGES if path in paths}
    nulls = ",".join(f'"{name}":null' for name in sorted(names))
    assert request(path, nulls) == request(path) == request(path, '"store":true,"metadata":{"a":"b"},"extra":[1]')


NULL = Grammar("json_schema", '{"type":"null"}')
READS: list[tuple[str, str, dict[str, object]]] = [
    (
        CHAT,
        "",
        {"max_new_tokens": None, "n": 1, "priority": 5, "sampling.do_sample": True, "sampling.temperature": None},
    ),
    (COMPLETIONS, "", {"max_new_tokens": 16, "sampling.do_sample": True, "prompt_logprobs": False}),
    (VLLM, "", {"max_new_tokens": 16, "sampling.do_sample": True}),
    (CHAT, '"max_tokens":3', {"max_new_tokens": 3}),
    (CHAT, '"max_tokens":3,"max_completion_tokens":4', {"max_new_tokens": 4}),
    (CHAT, '"temperature":0', {"sampling.do_sample": False}),
    (CHAT, '"temperature":1e-12', {"sampling.do_sample": False}),
    (CHAT, '"temperature":0.0001', {"sampling.do_sample": True}),
    (CHAT, '"seed":-1', {"sampling.seed": 2**64 - 1}),
    (CHAT, '"seed":0', {"sampling.seed": 0}),
    (CHAT, '"top_k":-1', {"sampling.top_k": 0}),
    (CHAT, '"frequency_penalty":1', {"sampling.frequency_penalty": 1.0, "sampling.frequency_over": "output"}),
    (CHAT, '"presence_penalty":1,"repetition_penalty":2', {"sampling.presence_penalty": 1.0}),
    (CHAT, '"logit_bias":{"7":-1,"5":2}', {"sampling.logit_bias": ((5, 2.0), (7, -1.0))}),
    (CHAT, '"stop":"x"', {"stop": ("x",), "stop_mode.value": "cut"}),
    (CHAT, '"stop_token_ids":[7,5,7,7]', {"stop_token_ids": (5, 7)}),
    (CHAT, '"stop":["x","y"],"include_stop_str_in_output":true', {"stop": ("x", "y"), "stop_mode.value": "keep"}),
    (CHAT, '"logprobs":true,"top_logprobs":3', {"top_n_tokens": 3}),
    (CHAT, '"model":"my-lora"', {"model": "my-lora"}),
    (CHAT, '"model":"dummy"', {"model": None}),
    (COMPLETIONS, '"model":"tgi"', {"model": None}),
    (VLLM, '"model":"tgi"', {"model": "tgi"}),
    (CHAT, '"response_format":{"type":"json_object"}', {"grammar": Grammar("json_schema", '{"type":"object"}')}),
    # As TGI writes grammars there, which Hugging Face's client documents.
    (CHAT, '"response_format":{"type":"json_object","value":{"type":"null"}}', {"grammar": NULL}),
    (CHAT, '"response_format":{"type":"json","value":{"type":"null"}}', {"grammar": NULL}),
    (CHAT, '"response_format":{"type":"json","value":"{\\"type\\":\\"null\\"}"}', {"grammar": NULL}),
    (CHAT, '"response_format":{"type":"json_schema","value":{"schema":{"type":"null"}}}', {"grammar": NULL}),
    (
        CHAT,  # as in its clients' examples: of an object, though it does not say so
        '"response_format":{"type":"json","value":{"properties":{"a":{"type":"null"}},"required":["a"]}}',
        {"grammar": Grammar("json_schema", '{"type":"object","properties":{"a":{"type":"null"}},"required":["a"]}')},
    ),
    (COMPLETIONS, '"response_format":{"type":"regex","value":"a+"}', {"grammar": Grammar("regex", "a+")}),
    (CHAT, '"guided_choice":["a","b"]', {"grammar": Grammar("choice", '["a","b"]')}),
    (CHAT, '"structured_outputs":{"regex":"a+"}', {"grammar": Grammar("regex", "a+")}),
    (CHAT, '"guided_grammar":"start: A"', {"grammar": Grammar("lark", "start: A")}),
    (CHAT, '"chat_template_kwargs":{"enable_thinking":false}', {"prompt.arguments": {"enable_thinking": False}}),
    (CHAT, '"reasoning_effort":"low"', {"prompt.arguments": {"reasoning_effort": "low"}}),
    (CHAT, '"continue_final_message":true', {"prompt.continue_final": True, "prompt.add_generation_prompt": False}),
    (COMPLETIONS, '"echo":true,"logprobs":0', {"prompt_logprobs": True, "top_n_tokens": 0}),
    (COMPLETIONS, '"echo":true,"max_tokens":0', {"max_new_tokens": 1, "prompt_logprobs": False}),
    (COMPLETIONS, '"best_of":3', {"best_of": 3, "n": 1}),
    (COMPLETIONS, '"best_of":2,"n":2', {"best_of": 1, "n": 2}),
    (COMPLETIONS, '"add_special_tokens":false', {"prompt.add_special": False}),
    (COMPLETIONS, '"truncate_prompt_tokens":4', {"truncate": 4}),
]


@pytest.mark.parametrize(("path", "fields", "expected"), READS, ids=lambda part: str(part)[:40])
def test_what_the_contract_gets(path: str, fields: str, expected: dict[str, object]) -> None:
    got = request(path, fields)
    assert {name: attribute(got, name) for name in expected} == expected


REFUSED_TOGETHER: list[tuple[str, str, str]] = [
    (CHAT, '"guided_regex":"a","guided_choice":["a"]', "guided_choice"),
    (CHAT, '"response_format":{"type":"json_object"},"guided_regex":"a"', "guided_regex"),
    (CHAT, f'"tools":[{json.dumps(PLAIN)}],"tool_choice":"required","guided_regex":"a"', "guided_regex"),
    (
        CHAT,
        f'"tools":[{json.dumps(PLAIN)}],"tool_choice":{{"type":"function","function":{{"name":"x"}}}}',
        "tool_choice",
    ),
    (CHAT, '"top_logprobs":1', "top_logprobs"),
    (CHAT, '"continue_final_message":true,"add_generation_prompt":true', "continue_final_message"),
    (COMPLETIONS, '"max_tokens":0', "max_tokens"),
    (COMPLETIONS, '"best_of":1,"n":2', "best_of"),
    (COMPLETIONS, '"best_of":2,"stream":true', "best_of"),
    (COMPLETIONS, '"best_of":2,"temperature":0', "best_of"),
]


@pytest.mark.parametrize(("path", "fields", "field"), REFUSED_TOGETHER, ids=lambda part: str(part)[:50])
def test_what_cannot_stand_together(path: str, fields: str, field: str) -> None:
    outcome = call_or_reply(path, body(path, fields))
    assert isinstance(outcome, Reply) and outcome.status == 400
    assert json.loads(outcome.body)["error"]["param"] == field


def test_lenient_ranges() -> None:
    assert request(CHAT, '"stop":["a","b","c","d","e"],"temperature":3', "lenient").stop == tuple("abcde")


# --- prompts and messages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ('"a"', ["a"]),
        ('["a","b"]', ["a", "b"]),
        ("[5,6]", [(5, 6)]),
        ("[[5,6],[7]]", [(5, 6), (7,)]),
        ('["a",[7]]', ["a", (7,)]),
    ],
)
def test_forms_of_a_prompt(prompt: str, prompts: list[Any]) -> None:
    got = call(COMPLETIONS, f'{{"prompt":{prompt},"n":2}}'.encode())
    requests = [got.request, *got.more]
    found = [one.prompt.ids if isinstance(one.prompt, TokenPrompt) else one.prompt.text for one in requests]  # type: ignore[union-attr]
    assert found == prompts
    assert got.choices == 2 * len(prompts)
    places = [one.prompt.field for one in requests]
    assert places == (
        ["prompt"] if len(prompts) == 1 and prompt[1] != '"' else [f"prompt[{i}]" for i in range(len(prompts))]
    )


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ('""', "prompt"),
        ("[]", "prompt"),
        ("1", "prompt"),
        ("{}", "prompt"),
        ('["a",""]', "prompt[1]"),
        ("[[]]", "prompt[0]"),
        ("[5,-1]", "prompt[1]"),
        ("[[5],[5.0]]", "prompt[1][0]"),
        ("[true]", "prompt[0]"),
        ("[2147483648]", "prompt[0]"),
        (json.dumps(["a"] * 129), "prompt"),
    ],
)
def test_bad_prompts(prompt: str, param: str) -> None:
    outcome = call_or_reply(COMPLETIONS, f'{{"prompt":{prompt}}}'.encode())
    assert isinstance(outcome, Reply) and json.loads(outcome.body)["error"]["param"] == param


def chat_prompt(*messages: Any, **fields: Any) -> ChatPrompt:
    prompt = call(CHAT, json.dumps({"messages": messages, **fields}).encode()).request.prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


TOOL_CALLS = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]


def test_messages() -> None:
    prompt = chat_prompt(
        {"role": "system", "content": "s", "name": "n"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": TOOL_CALLS, "reasoning_content": "why"},
        {"role": "assistant", "tool_calls": TOOL_CALLS},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    )
    system, user, first, second, tool = prompt.messages
    assert (system.text, system.name, user.text) == ("s", "n", "ab")
    assert (first.parts, first.reasoning, second.parts) == (None, "why", None)
    assert (first.tool_calls[0].name, first.tool_calls[0].arguments) == ("f", '{"a":1}')
    assert (tool.text, tool.tool_call_id) == ("done", "c1")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "assistant", "content": None}, "messages[1].content"),
        ({"role": "user", "content": []}, "messages[1].content"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "robot", "content": "x"}, "messages[1].role"),
        ({"content": "x"}, "messages[1].role"),
        ("x", "messages[1]"),
        ({"role": "tool", "content": "x"}, "messages[1].tool_call_id"),
        ({"role": "user", "content": [{"type": "foo"}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,@@@"}}]},
         "messages[1].content[0].image_url.url"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "a b"}}]},
         "messages[1].tool_calls[0].function.name"),
        ({"role": "assistant", "tool_calls": {}}, "messages[1].tool_calls"),
    ],
)  # fmt: skip
def test_bad_messages(message: Any, param: str) -> None:
    outcome = call_or_reply(CHAT, json.dumps({"messages": [USER[0], message]}).encode())
    assert isinstance(outcome, Reply)
    assert (outcome.status, json.loads(outcome.body)["error"]["param"]) == (400, param)


def test_media_parts_know_their_place() -> None:
    url = "data:image/png;base64,AAAA"
    prompt = chat_prompt({"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]})
    (part,) = prompt.messages[0].parts or ()
    assert (part.kind, part.field) == ("image", "messages[0].content[0].image_url.url")  # type: ignore[union-attr]
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    (part,) = chat_prompt({"role": "user", "content": [sound]}).media
    assert (part.kind, part.form, part.field) == ("audio", "data", "messages[0].content[0].input_audio.data")


@pytest.mark.parametrize(
    ("sound", "suffix"),
    [
        (None, ""),
        ({"data": "AAAA"}, ""),
        ({"data": "AAAA", "format": "ogg"}, ""),
        ({"data": "AAAA", "format": []}, ""),
        ({"data": 1, "format": "wav"}, ""),
        ({"data": "", "format": "wav"}, ".data"),
        ({"data": "@@@@", "format": "wav"}, ".data"),
        ({"data": "AAAA" * (20 * 2**20 // 3 + 1), "format": "wav"}, ".data"),
    ],
    ids=["none", "no format", "ogg", "a list", "a number", "empty", "no base64", "too large"],
)
def test_bad_sounds(sound: Any, suffix: str) -> None:
    content = [{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": sound}]
    outcome = call_or_reply(CHAT, json.dumps({"messages": [{"role": "user", "content": content}]}).encode())
    assert isinstance(outcome, Reply)
    assert json.loads(outcome.body)["error"]["param"] == f"messages[0].content[1].input_audio{suffix}"


def test_a_message_has_twenty_media_at_most() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    message = {"role": "user", "content": [image] * 20}
    assert len(call(CHAT, json.dumps({"messages": [message] * 2}).encode()).request.prompt.media) == 40
    message["content"] = [image] * 21
    outcome = call_or_reply(CHAT, json.dumps({"messages": [USER[0], message]}).encode())
    assert isinstance(outcome, Reply)
    error = json.loads(outcome.body)["error"]
    assert error["param"] == "messages[1].content" and "at most 20 media parts, got 21" in error["message"]


# --- grammars of calls ---------------------------------------------------------------------------------------------


def grammar(**fields: Any) -> Any:
    got = call(CHAT, json.dumps({"messages": USER, **fields}).encode()).request.grammar
    return None if got is None else json.loads(got.value)


@pytest.mark.parametrize(
    "named",
    [
        {"type": "function", "function": {"name": "weather"}},
        {"function": {"name": "weather"}},  # as TGI's clients write it
        {"type": None, "function": {"name": "weather"}},
        "weather",
    ],
)
def test_a_named_function_is_its_parameters(named: object) -> None:
    assert grammar(tools=[WEATHER, PLAIN], tool_choice=named) == WEATHER["function"]["parameters"]  # type: ignore[index]


@pytest.mark.parametrize("choice", ["any", {"function": {"name": "any"}}])
def test_a_choice_of_no_tool_is_told_them(choice: object) -> None:
    fields = {"messages": USER, "tools": [WEATHER, PLAIN], "tool_choice": choice}
    outcome = call_or_reply(CHAT, json.dumps(fields).encode())
    assert isinstance(outcome, Reply) and outcome.status == 400
    message = json.loads(outcome.body)["error"]["message"]
    assert message == (
        '`tool_choice` must be none, auto, required or name one of the tools (weather, plain), got "any"'
    )


def test_tools_are_a_choice() -> None:
    assert grammar(tools=[WEATHER], tool_choice="auto") is None
    assert grammar(tools=[WEATHER], tool_choice="none") is None


def test_required_is_a_list_of_calls_whose_references_stay_good() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "top": {"$ref": "#"}}}
    tree = {"type": "function", "function": {"name": "tree", "parameters": {**node, "$defs": {"node": node}}}}
    schema = grammar(tools=[PLAIN, tree], tool_choice="required", parallel_tool_calls=False)
    assert (schema["type"], schema["minItems"], schema["maxItems"]) == ("array", 1, 1)
    names = [one["properties"]["name"]["const"] for one in schema["items"]["anyOf"]]
    places = [one["properties"]["arguments"]["$ref"] for one in schema["items"]["anyOf"]]
    assert (names, places) == (["plain", "tree"], ["#/$defs/0", "#/$defs/1"])
    moved = schema["$defs"]["1"]["$defs"]["node"]["properties"]
    assert (moved["next"]["$ref"], moved["top"]["$ref"]) == ("#/$defs/1/$defs/node", "#/$defs/1")


# --- errors --------------------------------------------------------------------------------------------------------

SHAPES = {
    errors.ValidationError("top_p", "is wrong"): (400, "invalid_request_error", "top_p", None),
    errors.NotSupportedError("", "the body is empty"): (400, "invalid_request_error", None, None),
    errors.UnknownModelError("x", "m"): (404, "invalid_request_error", "model", "model_not_found"),
    errors.NotFoundError("there is nothing at /v1/x"): (404, "invalid_request_error", None, None),
    errors.UnauthorizedError("no key"): (401, "invalid_request_error", None, "invalid_api_key"),
    errors.ForbiddenError("not you"): (403, "invalid_request_error", None, None),
    errors.MethodNotAllowedError("no", ("POST",)): (405, "invalid_request_error", None, None),
    errors.PayloadTooLargeError("big"): (413, "invalid_request_error", None, "payload_too_large"),
    errors.OverloadedError("full"): (429, "rate_limit_error", None, "rate_limit_exceeded"),
    errors.UnavailableError("loading"): (503, "server_error", None, "service_unavailable"),
    errors.RequestTimeoutError("late"): (504, "server_error", None, "timeout"),
    errors.GenerationError("bad"): (500, "server_error", None, None),
    errors.IncompleteGenerationError("cut"): (500, "server_error", None, None),
    errors.RequestError("fault"): (500, "server_error", None, None),
}


@pytest.mark.parametrize("error", SHAPES, ids=lambda error: type(error).__name__)
def test_shapes_of_errors(error: errors.RequestError) -> None:
    reply = openai.DIALECT.render_error(error)
    answer = json.loads(reply.body)
    assert list(answer) == ["error"] and list(answer["error"]) == ["message", "type", "param", "code"]
    shape = (reply.status, answer["error"]["type"], answer["error"]["param"], answer["error"]["code"])
    assert shape == SHAPES[error]


def test_every_kind_of_error_has_a_shape() -> None:
    assert {type(error) for error in SHAPES} >= {
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RequestError)
    }


# --- over a socket, with the scripted engine -----------------------------------------------------------------------


def events(got: Got) -> list[Any]:
    """The chunks of a stream, whose `[DONE]` must be there once, last."""
    assert got.status == 200, got.body
    assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
    frames = got.body.decode().split("\n\n")
    assert frames.pop() == "" and frames.pop() == "data: [DONE]" and "data: [DONE]" not in frames
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def chat(served: Served, prompt: str, setup: str = "plain", **fields: Any) -> Got:
    fields = {"messages": [{"role": "user", "content": prompt}], "model": MODEL, **fields}
    return send(served.urls[setup], CHAT, fields)


def complete(served: Served, prompt: Any, **fields: Any) -> Got:
    return send(served.url, COMPLETIONS, {"prompt": prompt, "model": MODEL, **fields})


ANSWERS: list[tuple[tuple[str | int, ...], dict[str, Any]]] = [
    (("alpha", " beta", " gamma"), {}),
    (("é", "😀", "\u2028", "日本語"), {}),
    (("    ", "alpha"), {}),
    (("onetwo", "threefour"), {"stop": ["twothree"]}),
    (("onetwo", "threefour"), {"stop": "two", "include_stop_str_in_output": True}),
    (("alpha", " beta"), {"max_tokens": 1}),
    (("alpha",), {"n": 3}),
    (("alpha", 258, " beta"), {"skip_special_tokens": False}),
    (("alpha", 258, " beta"), {}),
    (("<think>hm", "</think>", "\n\nso"), {}),
    (('<tool_call>{"name": "weather", "arguments": ', '{"city": "Zürich"}}</tool_call>'), {"tools": [WEATHER]}),
    (('ok: <tool_call>{"name": "plain"}</tool_call>',), {"tools": [WEATHER, PLAIN]}),
    (('<tool_call>{"name": "plain"}</tool_call>',), {"tools": [PLAIN], "max_tokens": 41}),
    (('<tool_call>{"name": "nothing"}</tool_call>',), {"tools": [PLAIN]}),
    (('<tool_call>{"name": "plain"}</tool_call>',), {}),
]


@pytest.mark.parametrize(("pieces", "fields"), ANSWERS, ids=lambda part: str(part)[:50])
@pytest.mark.parametrize("logprobs", [False, True])
def test_a_chats_stream_is_its_answer(
    served: Served, pieces: tuple[str | int, ...], fields: dict[str, Any], logprobs: bool
) -> None:
    if logprobs:
        fields = {**fields, "logprobs": True, "top_logprobs": 2}
    whole = chat(served, say(*pieces), **fields).json
    chunks = events(chat(served, say(*pieces), **fields, stream=True, stream_options={"include_usage": True}))
    usage = chunks.pop()
    assert usage["choices"] == [] and usage["usage"] == whole["usage"]
    assert all(chunk["usage"] is None and chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1
    for choice in whole["choices"]:
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert own[0]["delta"] == {"role": "assistant", "content": None if "tool_calls" in own[1]["delta"] else ""}
        assert [one["finish_reason"] for one in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1]["finish_reason"] == choice["finish_reason"] and own[-1]["delta"] == {}
        deltas = [one["delta"] for one in own]
        message = choice["message"]
        assert "".join(delta.get("content") or "" for delta in deltas) == (message["content"] or "")
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message.get("reasoning_content", "")
        calls: list[dict[str, str]] = []
        for delta in deltas:
            for piece in delta.get("tool_calls", ()):
                if "id" in piece:
                    assert piece["index"] == len(calls)
                    calls.append({"name": piece["function"]["name"], "arguments": ""})
                calls[piece["index"]]["arguments"] += piece["function"]["arguments"]
        assert calls == [one["function"] for one in message.get("tool_calls", [])]
        entries = [entry for one in own if one["logprobs"] for entry in one["logprobs"]["content"]]
        assert entries == (choice["logprobs"]["content"] if logprobs else [])
        assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_the_parts_of_a_chats_answer(served: Served) -> None:
    answer = chat(served, say("alpha", "é"), logprobs=True, top_logprobs=1).json
    assert list(answer) == ["id", "object", "created", "model", "system_fingerprint", "choices", "usage"]
    assert answer["id"].startswith("chatcmpl-") and answer["object"] == "chat.completion" and answer["model"] == MODEL
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "alphaé", "refusal": None}
    assert choice["finish_reason"] == "stop"
    # One token a byte: half a character has its bytes, and no text of its own.
    assert [entry["bytes"] for entry in choice["logprobs"]["content"]] == [list(b"alpha"), [0xC3], [0xA9]]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["alpha", "bytes:\\xc3", "bytes:\\xa9"]
    assert answer["usage"]["completion_tokens"] == 4  # the end of the sequence counts
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 4


def test_reasoning_that_the_prompt_opened(served: Served) -> None:
    fields = {"chat_template_kwargs": {"thinking": True}}
    message = chat(served, say("hm\n", "</think>", "\n\nso"), **fields).json["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "so")
    cut = chat(served, say("hm", "hm"), max_tokens=2, **fields).json["choices"][0]
    assert (cut["message"]["reasoning_content"], cut["message"]["content"]) == ("hm", None)
    assert cut["finish_reason"] == "length"


def test_calls_have_ids_and_a_reason(served: Served) -> None:
    script = say('<tool_call>{"name": "plain"}</tool_call>' * 2)
    (choice,) = chat(served, script, tools=[PLAIN]).json["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    ids = [call["id"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 2 and all(0 < len(one) <= 64 for one in ids)
    (single,) = chat(served, script, tools=[PLAIN], parallel_tool_calls=False).json["choices"]
    assert len(single["message"]["tool_calls"]) == 1
    (none,) = chat(served, script, tools=[PLAIN], tool_choice="none").json["choices"]
    assert none["message"]["content"].startswith("<tool_call>") and "tool_calls" not in none["message"]


def test_without_the_option_no_chunk_has_usage(served: Served) -> None:
    chunks = events(chat(served, say("alpha"), stream=True))
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


@pytest.mark.parametrize("fields", [{}, {"echo": True}, {"logprobs": 1}, {"echo": True, "logprobs": 2}])
@pytest.mark.parametrize("prompts", [say("alpha", "é"), [say("alpha"), say(" beta", "c")], [72, 105], [[72], [105]]])
def test_a_completions_stream_is_its_answer(served: Served, prompts: Any, fields: dict[str, Any]) -> None:
    whole = complete(served, prompts, **fields, n=2).json
    assert [choice["index"] for choice in whole["choices"]] == list(range(2 * (2 if _listed(prompts) else 1)))
    chunks = events(complete(served, prompts, **fields, n=2, stream=True, stream_options={"include_usage": True}))
    assert chunks.pop()["usage"] == whole["usage"]
    for choice in whole["choices"]:
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert "".join(one["text"] for one in own) == choice["text"]
        assert own[-1]["finish_reason"] == choice["finish_reason"] == "stop"
        if "logprobs" in fields:
            for name, values in choice["logprobs"].items():
                assert [value for one in own for value in one["logprobs"][name]] == values


def _listed(prompts: Any) -> bool:
    return isinstance(prompts, list) and not isinstance(prompts[0], int)


def test_echo_gives_back_the_prompt_and_its_logprobs(served: Served) -> None:
    (choice,) = complete(served, "Hi", echo=True, logprobs=2).json["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == "HiHi"
    assert logprobs["tokens"] == ["<s>", "H", "i", "H", "i"]
    assert logprobs["text_offset"] == [0, 0, 1, 2, 3]
    assert logprobs["token_logprobs"][0] is None and all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert logprobs["top_logprobs"][:3] == [None] * 3
    assert all(len(top) == 2 for top in logprobs["top_logprobs"][3:])
    assert complete(served, [72, 105], echo=True).json["choices"][0]["text"] == "HiHi"


@pytest.mark.parametrize("prompt", ["abcd", "aé😀cd", "dddd", ""])
def test_the_offsets_of_a_truncated_prompt_are_those_of_its_last_tokens(served: Served, prompt: str) -> None:
    prompt += "efg"
    (choice,) = complete(served, prompt, echo=True, logprobs=0, truncate_prompt_tokens=4, max_tokens=2).json["choices"]
    logprobs, start = choice["logprobs"], len(prompt) - 3
    assert logprobs["tokens"][:4] == ["<s>", "e", "f", "g"]
    assert logprobs["text_offset"][:4] == [start, start, start + 1, start + 2]


def test_only_the_prompt(served: Served) -> None:
    answer = complete(served, "Hi", echo=True, logprobs=0, max_tokens=0).json
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Hi", "length")
    assert choice["logprobs"]["tokens"] == ["<s>", "H", "i"] and answer["usage"]["completion_tokens"] == 0


def test_best_of_returns_n_and_counts_all(served: Served) -> None:
    answer = complete(served, say("alpha"), best_of=3, n=2).json
    assert [choice["text"] for choice in answer["choices"]] == ["alpha", "alpha"]
    assert answer["usage"]["completion_tokens"] == 3 * 2


def test_the_prompts_own_stop_ends_nothing(served: Served) -> None:
    assert complete(served, "Q: 1\nA:", echo=True, stop=["Q:"], logit_bias={}).json["choices"][0]["text"] == "Q: 1\nA:"


@pytest.mark.parametrize("stream", [False, True])
def test_refusals_come_before_the_first_byte(served: Served, stream: bool) -> None:
    for got, param, status in (
        (chat(served, "x", n=0, stream=stream), "n", 400),
        (chat(served, "x" * 2000, stream=stream), "messages", 400),
        (chat(served, "x", model="no-such", stream=stream), "model", 404),
        (chat(served, "x", model="../../etc", stream=stream), "model", 404),
        (chat(served, "x", model="Dummy", stream=stream), "model", 404),
        (chat(served, "x", logit_bias={"99999999": 5}, stream=stream), "logit_bias", 400),
        (chat(served, "x", stop_token_ids=[99999999], stream=stream), "stop_token_ids", 400),
        (chat(served, "x", chat_template="y", stream=stream), "chat_template", 400),
        (complete(served, ["ok", "x" * 2000], stream=stream), "prompt[1]", 400),
        (complete(served, [[5], [99999]], stream=stream), "prompt[1]", 400),
    ):
        assert (got.status, got.json["error"]["param"]) == (status, param), got.body
        assert got.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, VLLM])
def test_an_answer_cannot_be_asked_to_be_longer_than_it_may_be(path: str) -> None:
    assert request(path, '"min_tokens":7,"max_tokens":7').min_new_tokens == 7
    with pytest.raises(errors.ValidationError, match="`min_tokens` must be at most max_tokens, 7, got 8"):
        request(path, '"min_tokens":8,"max_tokens":7')
    if path == CHAT:  # absent means the room that is left
        assert request(path, '"min_tokens":17').min_new_tokens == 17
        with pytest.raises(errors.ValidationError, match="at most max_completion_tokens, 7, got 8"):
            request(path, '"min_tokens":8,"max_completion_tokens":7,"max_tokens":9')
    else:
        with pytest.raises(errors.ValidationError, match="at most max_tokens, 16, got 17"):
            request(path, '"min_tokens":17')


def test_biases_for_more_ids_than_there_are() -> None:
    biases = json.dumps({str(token_id): 1 for token_id in range(257)})
    with pytest.raises(errors.ValidationError, match="at most 256 ids, got 257"):
        request(CHAT, f'"logit_bias":{biases}')


def test_bodies_that_are_none(served: Served) -> None:
    for data in (b"", b'{"messages":[],}', b"[]", b"null", b"{}", b'{"messages":[]}', b'{"messages":[{}]}'):
        got = send(served.url, CHAT, data)
        assert got.status == 400 and got.json["error"]["type"] == "invalid_request_error", data
    surrogate = b'{"messages":[{"role":"user","content":"smile \\ud83d"}],"stream":true}'
    assert send(served.url, CHAT, surrogate).status == 400
    pair = b'{"messages":[{"role":"user","content":"\\ud83d\\ude00"}],"max_tokens":4}'
    assert send(served.url, CHAT, pair).json["choices"][0]["message"]["content"] == "😀"
    assert send(served.url, CHAT, method="GET").json["error"]["type"] == "invalid_request_error"
    assert send(served.url, "/v1/nothing", {}).json["error"]["message"] == "there is nothing at /v1/nothing"


def test_a_fault_inside_a_stream_is_one_event_and_the_end(served: Served) -> None:
    for got in (
        chat(served, say("abcdef", fail_at=3), stream=True, stream_options={"include_usage": True}),
        complete(served, [say("abcdef", fail_at=3), say("x" * 40, delay=0.05)], stream=True, max_tokens=50),
    ):
        chunks = events(got)
        assert chunks[-1]["error"]["type"] == "server_error" and all("error" not in one for one in chunks[:-1])
    assert chat(served, say("abc", fail_at=0), stream=True).status == 500
    assert chat(served, say("abc", fail_at=2)).json["error"]["type"] == "server_error"
    wait_until(lambda: metric(served.url, "tgi_queue_size") == 0)


def test_overload_has_the_dialects_shape(served: Served) -> None:
    slow = [lambda: chat(served, say("a", start_delay=1.0), "small") for _ in range(8)]
    answers = together(*slow)
    statuses = sorted(got.status for got in answers)
    assert statuses.count(200) == 4 and statuses.count(429) == 4
    refused = next(got for got in answers if got.status == 429)
    assert refused.json["error"]["code"] == "rate_limit_exceeded" and int(refused.headers["retry-after"]) >= 1


def test_each_prompt_takes_a_permit(served: Served) -> None:
    """Of the four that there are. More than four is a wrong value: waiting would not help."""
    url = served.urls["small"]

    def beside() -> Got:
        wait_until(lambda: metric(url, "tgi_batch_current_size") + metric(url, "tgi_queue_size") == 1)
        return send(url, COMPLETIONS, {"prompt": ["a"] * 4, "max_tokens": 1})

    slow, got = together(lambda: chat(served, say("a", start_delay=0.5), "small"), beside)
    assert (slow.status, got.status) == (200, 429)
    assert send(url, COMPLETIONS, {"prompt": ["a"] * 4, "max_tokens": 1}).status == 200
    too_many = send(url, COMPLETIONS, {"prompt": ["a"] * 2, "n": 3, "temperature": 1})
    assert (too_many.status, too_many.json["error"]["param"]) == (400, "prompt")


def test_models(served: Served) -> None:
    listed = send(served.url, "/v1/models", method="GET").json
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == [MODEL, *sorted(ADAPTERS)]
    for model in listed["data"]:
        assert model["object"] == "model" and isinstance(model["created"], int) and model["max_model_len"] == 1100
        assert send(served.url, f"/v1/models/{model['id']}", method="GET").json == model
    assert send(served.url, "/openai/v1/models", method="GET").json == listed
    unknown = send(served.url, "/v1/models/other", method="GET")
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "model_not_found")
    asked = chat(served, "x", model="other")
    assert asked.status == 404 and asked.json == unknown.json
    names = " and the adapters " + ", ".join(sorted(ADAPTERS)) if ADAPTERS else ""
    verb = "are" if ADAPTERS else "is"
    assert unknown.json["error"]["message"] == f'model "other" is not served here; "{MODEL}"{names} {verb}'


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapters_name_is_a_model(served: Served, adapter: str) -> None:
    assert chat(served, say("a"), model=adapter).json["model"] == adapter


def test_sagemakers_route_takes_both(served: Served) -> None:
    messages = [{"role": "user", "content": say("alpha")}]
    assert send(served.url, "/invocations", {"messages": messages}).json["choices"][0]["message"]["content"] == "alpha"
    assert send(served.url, "/invocations", {"prompt": say("alpha")}).json["choices"][0]["text"] == "alpha"
    refused = send(served.url, "/invocations", {"messages": messages, "top_p": 7})
    assert (refused.status, refused.json["error_type"]) == (422, "validation")


# --- vLLM ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [VLLM, "/generate", "/tgi/generate"])
def test_vllm(served: Served, path: str) -> None:
    script = say("alpha", " beta", "é")
    assert send(served.url, path, {"prompt": script}).json == {"text": [script + "alpha betaé"]}
    got = send(served.url, path, {"prompt": script, "stream": True, "n": 2})
    assert got.status == 200 and got.headers["content-type"] == "application/x-ndjson"
    texts = [json.loads(line)["text"] for line in got.body.splitlines()]
    assert texts[-1] == [script + "alpha betaé"] * 2
    for before, after in itertools.pairwise(texts):
        assert all(new.startswith(old) for old, new in zip(before, after, strict=True))
    assert send(served.url, path, {"prompt": script, "best_of": 3}).json == {"text": [script + "alpha betaé"]}


@pytest.mark.parametrize(
    ("framing", "end", "kind"),
    [("lines", b"\n", "application/x-ndjson"), ("nul", b"\0", "application/octet-stream"), ("sse", b"\n\n", "text/")],
)
def test_frames_of_vllms_streams(framing: Any, end: bytes, kind: str) -> None:
    encoder = call(VLLM, b'{"prompt":"x","stream":true}', replace(SETTINGS, vllm_stream=framing)).encoder
    assert encoder.media_type.startswith(kind)
    frame = encoder.event(TextToken(1, 5, " sea", -1.0, False, 1.0))
    assert frame.endswith(end) and json.loads(frame.removesuffix(end).removeprefix(b"data: ")) == {"text": ["x sea"]}
    failed = encoder.event(FailedEvent(errors.GenerationError("bad")))
    assert json.loads(failed.removesuffix(end).removeprefix(b"data: ")) == {"error": "bad", "error_type": "generation"}
    assert encoder.end() == b""


# --- templates, and clients that leave -----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_template_refuses_is_the_clients_error(stream: bool) -> None:
    """And without a template the chat routes alone answer 400."""
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('No system, please') }}{% endif %}x"
    for source, message in (
        (refusing, "No system, please"),
        (None, "has no chat template"),
        ("{{ 1 +", "TemplateSyntax"),
    ):
        service = Service()
        engine = EchoEngine(vocab_size=len(ByteTokenizer.token_bytes), eos_id=EOS)
        await engine.start()
        service.attach(ServedModel(MODEL, engine, ByteTokenizer(), chat=ChatTemplate(source)))
        app = build_app(service, discover(), ServerSettings(port=0))
        try:
            async with listening(app, bind(app.settings)) as url:
                messages = [{"role": "system", "content": "s"}, *USER]
                got = await asyncio.to_thread(send, url, CHAT, {"messages": messages, "stream": stream})
                assert got.status == 400 and message in got.json["error"]["message"], got.body
                assert got.json["error"]["param"] == "messages"
                assert (await asyncio.to_thread(send, url, COMPLETIONS, {"prompt": "Hi"})).status == 200
        finally:
            service.close()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("reset", [False, True])
def test_clients_that_leave_free_everything(served: Served, path: str, reset: bool) -> None:
    script = say(*["a"] * 100, delay=0.5)  # far longer than anybody waits
    prompt = {"messages": [{"role": "user", "content": script}]} if path == CHAT else {"prompt": [script, script]}
    connections = []
    for _ in range(3):
        connection = connect(served.url)
        connection.request("POST", path, json.dumps({**prompt, "stream": True, "max_tokens": 200}))
        connection.getresponse().read(200)
        connections.append(connection)
    assert metric(served.url, "tgi_batch_current_size") > 0
    for connection in connections:
        assert connection.sock is not None
        if reset:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    wait_until(lambda: metric(served.url, "tgi_batch_current_size") == metric(served.url, "tgi_queue_size") == 0)
    assert chat(served, say("alpha")).json["choices"][0]["message"]["content"] == "alpha"
