"""Grammars: the official JSON-Schema suite judges what is followed; the rest is refused and says why."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from schema_suite import Case, Reader, accepts, accepts_value, groups

from interlingua.contract.errors import NotSupportedError, ValidationError
from interlingua.contract.request import Grammar
from interlingua.text import grammar as module
from interlingua.text.grammar import MAX_BYTES, guidance_source


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    made.close()


def written(schema: Any) -> dict[str, Any]:
    """The schema that llguidance is given, without the layout."""
    source = json.loads(guidance_source(Grammar("json_schema", json.dumps(schema))))
    found: dict[str, Any] = source["grammars"][0]["json_schema"]
    assert found.pop("x-guidance")["whitespace_flexible"] is False
    return found


def refusal(kind: Any, value: object) -> ValidationError:
    text = value if isinstance(value, str) else json.dumps(value)
    reader = Reader()
    try:
        with pytest.raises(ValidationError) as caught:
            reader.compile(kind, text)
    finally:
        reader.close()
    assert caught.value.field == "grammar"
    return caught.value


# --- the official suite -------------------------------------------------------------------------------------

# Rust's regular expressions, and Python's, count U+FEFF as no whitespace; ECMAScript does.
UNSOUND = {"zero-width whitespace does not match"}


def is_beyond(case: Case) -> bool:
    """Valid instances that an answer cannot be: `format` is more than a note, and some spellings are not offered."""
    return (
        case.file == "format"
        or (case.file == "optional/format/email" and ("quoted string" in case.name or "IPv6" in case.name))
        or (case.file == "optional/format/ipv6" and ("mixed format" in case.name or case.name == "a long valid ipv6"))
        or case.data in (1e308, "\x01", "\x0b")
    )


def test_the_official_suite(reader: Reader) -> None:
    """Invalid instances are rejected; valid ones accepted, unless objects that are closed here leave them out."""
    counts: Counter[str] = Counter()
    wrong: list[tuple[str, Case]] = []
    for group in groups():
        try:
            guide = reader.compile("json_schema", group.schema)
        except ValidationError:
            counts["refused"] += 1
            continue
        counts["followed"] += 1
        narrowed = Draft202012Validator(written(group.schema), format_checker=FormatChecker())
        for case in group.cases:
            accepted = accepts_value(guide, case.data)
            if not case.valid:
                counts["rejected"] += 1
                if accepted and case.name not in UNSOUND:
                    wrong.append(("accepted", case))
            elif accepted:
                counts["accepted"] += 1
            elif narrowed.is_valid(case.data) and not is_beyond(case):
                wrong.append(("rejected", case))
    assert not wrong
    assert counts["followed"] >= 190 and counts["accepted"] >= 525 and counts["rejected"] >= 400, counts


# Every keyword of the suite's draft that constrains, and is not followed.
UNSUPPORTED = [
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "propertyNames",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$anchor",
    "$dynamicAnchor",
    "$dynamicRef",
    "$vocabulary",
    "additionalItems",
    "dependencies",
    "nullable",
    "$recursiveRef",
    "$unknown",
]


@pytest.mark.parametrize("keyword", UNSUPPORTED)
@pytest.mark.parametrize("place", ["top", "deep", "referenced"])
def test_what_is_not_followed_is_refused(keyword: str, place: str) -> None:
    inner = {"type": "object", keyword: {}}
    schema = {
        "top": inner,
        "deep": {"type": "array", "items": {"anyOf": [{"type": "null"}, {"properties": {"a/b": inner}}]}},
        "referenced": {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": inner, "y": {"not": {}}}},
    }[place]
    problem = refusal("json_schema", schema)
    at = {"top": "#", "deep": "#/items/anyOf/1/properties/a~1b", "referenced": "#/$defs/x"}[place]
    assert isinstance(problem, NotSupportedError)
    assert problem.problem == f"has the keyword `{keyword}` at {at}, which is not supported"


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "not-a-type"}, "null, boolean, integer, number, string, array, object, or a list of them, got"),
        ({"type": []}, "or a list of them, got []"),
        ({"type": ["string", 1]}, "or a list of them"),
        ("{oops", "must be JSON"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"const": NaN}', "NaN"),
        ('{"const": 1e999}', "-2^53 to 2^53"),
        ('{"const": "\\ud800"}', "lone surrogate"),
        ('{"const": ' + "9" * 5000 + "}", "must be JSON"),
        ("[" * 100_000, "at most 65536 bytes"),
        ("[" * 60_000, "must be JSON"),
        ("[]", "must be a JSON Schema object"),
        ("true", "must be a JSON Schema object"),
        ({"const": "x" * MAX_BYTES}, "at most 65536 bytes, got 655"),
        ({"enum": []}, "at least one value"),
        ({"enum": {"a": 1}}, "at least one value"),
        ({"enum": [2**53 + 1]}, "-2^53 to 2^53"),
        ({"const": {"a": [1e300]}}, "-2^53 to 2^53"),
        ({"minimum": "1"}, "must be a number"),
        ({"minimum": True}, "must be a number"),
        ({"exclusiveMaximum": True, "maximum": 3}, "must be a number"),
        ({"multipleOf": 0}, "must be over 0"),
        ({"multipleOf": -2}, "must be over 0"),
        ({"minLength": -1}, "integer from 0 to 1000000, got -1"),
        ({"minLength": 1.5}, "integer from 0"),
        ({"minLength": True}, "integer from 0"),
        ({"maxItems": 1_000_001}, "integer from 0 to 1000000"),
        ({"maxItems": 1e300}, "integer from 0"),
        ('{"maxItems": 1e999}', "integer from 0"),
        ('{"minLength": -1e999}', "integer from 0"),
        ({"pattern": 3}, "must be a text"),
        ({"pattern": "("}, "unclosed group"),
        ({"pattern": "(?=a)b"}, "look-around"),
        ({"patternProperties": {"(": True}}, "unclosed group"),
        ({"format": "regex"}, "formats are date, time"),
        ({"format": 3}, "formats are date, time"),
        ({"uniqueItems": True}, "`uniqueItems` at #"),
        ({"uniqueItems": 1}, "`uniqueItems` at #"),
        ({"required": "a"}, "list of names"),
        ({"required": ["a", 1]}, "list of names"),
        ({"properties": []}, "object of schemas"),
        ({"properties": {"a": 1}}, "at #/properties/a: must be a schema"),
        ({"properties": {"a\x01": {}}}, "control character"),
        ({"required": ["a\x01"]}, "control character"),
        ({"const": {"a": ["\x7f"]}}, "control character"),
        ({"enum": ["a", {"\0": 1}]}, "control character"),
        ({"pattern": "\x01"}, "control character"),
        ({"pattern": "a|\\x1f"}, "control character"),
        ({"pattern": "\\x{0b}"}, "control character"),
        ({"pattern": "[\\u0001]"}, "control character"),
        ({"patternProperties": {"\\v": {}}}, "control character"),
        ({"items": [{}]}, "must be a schema"),
        ({"allOf": []}, "at least one schema"),
        ({"anyOf": {}}, "at least one schema"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "do not visibly exclude one another"),
        ({"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, "do not visibly exclude one another"),
        ({"minProperties": 2}, "`minProperties` at #"),
        ({"$ref": 1}, "must be a text"),
        ({"$ref": "other.json"}, "leads out of the schema"),
        ({"$ref": "#anchor"}, "leads out of the schema or to an anchor"),
        ({"$ref": "#/$defs/none"}, "leads nowhere"),
        ({"$ref": "#/enum/9", "enum": [1]}, "leads nowhere"),
        ({"$ref": "#/enum/0", "enum": [1]}, "must be a schema"),
        ({"oneOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": ["#"]}}}, "must be a text"),
        ({"oneOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#anchor"}}}, "to an anchor"),
        ({"properties": {"a": {"$id": "x"}}}, "keyword `$id`"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "`$schema` that is not supported"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "required property 'a' is unsatisfiable"),
        ({"type": "string", "const": 3}, "cannot be followed"),
        ({"minimum": 3, "maximum": 2, "type": "integer"}, "cannot be followed"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_refusals(schema: object, says: str) -> None:
    assert says in refusal("json_schema", schema).problem


LOOPS: list[Any] = [
    {"$ref": "#"},
    {"$ref": "#/$defs/loop", "$defs": {"loop": {"$ref": "#/$defs/loop"}}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}},
    {"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1},
    {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#"}], "$defs": {"a": {"$ref": "#/$defs/a"}}},
]


@pytest.mark.parametrize("schema", LOOPS, ids=str)
def test_circles_without_an_end_are_refused(schema: Any) -> None:
    assert "circle" in refusal("json_schema", schema).problem


def test_real_recursion_works(reader: Reader) -> None:
    properties = {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}
    node = {"type": "object", "properties": properties, "required": ["v", "next"]}
    guide = reader.compile("json_schema", node)
    assert accepts(guide, '{"v": 1, "next": {"v": 2, "next": null}}')
    assert not accepts(guide, '{"v": 1, "next": {"v": 2}}')
    tree = {"type": "array", "items": {"$ref": "#"}}
    assert accepts(reader.compile("json_schema", tree), "[" * 40 + "]" * 40)


# --- what a schema means here -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        ({"properties": {"a": {}}}, True),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, True),
        ({"properties": {"a": {}}, "additionalProperties": True}, False),
        ({"properties": {"a": {}}, "required": ["b"]}, False),
        ({"type": "object"}, False),
        ({"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]}, False),
        ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}, False),
        ({"properties": {"a": {}}, "$ref": "#/$defs/b", "$defs": {"b": {"properties": {"b": {}}}}}, False),
    ],
    ids=str,
)
def test_listed_properties_are_all_where_one_schema_speaks_of_the_object(
    reader: Reader, schema: dict[str, Any], closed: bool
) -> None:
    guide = reader.compile("json_schema", schema)
    assert accepts_value(guide, {"a": 1, "b": 2}) is (not closed)
    assert accepts_value(guide, {"a": 1}) or not closed


def test_alternatives_are_closed_and_parts_of_a_whole_are_not(reader: Reader) -> None:
    a, b = {"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}
    either = reader.compile("json_schema", {"anyOf": [a, b]})
    assert accepts_value(either, {"a": 1}) and accepts_value(either, {"b": 1})
    assert not accepts_value(either, {"a": 1, "b": 1})
    both = reader.compile("json_schema", {"allOf": [{"$ref": "#/$defs/a"}, b], "$defs": {"a": a}})
    assert accepts_value(both, {"a": 1, "b": 1}) and not accepts_value(both, {"a": 1})
    # the same definition, used both ways
    twice = {"properties": {"x": {"$ref": "#/$defs/a"}, "y": {"allOf": [{"$ref": "#/$defs/a"}, b]}}, "$defs": {"a": a}}
    guide = reader.compile("json_schema", twice)
    assert accepts_value(guide, {"x": {"a": 1}, "y": {"a": 1, "b": 1}})
    assert not accepts_value(guide, {"x": {"a": 1, "b": 1}})


def test_tagged_unions(reader: Reader) -> None:
    """As pydantic writes them: `oneOf` of references, told apart by a constant, with notes for OpenAPI."""

    def pet(kind: str, **more: Any) -> dict[str, Any]:
        properties = {"kind": {"const": kind, "title": "Kind", "type": "string"}, **more}
        return {"properties": properties, "required": ["kind"], "title": kind, "type": "object"}

    schema = {
        "$defs": {"Cat": pet("cat", lives={"type": "integer"}), "Dog": pet("dog", name={"type": "string"})},
        "properties": {
            "pet": {
                "discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "kind"},
                "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
                "title": "Pet",
            }
        },
        "required": ["pet"],
        "title": "Owner",
        "type": "object",
    }
    guide = reader.compile("json_schema", schema)
    assert accepts(guide, '{"pet": {"kind": "cat", "lives": 9}}') and accepts(guide, '{"pet": {"kind": "dog"}}')
    for wrong in ('{"pet": {"kind": "dog", "lives": 9}}', '{"pet": {"kind": "cow"}}', "{}"):
        assert not accepts(guide, wrong)


def test_both_anyof_and_oneof_hold(reader: Reader) -> None:
    for first, second in (("anyOf", "oneOf"), ("oneOf", "anyOf")):
        schema = {"type": "integer", first: [{"multipleOf": 2}], second: [{"multipleOf": 3}], "allOf": [{"minimum": 7}]}
        guide = reader.compile("json_schema", schema)
        assert [n for n in range(40) if accepts(guide, str(n))] == [12, 18, 24, 30, 36]


def test_layout_is_fixed(reader: Reader) -> None:
    guide = reader.compile("json_schema", {"type": "array", "items": {"type": "object"}})
    assert accepts(guide, '[{"a": 1, "b": 2}, {}]')
    for text in ('[{"a":1}]', "[ ]", "[{},{}]", "[{},  {}]", "\n[]", "[] "):
        assert not accepts(guide, text)


def test_a_clients_options_for_llguidance_are_dropped(reader: Reader) -> None:
    for options in ({"lenient": True}, {"coerce_one_of": True}, {"whitespace_flexible": True}):
        schema = {"type": "array", "items": {"type": "integer"}, "x-guidance": options}
        assert not accepts(reader.compile("json_schema", schema), "[1,  2]")
        assert isinstance(refusal("json_schema", {"not": {}, "x-guidance": options}), NotSupportedError)


@pytest.mark.skipif(
    [*map(int, version("llguidance").split(".")[:2])] < [1, 9],
    reason="llguidance before 1.9 lets a text be spelled in escapes",
)
def test_names_and_texts_have_one_spelling(reader: Reader) -> None:
    schema = {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    guide = reader.compile("json_schema", schema)
    assert accepts(guide, '{"a": 1, "b": "x"}')
    for text in ('{"a": "x"}', '{"\\u0061": "x"}', '{"a": 1, "a": 2}', '{"a": 1, "a": "x"}'):
        assert not accepts(guide, text)
    text = reader.compile("json_schema", {"type": "string"})
    assert accepts(text, '"\\n\\"\\\\é😀"')
    for wrong in ('"\x01"', '"\\u0001"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\x"', '"a', '"\n"', '"\\u12"'):
        assert not accepts(text, wrong), wrong


def test_control_characters_in_classes_and_what_only_looks_like_them(reader: Reader) -> None:
    for pattern, good, bad in (
        ("^[^\\x00-\\x1f]$", '"a"', '"\\n"'),
        ("^[\\x00-\\x1f]$", '"\\n"', '"a"'),
        ("^\\x41\\u0042\\x{43}$", '"ABC"', '"A"'),
        ("^\\\\x01$", '"\\\\x01"', '""'),
        ("^\\t\n\\x0d$", '"\\t\\n\\r"', '""'),
    ):
        guide = reader.compile("json_schema", {"type": "string", "pattern": pattern})
        assert accepts(guide, good) and not accepts(guide, bad), pattern


def test_dates_exist(reader: Reader) -> None:
    date, at = (reader.compile("json_schema", {"type": "string", "format": f}) for f in ("date", "date-time"))
    for good in ("2024-02-29", "2000-02-29", "0001-01-31", "1999-04-30", "9999-12-31"):
        assert accepts(date, f'"{good}"') and accepts(at, f'"{good}T23:59:59.5Z"'), good
    for bad in ("2023-02-29", "1900-02-29", "0000-01-01", "2024-04-31", "2024-13-01", "2024-00-10", "2024-01-00"):
        assert not accepts(date, f'"{bad}"') and not accepts(at, f'"{bad}T00:00:00Z"'), bad
    for bad in ("24:00:00Z", "12:60:00Z", "23:59:60Z", "12:00:00", "12:00:00+24:00"):
        assert not accepts(at, f'"2024-01-01T{bad}"'), bad
    both = reader.compile("json_schema", {"type": "string", "format": "date", "pattern": "^2024", "minLength": 3})
    assert accepts(both, '"2024-01-01"') and not accepts(both, '"2023-01-01"')


# --- other kinds --------------------------------------------------------------------------------------------

PATTERNS = ["a+", "(ab|a)*c?", "^[A-Z][a-z]+$", "[^\\d\\s]{2}", ".{3}", "a|b|", "\\$\\d+\\.\\d\\d", "(?i)yes|no",
            "x/y\\\\z", "😀+é?", "[]a]+", "\\.{2}", "a{2}b{0,2}", "^a|b$"]  # fmt: skip
TEXTS = ["", "a", "aaa", "b", "c", "abac", "ab", "Ab", "Abc", "xy", "é!", "1a", "abc", "\n\n\n", "$5.00", "$5x00",
         "YES", "no", "x/y\\z", "😀😀é", "é", "]]a", "..", "aabb", "aa", "aab", "aabbb"]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_regex_matches_the_whole_answer(reader: Reader, pattern: str) -> None:
    guide = reader.compile("regex", pattern)
    expected = [re.fullmatch(pattern, text) is not None for text in TEXTS]
    assert [accepts(guide, text) for text in TEXTS] == expected and any(expected)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("", "empty text"),
        ("(", "unclosed group"),
        ("[", "unclosed character class"),
        ("a*+", "must not have `+` after a repetition"),
        ("a{2}+", "must not have `+` after a repetition"),
        ("a**+", "must not have `+` after a repetition"),
        ("(?=a)b", "look-around"),
        ("a\\b", "lookarounds"),
        ("(?P<x>a)\\1", "backreferences"),
        ("(?P=x)", "cannot be followed"),
        ("\\", "within an escape"),
        ("a{3,2}", "repetition"),
        ("[^\\x00-\\x{10FFFF}]", "allows no answer"),
        ("\ud800", "lone surrogate"),
        ("a" * (MAX_BYTES + 1), "at most 65536 bytes"),
    ],
)
def test_regex_refusals(pattern: str, says: str) -> None:
    assert says in refusal("regex", pattern).problem


@pytest.mark.parametrize(
    ("twice", "once"), [("a**", "a*"), ("(ab)+*", "(ab)*"), ("a{2}*b?*", "(aa)*b*"), ("a??b", "a?b")]
)
def test_repeated_repetitions(reader: Reader, twice: str, once: str) -> None:
    guide = reader.compile("regex", twice)
    texts = ["".join(letters) for count in range(7) for letters in itertools.product("ab", repeat=count)]
    assert [accepts(guide, text) for text in texts] == [re.fullmatch(once, text) is not None for text in texts]


def test_words_that_the_standard_does_not_know_mean_nothing(reader: Reader) -> None:
    """Beside keywords too, under any of them, and where a branch is a `$ref` but for them."""
    anything = reader.compile("json_schema", {"x": "y", "x-more": {"not": 1}, "title": "t"})
    for value in ({}, {"a": [1, {"b": None}]}, [], "text", 3, None):
        assert accepts_value(anything, value)
    word = {"odd": 1, "$ref": "#/word", "$comment": "c"}
    schema = {"oneOf": [word, {"type": "integer", "units": "cm"}], "word": {"type": "string", "max_length": 2}}
    either = reader.compile("json_schema", schema)
    assert [accepts_value(either, value) for value in ("long", 3, None)] == [True, True, False]


def test_repetitions_in_classes_and_escapes_are_characters(reader: Reader) -> None:
    assert accepts(reader.compile("regex", "[*+]+\\*+[]+*]+(?:a*)*a+?"), "*+***]+a")
    assert accepts(reader.compile("regex", "\\p{L}+\\x{41}*\\}+\\u{e9}+a{2}?"), "éAA}}éaa")


def test_choices_are_literal(reader: Reader) -> None:
    choices = [
        "a b",
        "x/y",
        "\\d+",
        "new\nline",
        "tab\t",
        "é(ü)",
        '"q"',
        "#-&~<>_%@!",
        "1|2",
        "[a-z]",
        "{3}",
        "^$",
        "日本",
    ]
    guide = reader.compile("choice", choices)
    assert all(accepts(guide, choice) for choice in choices)
    for other in ("", "5", "12", "1", "a", "aaa", "a ba b", "]"):
        assert not accepts(guide, other), other
    for wrong in ("[]", '"a"', '["a", ""]', '["a", 1]', "{}", "oops"):
        assert "must be" in refusal("choice", wrong).problem, wrong


def test_lark(reader: Reader) -> None:
    guide = reader.compile("lark", 'start: "a" NUMBER ("," NUMBER)*\nNUMBER: /[0-9]+/')
    assert accepts(guide, "a1,22") and not accepts(guide, "a1,")
    for text, says in (("", "empty text"), ("start: x", "unknown name"), ("oops", "cannot be followed")):
        assert says in refusal("lark", text).problem


# --- hostile grammars ---------------------------------------------------------------------------------------


def nested(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def fan(width: int) -> Any:
    """Each definition uses the next one `width` times, as a part and as a whole."""
    refs = [{"$ref": f"#/$defs/{i + 1}"} for i in range(20)]
    definitions: dict[str, Any] = {str(i): {"oneOf": [refs[i]] * width} for i in range(20)}
    return {"$ref": "#/$defs/0", "$defs": {**definitions, "20": {"type": "null"}}}


HOSTILE: list[tuple[Any, Any]] = [
    ("json_schema", nested(30)),
    ("json_schema", nested(120)),
    ("json_schema", '{"type":"array","items":' * 1500 + "true" + "}" * 1500),
    ("json_schema", fan(6)),
    ("json_schema", {"properties": {f"p{i}": {} for i in range(25)}}),
    ("json_schema", {"properties": {f"p{i}": {"type": "integer"} for i in range(1500)}}),
    ("json_schema", {"enum": [f"the value with number {i}" for i in range(2_000)]}),
    ("json_schema", {"type": "string", "maxLength": 1_000_000}),
    ("json_schema", {"type": "string", "minLength": 1_000_000}),
    ("json_schema", {"type": "array", "minItems": 1_000_000, "items": {"type": "array", "maxItems": 1_000_000}}),
    ("json_schema", {"allOf": [{"anyOf": [{"minLength": i}, {"pattern": "a" * i}]} for i in range(1, 40)]}),
    ("json_schema", {"allOf": [{"pattern": f".*{c}.*"} for c in "abcdefghijklmnop"], "type": "string"}),
    ("json_schema", {"multipleOf": 1e-300, "type": "number"}),
    ("json_schema", {"multipleOf": 9_007_199_254_740_881, "type": "integer"}),
    ("json_schema", {"$ref": "#/$defs/0", "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(2000)}}),
    ("json_schema", {"patternProperties": {f"^{'(a|b)*' * i}$": {} for i in range(1, 30)}}),
    ("regex", "(a{1,1000}){1,1000}"),
    ("regex", "((a|b|c|d){1,100}){1,100}x"),
    ("regex", "(((((a{1,30}){1,30}){1,30}){1,30}){1,30})"),
    ("regex", "a{1,100000000}"),
    ("regex", "(.*a){12}.{20}"),
    ("regex", ".*a.{1,400}b"),
    ("regex", "(" * 3000 + "a" + ")" * 3000),
    ("regex", "(" + "|".join(f"word{i}" for i in range(6000)) + ")*"),
    ("regex", "(a?){60}a{60}"),
    ("regex", "\\p{L}{1,1000}"),
    ("lark", "start: start start | \"a\""),
    ("lark", 'start: (((("a"*)*)*)*)*'),
    ("lark", "\n".join(["start: r0", *(f"r{i}: r{i + 1} r{i + 1}" for i in range(60)), 'r60: "a"'])),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), HOSTILE, ids=lambda value: str(value)[:50])
def test_hostile_grammars_end(reader: Reader, kind: Any, value: Any) -> None:
    """Each is refused, or compiled; and then some steps of it end too, with an error at worst."""
    try:
        guide = reader.compile(kind, value).copy()
    except ValidationError as error:
        assert error.problem
        return
    for step in range(40):
        bits = [i for i in range(256) if guide.allowed[i // 32] >> i % 32 & 1]
        if not bits or guide.failed:
            break
        guide.expect()
        guide.advance(bits[step * 7919 % len(bits)])
        assert guide.ready


def test_the_reader_holds_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text always gives the same source, in whatever order."""
    schema = {"properties": {"b": {"$ref": "#/$defs/x"}, "a": {"allOf": [{"$ref": "#/$defs/x"}]}}, "$defs": {"x": {}}}
    assert written(schema) == written(schema)
    assert list(written(schema)["properties"]) == ["b", "a"]
    assert set(module.KEYWORDS).isdisjoint(UNSUPPORTED)
