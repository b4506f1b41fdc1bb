"""The table of cases: one HTTP request each, with the status, error type and field that must come back.

The table is data, so that it runs both against the pure decoding functions and against a real process. Values
are raw JSON text, because how a number is written is part of what is tested.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Literal

from interlingua.contract.request import Grammar

MODEL = "tiny"
Setup = Literal["plain", "lenient", "hf", "mindie"]

GENERATE, STREAM, ROOT, INVOCATIONS = "/generate", "/generate_stream", "/", "/invocations"
TRITON = f"/v2/models/{MODEL}/generate"
TRITON_STREAM = f"/v2/models/{MODEL}/generate_stream"
MINDIE_ROUTES = (GENERATE, STREAM)
HF_ROUTES = (ROOT, INVOCATIONS)


ADAPTERS = ("my-lora", "a/b_c.d-1", "none")  # what the servers of the tests have loaded


@dataclass(frozen=True)
class Case:
    """One request and its outcome.

    `field` is the wire name between backquotes in the message; "" = the message names none. `says` is another
    piece of the message. `expect` holds attributes of the decoded request, dotted.
    """

    name: str
    path: str
    body: bytes
    status: int = 200
    field: str = ""
    says: str = ""
    error_type: str = "validation"
    expect: Mapping[str, object] = dataclass_field(default_factory=dict)
    setup: Setup = "plain"

    @property
    def id(self) -> str:
        return f"{self.setup}:{self.path}:{self.name}"


@dataclass(frozen=True)
class Parameter:
    """Edge values of one parameter, as JSON text. `attribute` is where the request holds a good one."""

    name: str
    attribute: str
    good: tuple[str, ...]
    bad: tuple[str, ...]


NO_INTEGERS = ("20.0", '"20"', "true", "[20]", "{}", "NaN", "1e400", "1e2", "18446744073709551616")
NO_NUMBERS = ('"0.5"', "true", "[0.5]", "{}", "NaN", "Infinity", "-Infinity", "1e400", "1e39", "3.4028236e38")
NO_BOOLEANS = ("0", "1", '"true"', "[]", "{}", "1.0")
NO_STRINGS = ("1", "true", "[]", "{}")

INT_EDGES = (("1", "2147483647"), ("0", "-1", "2147483648", *NO_INTEGERS))
INT_EDGES_0 = (("0", "1", "2147483647"), ("-1", "2147483648", *NO_INTEGERS))
SEED_EDGES = (
    ("1", "42", "9223372036854775807", "9223372036854775808", "18446744073709551615"),
    ("0", "-1", *NO_INTEGERS),
)
POSITIVE_EDGES = (
    ("1e-6", "0.7", "1", "2", "1e-12", "3.4028235e38"),
    ("0", "0.0", "-1", "1e-50", *NO_NUMBERS),
)
BOOLEAN_EDGES = (("true", "false"), NO_BOOLEANS)
UNIT_EDGES = (("1e-7", "0.5", "0.95", "1", "1.0"), ("0", "-0.1", "1.0000001", "2", *NO_NUMBERS))
TEMPERATURE_EDGES = (
    ("1.000001e-06", "0.001", "1", "2", "1e38", "3.4028235e38"),
    ("0", "1e-6", "0.000001", "-1", "1e-12", *NO_NUMBERS),
)
LONG = "s" * 1024

COMMON = (
    Parameter("max_new_tokens", "max_new_tokens", *INT_EDGES),
    Parameter("top_k", "sampling.top_k", *INT_EDGES),
    Parameter("typical_p", "sampling.typical_p", *UNIT_EDGES),
    Parameter("repetition_penalty", "sampling.repetition_penalty", *POSITIVE_EDGES),
    Parameter(
        "frequency_penalty",
        "sampling.frequency_penalty",
        ("-1.999", "0", "0.0", "0.5", "2", "2.0"),
        ("-2", "-2.0", "2.001", "3", *NO_NUMBERS),
    ),
    Parameter("seed", "sampling.seed", *SEED_EDGES),
    Parameter("return_full_text", "return_full_text", *BOOLEAN_EDGES),
    Parameter("details", "details", *BOOLEAN_EDGES),
    Parameter("ignore_eos", "ignore_eos", *BOOLEAN_EDGES),
    Parameter("do_sample", "sampling.do_sample", *BOOLEAN_EDGES),
    Parameter("top_n_tokens", "top_n_tokens", ("1", "5"), ("0", "-1", "6", *NO_INTEGERS)),
    Parameter("watermark", "sampling.watermark", *BOOLEAN_EDGES),
    Parameter("best_of", "best_of", ("1",), ("0", "-1", "3", *NO_INTEGERS)),
    Parameter(
        "adapter_id",
        "adapter_id",
        ('"None"', *(f'"{name}"' for name in ADAPTERS)),
        ('""', '"a b"', '"a:b"', '"é"', f'"{"a" * 257}"', *NO_STRINGS),
    ),
    Parameter(
        "grammar",
        "grammar",
        (),
        (
            '"a"',
            "[]",
            "1",
            "{}",
            '{"type":"xml","value":"a"}',
            '{"type":"regex"}',
            '{"type":"regex","value":1}',
            '{"type":"json"}',
            '{"type":"json","value":1}',
            '{"type":"json","value":"{oops"}',
            '{"type":"json","value":"[]"}',
            '{"type":"json_schema","value":{"type":"object"}}',
            '{"type":"json_schema","value":{"name":1,"schema":{}}}',
            '{"type":"json_schema","value":{"schema":[]}}',
        ),
    ),
)

MINDIE = (
    *COMMON,
    Parameter("temperature", "sampling.temperature", *TEMPERATURE_EDGES),
    Parameter(
        "top_p",
        "sampling.top_p",
        ("1.000001e-06", "0.5", "0.999999"),
        ("0", "1e-6", "1", "1.0", "-0.1", "2", *NO_NUMBERS),
    ),
    Parameter("truncate", "truncate", *INT_EDGES),
    Parameter(
        "stop",
        "stop",
        (
            '"x"',
            f'"{LONG}"',
            '["a"]',
            '["a","b","c","d","e"]',
            "[]",
            json.dumps(["s"] * 1024),
            json.dumps([LONG] * 32),
        ),
        (
            '""',
            '[""]',
            '["a",""]',
            '["a",1]',
            '["a",null]',
            f'"{LONG}s"',
            json.dumps(["s"] * 1025),
            json.dumps([LONG] * 32 + ["x"]),
            "1",
            "true",
            "{}",
        ),
    ),
)

HF = (
    *COMMON,
    Parameter("temperature", "sampling.temperature", *POSITIVE_EDGES),
    Parameter("top_p", "sampling.top_p", *UNIT_EDGES),
    Parameter("truncate", "truncate", *INT_EDGES_0),
    Parameter(
        "stop",
        "stop",
        ('"x"', '["a"]', '["a","b","c","d"]', "[]", f'["{LONG * 32}"]'),
        (
            '""',
            '[""]',
            '["a",""]',
            '["a",1]',
            '["a","b","c","d","e"]',
            f'["{LONG * 32}","x"]',
            "1",
            "true",
            "{}",
        ),
    ),
)

TRITON_PARAMETERS = (
    Parameter("max_new_tokens", "max_new_tokens", *INT_EDGES),
    Parameter("max_tokens", "max_new_tokens", *INT_EDGES),
    Parameter("top_k", "sampling.top_k", *INT_EDGES_0),
    Parameter("temperature", "sampling.temperature", *TEMPERATURE_EDGES),
    Parameter(
        "top_p",
        "sampling.top_p",
        ("1.000001e-06", "0.5", "1", "1.0"),
        ("0", "1e-6", "1.000001", "-0.1", *NO_NUMBERS),
    ),
    Parameter("typical_p", "sampling.typical_p", UNIT_EDGES[0], ("-1", "-1.0", *UNIT_EDGES[1])),
    Parameter("repetition_penalty", "sampling.repetition_penalty", *POSITIVE_EDGES),
    Parameter("seed", "sampling.seed", *SEED_EDGES),
    Parameter("details", "details", *BOOLEAN_EDGES),
    Parameter("do_sample", "sampling.do_sample", *BOOLEAN_EDGES),
    Parameter("ignore_eos", "ignore_eos", *BOOLEAN_EDGES),
    Parameter("perf_stat", "", *BOOLEAN_EDGES),
    Parameter("watermark", "sampling.watermark", *BOOLEAN_EDGES),
    Parameter("stream", "", *BOOLEAN_EDGES),
    Parameter("exclude_input_in_output", "", *BOOLEAN_EDGES),
    Parameter("batch_size", "", *INT_EDGES),
    Parameter("priority", "priority", ("1", "5"), ("0", "6", "-1", *NO_INTEGERS)),
    Parameter("timeout", "timeout", ("1", "600", "3600"), ("0", "3601", "-1", *NO_INTEGERS)),
    Parameter("firstTokenCost", "", ("0", "18446744073709551615"), ("-1", *NO_INTEGERS)),
    Parameter(
        "decodeTime",
        "",
        ("[]", "[0,18446744073709551615]"),
        ("1", '"a"', "{}", "[1,-1]", "[1.0]", '["1"]', "[null]", "[18446744073709551616]"),
    ),
    Parameter("stop", "stop", ('"x"', '["a","b","c","d","e"]', "[]"), ('""', '["a",""]', "[1]", f'"{LONG}s"', "1")),
    Parameter("stop_words", "stop", ('"x"', '["x"]', '""', "[]"), ('["a",""]', "[1]", f'"{LONG}s"', "1")),
)


def reads(parameter: Parameter, text: str) -> object:
    """What the decoded request holds for a good value."""
    value = json.loads(text)
    if parameter.name in ("stop", "stop_words"):
        return tuple(value) if isinstance(value, list) else (value,) if value else ()
    if parameter.name == "adapter_id":
        return None if value == "None" else value
    if parameter.name == "truncate" and value == 0:
        return None
    return value


def shown(text: str) -> str:
    """How a message repeats a refused scalar; "" where it says something else (its type, its length)."""
    return "" if text[0] in "[{" or len(text) > 78 else text


def _body(prompt: str, parameters: str, extra: str = "") -> bytes:
    return f'{{"{prompt}":"Hello there",{extra}"parameters":{{{parameters}}}}}'.encode()


def _parameter_cases(path: str, prompt: str, parameters: tuple[Parameter, ...], status: int) -> Iterator[Case]:
    for parameter in parameters:
        for text in parameter.good:
            # One token at most: the table is also sent to a real server.
            cap = "" if parameter.name in ("max_new_tokens", "max_tokens") else ',"max_new_tokens":1'
            if path == STREAM or parameter.name != "decoder_input_details":
                expect = {parameter.attribute: reads(parameter, text)} if parameter.attribute else {}
                yield Case(
                    f"{parameter.name}={text[:40]}",
                    path,
                    _body(prompt, f'"{parameter.name}":{text}{cap}'),
                    expect=expect,
                )
        yield Case(f"{parameter.name}=null", path, _body(prompt, f'"{parameter.name}":null'))
        for text in parameter.bad:
            says = "" if parameter.name in ("stop", "stop_words", "grammar", "decodeTime") else shown(text)
            yield Case(
                f"{parameter.name}={text[:40]}",
                path,
                _body(prompt, f'"{parameter.name}":{text}'),
                status,
                f"parameters.{parameter.name}",
                says,
            )


def _root_level_cases() -> Iterator[Case]:
    """The same Triton parameters beside `text_input`."""
    for parameter in TRITON_PARAMETERS:
        for text in parameter.good[:1]:
            expect = {parameter.attribute: reads(parameter, text)} if parameter.attribute else {}
            yield Case(
                f"top-level {parameter.name}={text[:40]}",
                TRITON,
                f'{{"text_input":"Hi","{parameter.name}":{text}}}'.encode(),
                expect=expect,
            )
        for text in parameter.bad[:2]:
            yield Case(
                f"top-level {parameter.name}={text[:40]}",
                TRITON,
                f'{{"text_input":"Hi","{parameter.name}":{text}}}'.encode(),
                400,
                parameter.name,
            )


def _bodies(path: str, prompt: str, status: int) -> Iterator[Case]:
    """Whole bodies: malformed, wrong shapes, encodings, depth, unknown fields."""

    def bad(name: str, body: bytes, field: str = "", says: str = "") -> Case:
        return Case(name, path, body, status, field, says)

    def good(name: str, body: bytes, **expect: object) -> Case:
        return Case(name, path, body, expect=expect)

    def deep(levels: int) -> bytes:  # the root and `x` are two of them
        return f'{{"{prompt}":"Hi","x":{"[" * (levels - 1)}{"]" * (levels - 1)}}}'.encode()

    yield bad("empty body", b"", says="empty")
    yield bad("blank body", b" \n", says="empty")
    yield bad("trailing comma", f'{{"{prompt}":"x",}}'.encode(), says="not valid JSON")
    yield bad("comment", f'{{"{prompt}":"x"/*c*/}}'.encode(), says="not valid JSON")
    yield bad("two documents", f'{{"{prompt}":"x"}}{{}}'.encode(), says="not valid JSON")
    yield bad("truncated", f'{{"{prompt}":"x'.encode(), says="not valid JSON")
    yield bad("single quotes", f"{{'{prompt}':'x'}}".encode(), says="not valid JSON")
    yield bad("form", f"{prompt}=x".encode(), says="not valid JSON")
    for root in ("[]", "null", '"x"', "1", "true", f'[{{"{prompt}":"x"}}]'):
        yield bad(f"root {root}", root.encode(), says="must be a JSON object")
    yield bad("invalid UTF-8", f'{{"{prompt}":"'.encode() + b'\xff"}', says="UTF-8")
    yield bad("encoded surrogate", f'{{"{prompt}":"'.encode() + b'\xed\xa0\x80"}', says="UTF-8")
    for escape in (r"smile \ud83d", r"\ude00 end", r"\ud800"):
        yield bad(f"surrogate {escape}", f'{{"{prompt}":"{escape}"}}'.encode(), says="surrogate")
    yield bad("surrogate in an unknown field", f'{{"{prompt}":"x","y":"\\ud800"}}'.encode(), says="surrogate")
    yield good("surrogate pair", f'{{"{prompt}":"\\ud83d\\ude00"}}'.encode(), **{"prompt.text": "😀"})
    yield good("byte order mark", b"\xef\xbb\xbf" + f'{{"{prompt}":"x"}}'.encode())
    yield bad("NaN in an unknown field", f'{{"{prompt}":"x","y":NaN}}'.encode(), says="NaN")
    yield bad("1e400 in an unknown field", f'{{"{prompt}":"x","y":1e400}}'.encode(), says="NaN")
    yield good("64 levels", deep(64))
    yield bad("65 levels", deep(65), says="64 levels")
    yield bad("2000 levels", deep(2000), says="64 levels")
    yield good("many brackets, few levels", f'{{"{prompt}":"x","y":[{",".join(["[]"] * 500)}]}}'.encode())
    yield good("brackets in a string", f'{{"{prompt}":"{"[{" * 500}"}}'.encode())
    yield bad("no prompt", b"{}", prompt, "required")
    yield bad("null prompt", f'{{"{prompt}":null}}'.encode(), prompt, "required")
    yield bad("empty prompt", f'{{"{prompt}":""}}'.encode(), prompt, "1 to 4194304")
    for text in ("1", "true", "{}", "[]"):
        yield bad(f"prompt {text}", f'{{"{prompt}":{text}}}'.encode(), prompt)
    yield good("blank prompt", f'{{"{prompt}":" "}}'.encode(), **{"prompt.text": " "})
    yield bad("prompt too long", f'{{"{prompt}":"{"x" * 4194305}"}}'.encode(), prompt, "4194305")
    yield good("null parameters", f'{{"{prompt}":"x","parameters":null}}'.encode())
    yield good("empty parameters", f'{{"{prompt}":"x","parameters":{{}}}}'.encode())
    for text in ("1", "true", "[]", '"x"'):
        yield bad(
            f"parameters {text}",
            f'{{"{prompt}":"x","parameters":{text}}}'.encode(),
            "parameters",
            "an object",
        )
    unknown = f'{{"{prompt}":"x","parameters":{{"decoded_input_details":true,"extra":1}},"other":[{{}}]}}'
    yield good("unknown fields", unknown.encode())
    yield good(
        "last duplicate wins",
        f'{{"{prompt}":"x","parameters":{{"max_new_tokens":0,"max_new_tokens":7}}}}'.encode(),
        max_new_tokens=7,
    )
    yield bad(
        "last duplicate is refused",
        f'{{"{prompt}":"x","parameters":{{"max_new_tokens":7,"max_new_tokens":0}}}}'.encode(),
        "parameters.max_new_tokens",
    )
    yield good("markdown image is text", f'{{"{prompt}":"![](http://127.0.0.1:9/a.png) what?"}}'.encode())
    yield good("a string that looks like parts", f'{{"{prompt}":"[{{\\"type\\":1}}]"}}'.encode())


def _parts(path: str, prompt: str, status: int) -> Iterator[Case]:
    """Typed parts. Good media are left out: whether they are refused depends on the model."""

    def body(parts: str) -> bytes:
        return f'{{"{prompt}":{parts}}}'.encode()

    text = '{"type":"text","text":"a"}'
    yield Case("one text part", path, body(f"[{text}]"), expect={"prompt.text": "a"})
    yield Case(
        "text parts join with nothing",
        path,
        body(f'[{text},{{"type":"text","text":"b c"}},{text}]'),
        expect={"prompt.text": "ab ca"},
    )
    too_many = ",".join(['{"type":"image_url","image_url":"/data/multimodal_inputs/a.png"}'] * 21)
    bad = {
        "no type": ("[{}]", "[0].type"),
        "null type": ('[{"type":null}]', "[0].type"),
        "number type": ('[{"type":1}]', "[0].type"),
        "unknown type": ('[{"type":"foo","foo":"a"}]', "[0].type"),
        "not an object": ('["a"]', "[0]"),
        "null part": (f"[{text},null]", "[1]"),
        "no text": ('[{"type":"text"}]', "[0].text"),
        "empty text": (f'[{text},{{"type":"text","text":""}}]', "[1].text"),
        "number text": ('[{"type":"text","text":1}]', "[0].text"),
        "no url": ('[{"type":"image_url"}]', "[0].image_url"),
        "empty url": ('[{"type":"image_url","image_url":""}]', "[0].image_url"),
        "null url inside": ('[{"type":"image_url","image_url":{"url":null}}]', "[0].image_url.url"),
        "empty object": ('[{"type":"video_url","video_url":{}}]', "[0].video_url.url"),
        "gif": ('[{"type":"image_url","image_url":"http://h.example/a.gif"}]', "[0].image_url"),
        "png as video": ('[{"type":"video_url","video_url":"http://h.example/a.png"}]', "[0].video_url"),
        "mp4 as audio": ('[{"type":"audio_url","audio_url":"/data/a.mp4"}]', "[0].audio_url"),
        "gif path": ('[{"type":"image_url","image_url":"/data/a.gif"}]', "[0].image_url"),
        "path with a space": ('[{"type":"image_url","image_url":"/data/a b.png"}]', "[0].image_url"),
        "ftp": ('[{"type":"image_url","image_url":"ftp://h.example/a.png"}]', "[0].image_url"),
        "no host": ('[{"type":"image_url","image_url":"http:///a.png"}]', "[0].image_url"),
        "bad port": ('[{"type":"image_url","image_url":"http://h.example:x/a.png"}]', "[0].image_url"),
        "backslash": (
            '[{"type":"image_url","image_url":"http://h.example\\\\@evil/a.png"}]',
            "[0].image_url",
        ),
        "long url": (
            f'[{{"type":"image_url","image_url":"http://h.example/{"a" * 4096}.png"}}]',
            "[0].image_url",
        ),
        "long path": (f'[{{"type":"image_url","image_url":"/{"a" * 4096}.png"}}]', "[0].image_url"),
        "bad base64": ('[{"type":"image_url","image_url":"data:image/png;base64,@@@"}]', "[0].image_url"),
        "empty base64": ('[{"type":"image_url","image_url":"data:image/png;base64,"}]', "[0].image_url"),
        "short base64": ('[{"type":"image_url","image_url":"data:image/png;base64,abc"}]', "[0].image_url"),
        "gif data": ('[{"type":"image_url","image_url":"data:image/gif;base64,AAAA"}]', "[0].image_url"),
        "png data as audio": (
            '[{"type":"audio_url","audio_url":"data:image/png;base64,AAAA"}]',
            "[0].audio_url",
        ),
        "bare base64 as audio": ('[{"type":"audio_url","audio_url":"AAAA"}]', "[0].audio_url"),
        "bad bare base64": ('[{"type":"image_url","image_url":"AAAAA"}]', "[0].image_url"),
        "21 media": (f"[{too_many}]", ""),
    }
    for name, (parts, suffix) in bad.items():
        yield Case(name, path, body(parts), status, prompt + suffix)
    long = "x" * 2097153
    parts = f'[{{"type":"text","text":"{long}"}},{{"type":"text","text":"{long}"}}]'
    yield Case("parts too long together", path, body(parts), status, prompt, "4194306")


def _tgi_cases(path: str, hf: bool) -> Iterator[Case]:
    """Defaults, combinations and what does not work yet."""
    stream = path == STREAM

    def case(name: str, parameters: str, status: int = 200, field: str = "", says: str = "", **expect: object) -> Case:
        return Case(name, path, _body("inputs", parameters), status, field, says, expect=expect)

    yield case(
        "defaults",
        "",
        max_new_tokens=1024 if hf else 20,
        details=hf,
        return_full_text=False,
        prompt_logprobs=False,
        ignore_eos=False,
        truncate=None,
        stop=(),
        top_n_tokens=0,
        best_of=1,
        adapter_id=None,
        priority=5,
        timeout=None,
        **{
            "sampling.do_sample": False,
            "sampling.seed": None,
            "sampling.temperature": None,
            "sampling.top_k": None,
            "sampling.use_model_defaults": not hf,
            "sampling.default_top_k": 0 if hf else 1000,
            "stop_mode.value": "keep" if hf else "cut",
        },
    )
    samples = "sampling.do_sample"
    for parameters, sampled in {
        '"temperature":1': not hf,
        '"temperature":1.0': not hf,
        '"temperature":0.9': True,
        '"top_k":5': True,
        '"top_p":0.9': True,
        '"typical_p":0.9': True,
        '"typical_p":1': not hf,
        '"do_sample":true': True,
        '"do_sample":false': False,
        '"do_sample":false,"temperature":1': False,
        '"do_sample":false,"temperature":0.5': hf,
        '"do_sample":false,"top_k":5': hf,
        '"do_sample":false,"top_p":0.5': hf,
        '"do_sample":false,"typical_p":0.5': hf,
        '"do_sample":null,"seed":3': False,
        '"repetition_penalty":1.3': False,
        '"seed":7': False,
    }.items():
        yield case(f"sampling {parameters}", parameters, **{samples: sampled})
    if hf:
        yield case("sampling top_p 1", '"top_p":1', **{samples: False})
    yield case("max_new_tokens null", '"max_new_tokens":null', max_new_tokens=1024 if hf else 20)
    yield case("details false", '"details":false', details=False)

    prefill = '"decoder_input_details":true'
    if stream:
        yield case("prefill on a stream", prefill, 422, "parameters.decoder_input_details", "stream")
    else:
        yield case("prefill implies details", prefill + ',"details":false', details=True, prompt_logprobs=True)
    yield case("prefill off", '"decoder_input_details":false', prompt_logprobs=False)
    for text in NO_BOOLEANS:
        yield case(f"prefill {text}", f'"decoder_input_details":{text}', 422, "parameters.decoder_input_details")

    best_of = "parameters.best_of"
    if stream:
        yield case("best_of on a stream", '"best_of":2,"do_sample":true', 422, best_of, "stream")
    else:
        yield case("best_of greedy", '"best_of":2', 422, best_of, "sampling")
        yield case("best_of with a seed", '"best_of":2,"do_sample":true,"seed":1', 422, best_of, "seed")
        yield case("best_of", '"best_of":2,"do_sample":true', best_of=2, n=1)
        yield case("best_of, the most", '"best_of":3,"do_sample":true', 422, best_of, "1..2 (max_best_of), got 3")
    schema = Grammar("json_schema", '{"type":"object"}')
    for value, grammar in (
        ('{"type":"regex","value":"a+"}', Grammar("regex", "a+")),
        ('{"type":"json","value":{"type":"object"}}', schema),
        ('{"type":"json_object","value":{"type":"object"}}', schema),
        ('{"type":"json","value":"{\\"type\\":\\"object\\"}"}', schema),
        ('{"type":"json_schema","value":{"name":"n","schema":{"type":"object"}}}', schema),
    ):
        yield case(f"grammar {value}", f'"grammar":{value}', grammar=grammar)


def _tgi_route_cases() -> Iterator[Case]:
    for path in HF_ROUTES:
        for text in NO_BOOLEANS:
            yield Case(f"stream={text}", path, f'{{"inputs":"x","stream":{text}}}'.encode(), 422, "stream")
        for text in ("true", "false", "null"):
            yield Case(f"stream={text}", path, f'{{"inputs":"x","stream":{text}}}'.encode())
        body = b'{"inputs":"x","stream":true,"parameters":{"decoder_input_details":true}}'
        yield Case("prefill on a stream", path, body, 422, "parameters.decoder_input_details")
        body = b'{"inputs":"x","stream":true,"parameters":{"best_of":2,"do_sample":true}}'
        yield Case("best_of on a stream", path, body, 422, "parameters.best_of", "stream")
        body = b'{"inputs":"x","stream":true,"parameters":{"max_new_tokens":2147483648}}'
        yield Case("refused before the first byte", path, body, 422, "parameters.max_new_tokens", "2147483648")
    for path in MINDIE_ROUTES:
        for text in ("true", "1", '"x"'):
            yield Case(f"stream={text} is ignored", path, f'{{"inputs":"x","stream":{text}}}'.encode())
    yield Case("prompt", GENERATE, b'{"prompt":"x"}', expect={"max_new_tokens": 16, "prompt.field": "prompt"})
    yield Case("prompt wins", GENERATE, b'{"prompt":"x","inputs":"y"}', expect={"prompt.text": "x"})
    yield Case("prompt rules", GENERATE, b'{"prompt":"x","max_tokens":0}', 422, "max_tokens", "0")
    yield Case("null prompt", GENERATE, b'{"prompt":null,"inputs":"y"}')
    yield Case("prompt is unknown", STREAM, b'{"prompt":"x","inputs":"y"}')
    yield Case("prompt alone", STREAM, b'{"prompt":"x"}', 422, "inputs")
    yield Case("no messages", INVOCATIONS, b'{"messages":[]}', 422, "messages")
    body = b'{"messages":[{"role":"user","content":"x"}]}'
    yield Case("messages", INVOCATIONS, body, expect={"prompt.field": "messages"})
    yield Case("prompt", INVOCATIONS, b'{"prompt":["x"]}', expect={"prompt.field": "prompt[0]"})
    yield Case("inputs win", INVOCATIONS, b'{"inputs":"y","prompt":"x","messages":[]}', expect={"prompt.text": "y"})


def _triton_cases() -> Iterator[Case]:
    def case(name: str, body: str, status: int = 200, field: str = "", says: str = "", **expect: object) -> Case:
        return Case(name, TRITON, body.encode(), status, field, says, expect=expect)

    yield case(
        "defaults",
        '{"text_input":"x"}',
        max_new_tokens=20,
        details=False,
        return_full_text=False,
        priority=5,
        timeout=None,
        model=MODEL,
        **{
            "sampling.do_sample": False,
            "sampling.use_model_defaults": True,
            "sampling.default_top_k": 1000,
            "stop_mode.value": "cut",
        },
    )
    for parameters, sampled in {
        '"temperature":1': True,
        '"top_k":5': True,
        '"top_p":1': True,
        '"typical_p":0.9': True,
        '"do_sample":true': True,
        '"do_sample":false,"temperature":0.5': False,
        '"seed":3': False,
    }.items():
        yield case(
            f"sampling {parameters}",
            f'{{"text_input":"x","parameters":{{{parameters}}}}}',
            **{"sampling.do_sample": sampled},
        )
    for text in ('"a123"', '"_-Az09"', f'"{"a" * 256}"', "null"):
        yield case(f"id {text[:20]}", f'{{"id":{text},"text_input":"x"}}')
    for text in ('""', '"bad id!"', f'"{"a" * 257}"', '"a.b"', '"é"', "1", "true", "[]"):
        yield case(f"id {text[:20]}", f'{{"id":{text},"text_input":"x"}}', 400, "id")
    yield case("id before prompt", '{"id":""}', 400, "id")
    yield case(
        "the document's name wins",
        '{"text_input":"x","parameters":{"max_new_tokens":3,"max_tokens":9}}',
        max_new_tokens=3,
    )
    yield case(
        "the document's name wins at the top level too",
        '{"text_input":"x","max_new_tokens":3,"parameters":{"max_tokens":9}}',
        max_new_tokens=3,
    )
    yield case(
        "a null does not win",
        '{"text_input":"x","parameters":{"max_new_tokens":null,"max_tokens":9}}',
        max_new_tokens=9,
    )
    yield case(
        "parameters win over the top level",
        '{"text_input":"x","temperature":0.2,"parameters":{"temperature":0.5}}',
        **{"sampling.temperature": 0.5},
    )
    yield case(
        "the loser is checked too",
        '{"text_input":"x","parameters":{"max_new_tokens":3,"max_tokens":0}}',
        400,
        "parameters.max_tokens",
    )
    yield case(
        "stop and stop_words add up",
        '{"text_input":"x","parameters":{"stop":["a"],"stop_words":"b"}}',
        stop=("a", "b"),
    )
    yield case(
        "prompt in the output",
        '{"text_input":"x","exclude_input_in_output":false}',
        return_full_text=True,
    )
    yield case("watermark at top", '{"text_input":"x","watermark":true}', **{"sampling.watermark": True})
    yield case(
        "the document's body",
        '{"id":"a123","text_input":"My name is Olivier and I","parameters":{"details":true,"do_sample":true,'
        '"max_new_tokens":5,"repetition_penalty":1.1,"seed":123,"temperature":1,"top_k":10,"top_p":0.99,'
        '"batch_size":100,"typical_p":0.5,"watermark":false,"perf_stat":true,"priority":5,"timeout":10}}',
        timeout=10,
        details=True,
        **{"sampling.seed": 123, "sampling.temperature": 1.0, "sampling.do_sample": True},
    )
    for path, says in {
        "/v2/models/other/generate": "other",
        "/v2/models/TINY/generate": "TINY",
        "/v2/models/other/generate_stream": "other",
        f"/v2/models/{MODEL}/versions/2/generate": '\\"2\\"',
        f"/v2/models/{MODEL}/versions/01/generate_stream": "01",
    }.items():
        for body in (b'{"text_input":"x"}', b"{oops"):
            yield Case(f"unknown {body!r}", path, body, 404, says=says.replace("\\", ""), error_type="not_found")
    for verb in ("generate", "generate_stream"):
        yield Case("version 1", f"/v2/models/{MODEL}/versions/1/{verb}", b'{"text_input":"x"}')


def _lenient_cases() -> Iterator[Case]:
    """What `--lenient-ranges` opens, and what it does not."""
    opened = {
        "temperature": ("1e-6", "1e-12"),
        "top_p": ("1", "1.0", "1e-7"),
        "seed": ("0",),
        "truncate": ("0",),
        "top_n_tokens": ("0",),
        "max_new_tokens": ("4294967295",),
        "frequency_penalty": ("-2",),
        "stop": (f'"{LONG}s"', '["a","b","c","d","e"]', json.dumps([LONG * 4] * 8)),
        "best_of": ("0",),
    }
    shut = {
        "temperature": ("0",),
        "top_p": ("0", "1.1"),
        "seed": ("-1", "18446744073709551616"),
        "max_new_tokens": ("0", "4294967296"),
        "frequency_penalty": ("2.1", "-2.1"),
        "stop": ('""', '[""]', json.dumps(["s"] * 1025)),
        "best_of": ("3",),
        "top_k": ("0",),
    }
    for path in (GENERATE, ROOT):
        for name, values in opened.items():
            for text in values:
                yield Case(f"{name}={text[:30]}", path, _body("inputs", f'"{name}":{text}'), setup="lenient")
        for name, values in shut.items():
            for text in values:
                body = _body("inputs", f'"{name}":{text}')
                yield Case(f"{name}={text[:30]}", path, body, 422, f"parameters.{name}", setup="lenient")
    body = _body("inputs", '"best_of":0')
    yield Case("best_of 0", STREAM, body, 422, "parameters.best_of", "stream", setup="lenient")
    for name, text in {"seed": "0", "timeout": "65535", "temperature": "1e-9", "top_p": "1e-9"}.items():
        yield Case(f"{name}={text}", TRITON, _body("text_input", f'"{name}":{text}'), setup="lenient")
    for name, text in {"timeout": "65536", "top_p": "0", "typical_p": "-1.0", "priority": "6"}.items():
        body = _body("text_input", f'"{name}":{text}')
        yield Case(f"{name}={text}", TRITON, body, 400, f"parameters.{name}", setup="lenient")
    yield Case("a longer prompt", GENERATE, f'{{"inputs":"{"x" * 4194305}"}}'.encode(), setup="lenient")


def _profile_cases() -> Iterator[Case]:
    """`--tgi-profile` moves all four routes under one profile."""
    for path in (*MINDIE_ROUTES, *HF_ROUTES):
        yield Case("top_p 1", path, _body("inputs", '"top_p":1'), setup="hf", expect={"details": True})
        body = _body("inputs", '"top_p":1')
        yield Case("top_p 1", path, body, 422, "parameters.top_p", setup="mindie")
        expect = {"details": False, "max_new_tokens": 20, "stop_mode.value": "cut"}
        yield Case("defaults", path, _body("inputs", ""), setup="mindie", expect=expect)
        expect = {"details": True, "max_new_tokens": 1024, "stop_mode.value": "keep"}
        yield Case("defaults", path, _body("inputs", ""), setup="hf", expect=expect)


def all_cases() -> list[Case]:
    cases: list[Case] = []
    for path in MINDIE_ROUTES:
        cases += _parameter_cases(path, "inputs", MINDIE, 422)
    for path in HF_ROUTES:
        cases += _parameter_cases(path, "inputs", HF, 422)
    cases += _parameter_cases(TRITON, "text_input", TRITON_PARAMETERS, 400)
    cases += _root_level_cases()
    for path in (GENERATE, STREAM, ROOT):
        cases += _bodies(path, "inputs", 422)
        cases += _parts(path, "inputs", 422)
    for path in (TRITON, TRITON_STREAM):
        cases += _bodies(path, "text_input", 400)
        cases += _parts(path, "text_input", 400)
    for path in (*MINDIE_ROUTES, *HF_ROUTES):
        cases += _tgi_cases(path, path in HF_ROUTES)
    cases += _tgi_route_cases()
    cases += _triton_cases()
    cases += _lenient_cases()
    cases += _profile_cases()
    return cases
