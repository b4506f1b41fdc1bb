"""A client's grammar, checked and put into the words of llguidance.

`guidance_source` is the one way in. What it lets through, llguidance follows to the letter; what it would follow
in part alone is refused here. Of JSON Schema (draft 2020-12) that leaves `KEYWORDS`; its other keywords are errors
that name their place. Names that it does not know mean nothing, as it says.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from interlingua.contract.errors import NotSupportedError, ValidationError
from interlingua.contract.request import Grammar

MAX_BYTES: Final = 65_536  # of a grammar's text in UTF-8
MAX_DEPTH: Final = 64  # of nested values in a schema
MAX_REFERENCED: Final = 256  # places that `$ref` leads to in one schema
MAX_SIZE: Final = 20_000  # parts of a schema once its `$ref`s are followed
MAX_COUNT: Final = 1_000_000  # of characters, items or properties, as far as a schema counts them
MAX_EXACT: Final = 2**53  # whole numbers up to here are exact as doubles
FIELD: Final = "grammar"  # the contract's name; the service puts the client's in its place

TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
FORMATS: Final = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
"""Values of `format` that an answer keeps to."""

# llguidance's own know no leap years, and leap seconds at any minute. Years from 0001, no leap seconds: as Python's.
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-31|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_PATTERNS: Final = {"date": f"^{_DAY}$", "time": f"^{_TIME}$", "date-time": f"^{_DAY}[tT]{_TIME}$"}

# One space after a separator and none elsewhere, as most models write it: with free whitespace an answer need not end.
# Escapes by code point would let a listed name pass for another one, spelled differently.
_LAYOUT: Final[Mapping[str, object]] = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "json_allowed_escapes": 'nrbtf\\"',
}
# Keywords of any draft, and OpenAPI's, that say what is allowed, and that no answer is held to.
_CONDITIONS: Final = "not if then else contains minContains maxContains propertyNames dependencies dependentRequired"
_LATER: Final = (
    "dependentSchemas unevaluatedItems unevaluatedProperties additionalItems nullable divisibleBy disallow extends"
)
_UNFOLLOWED: Final = frozenset((*_CONDITIONS.split(), *_LATER.split()))
_DRAFTS: Final = frozenset(
    f"json-schema.org/{draft}/schema" for draft in ("draft-06", "draft-07", "draft/2019-09", "draft/2020-12")
)
_CLASS = r"\[\^?\]?(?:\\.|[^\]\\])*\]"
_REPEATED = re.compile(rf"\\(?:[pPxuU]\{{[^}}]*\}}|.)|{_CLASS}|(?P<possessive>[*+?}}][+])", re.DOTALL)
# Control characters but \b \t \n \f \r, as they are and as a pattern spells them.
_NAMELESS = re.compile("[\0-\x07\x0b\x0e-\x1f\x7f]")
_HEX = "0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF]"
_NAMELESS_CODE = rf"\\(?:[av]|(?:x|u00|U000000)(?:{_HEX})|[xuU]\{{0*(?:[0-7bBeEfF]|{_HEX})\}})"
_NAMELESS_PATTERN = re.compile(
    rf"(?P<bad>{_NAMELESS_CODE}|\[(?:{_NAMELESS_CODE}|{_NAMELESS.pattern})\]|{_NAMELESS.pattern})|{_CLASS}|\\.",
    re.DOTALL,
)


def guidance_source(grammar: Grammar) -> str:
    """The grammar as llguidance reads it. Takes tens of milliseconds at most; no state, safe in any thread.

    Raises:
        ValidationError: it is no grammar, or too large.
        NotSupportedError: a good JSON Schema that no answer could be held to.
    """
    try:
        size = len(grammar.value.encode())
    except UnicodeEncodeError:
        raise ValidationError(FIELD, "must be valid Unicode, got a lone surrogate") from None
    if size > MAX_BYTES:
        raise ValidationError(FIELD, f"must have at most {MAX_BYTES} bytes, got {size}")
    return _SOURCES[grammar.kind](grammar.value)


def refusal(reason: str) -> ValidationError:
    """What is told of a grammar that llguidance does not take: the one line of its reason that says it."""
    found = re.search(r"^error: (.*)", reason, re.MULTILINE) or re.match(r"(?:at \d+\(\d+\): )?(.*)", reason)
    return ValidationError(FIELD, f"cannot be followed: {found[1][:300] if found else 'it is no grammar'}")


def _from_json_schema(text: str) -> str:
    root = _parse_json(text)
    schema, has_one_of = _SchemaReader(root, exact=True).read()
    if has_one_of:
        # llguidance takes a `oneOf` only where its branches exclude one another. That is judged with every object open,
        # as the client wrote it; then any one of the branches will do, and each may be closed.
        _refuse_unless_valid(_schema_source(schema))
    schema, _ = _SchemaReader(root, exact=False).read()
    if not _can_end(schema):
        raise ValidationError(FIELD, "is a schema that no finite value fits: every way through its `$ref`s is a circle")
    return _schema_source(schema)


def _schema_source(schema: Mapping[str, Any]) -> str:
    return json.dumps({"grammars": [{"json_schema": {**schema, "x-guidance": _LAYOUT}}]})


def _refuse_unless_valid(source: str) -> None:
    from llguidance import LLMatcher  # late: not every server is asked for a grammar

    problem = LLMatcher.validate_grammar(source)
    if "oneOf" in problem:
        hint = "give each a required property with a `const` of its own, or use `anyOf`"
        raise NotSupportedError(FIELD, f"has a `oneOf` of schemas that do not visibly exclude one another; {hint}")
    if problem:
        raise refusal(problem)


def _from_regex(pattern: str) -> str:
    """The whole answer matches: anchors at its ends say nothing new."""
    if not pattern:
        raise ValidationError(FIELD, "must be a regular expression, got an empty text")
    if re.search(r"(?<!\\)(?:\\\\)*\\\Z", pattern):
        raise ValidationError(FIELD, "must not end within an escape")
    if any(match["possessive"] for match in _REPEATED.finditer(pattern)):
        # Rust would repeat the repetition, and others would not go back into it.
        raise ValidationError(FIELD, "must not have `+` after a repetition, as in `a*+`; put that in parentheses")
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(pattern)


def _from_choice(text: str) -> str:
    choices = _parse_json(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise ValidationError(FIELD, "must be a list of at least one text, none of them empty")
    return _from_regex("|".join(re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", choice) for choice in choices))


def _from_lark(text: str) -> str:
    if not text.strip():
        raise ValidationError(FIELD, "must be a Lark grammar, got an empty text")
    return json.dumps({"grammars": [{"lark_grammar": text}]})


_SOURCES: Final[Mapping[str, Callable[[str], str]]] = {
    "json_schema": _from_json_schema,
    "regex": _from_regex,
    "choice": _from_choice,
    "lark": _from_lark,
}


def _parse_json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValidationError(FIELD, "must not name a key of an object twice")
        return found

    def no_number(name: str) -> object:
        raise ValidationError(FIELD, f"must be JSON, which has no {name}")

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=no_number)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValidationError(FIELD, "must be valid Unicode, got a lone surrogate") from None
    except (ValueError, RecursionError):  # also a whole number of more than 4,300 digits
        raise ValidationError(FIELD, "must be JSON, and is not") from None
    return value


_Written = list[tuple[str, Any]]


class _SchemaReader:
    """Reads a client's schema once and writes one that means the same to llguidance, or less.

    Notes are left out, and every `$ref` leads to a numbered entry of `$defs`. An object whose properties are listed
    and that says nothing of others has no others, as clients expect; but not where several schemas speak of the same
    object, for there each would forbid what the others ask for.

    Args:
        exact: leave the objects open and `oneOf` as it is; else `oneOf` becomes `anyOf`.
    """

    def __init__(self, root: Any, *, exact: bool) -> None:
        self._root = root
        self._exact = exact
        self._has_one_of = False
        self._size = 0
        self._numbers: dict[tuple[str, bool], int] = {}  # (pointer, joined) -> number in `$defs`
        self._waiting: list[tuple[str, bool]] = []

    def read(self) -> tuple[dict[str, Any], bool]:
        """(schema, it has a `oneOf`). Raises ValidationError."""
        if not isinstance(self._root, dict):
            raise ValidationError(FIELD, "must be a JSON Schema object")
        root = self._schema(self._root, "#", False)
        definitions: dict[str, Any] = {}
        while self._waiting:
            pointer, joined = self._waiting.pop()
            number = self._numbers[pointer, joined]
            definitions[str(number)] = self._schema(self._resolve(pointer), pointer, joined)
        return ({**root, "$defs": definitions} if definitions else root), self._has_one_of

    def _schema(self, schema: Any, at: str, joined: bool) -> Any:
        """`joined`: other schemas speak of the same value."""
        self._size += 1
        if self._size > MAX_SIZE or at.count("/") > 2 * MAX_DEPTH:
            raise ValidationError(FIELD, f"must be a schema of at most {MAX_SIZE} parts and {MAX_DEPTH} levels")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise _wrong(at, "must be a schema: an object, true or false", schema)
        parts = [key for key in ("allOf", "anyOf", "oneOf", "$ref") if key in schema]
        of_objects = [key for key in ("properties", "patternProperties", "additionalProperties") if key in schema]
        shared = joined or "allOf" in parts or len(parts) + bool(of_objects) > 1
        written: dict[str, Any] = {}
        for key, value in schema.items():
            place = f"{at}/{key}"
            if key in KEYWORDS:
                for name, result in KEYWORDS[key](self, value, place, shared):
                    if name in written:  # from another keyword
                        written.setdefault("allOf", []).append({name: result})
                    else:
                        written[name] = result
            elif key in _UNFOLLOWED or (key.startswith("$") and not self._changes_nothing(key, value, at)):
                raise NotSupportedError(FIELD, f"has the keyword `{key}` at {at}, which is not supported")
        self._check_together(written, at)
        listed = written.get("properties")
        if listed is not None and "additionalProperties" not in written and not shared and not self._exact:
            asked = set(written.get("required", ()))
            if asked <= set(listed) and written.get("minProperties", 0) <= len(listed):
                written["additionalProperties"] = False
        return written

    def _changes_nothing(self, key: str, value: Any, at: str) -> bool:
        """Of the standard's own words: what says which schema this is, and notes for people."""
        if key in ("$defs", "$comment"):
            return True
        if at == "#" and key == "$schema":
            draft = str(value).removeprefix("https://").removeprefix("http://").removesuffix("#")
            if draft not in _DRAFTS:
                raise NotSupportedError(FIELD, f"has a `$schema` that is not supported: {_shown(value)}")
            return True
        return at == "#" and key == "$id" and isinstance(value, str)

    def _check_together(self, written: dict[str, Any], at: str) -> None:
        """Keywords that llguidance follows only in certain company."""
        least = written.get("minProperties", 0)
        if least > 1:
            # Names that are not listed may come twice in an answer, and would be counted twice.
            if least > len(written.get("required", ())):
                raise NotSupportedError(FIELD, f"has `minProperties` at {at} over 1 and over the number of `required`")
            del written["minProperties"]

    # --- keywords: (value, place, shared) -> what to write, by name ---

    def _type(self, value: Any, at: str, shared: bool) -> _Written:
        names = value if isinstance(value, list) else [value]
        if not names or not all(isinstance(name, str) and name in TYPES for name in names):
            raise _wrong(at, f"must be one of {', '.join(TYPES)}, or a list of them", value)
        return [("type", value)]

    def _constant(self, value: Any, at: str, shared: bool) -> _Written:
        _check_values(value, at)
        return [("const", value)]

    def _enum(self, value: Any, at: str, shared: bool) -> _Written:
        if not isinstance(value, list) or not value:
            raise _wrong(at, "must be a list of at least one value", value)
        _check_values(value, at)
        return [("enum", value)]

    def _reference(self, value: Any, at: str, shared: bool) -> _Written:
        if not isinstance(value, str):
            raise _wrong(at, "must be a text", value)
        if not _is_pointer(value):
            raise NotSupportedError(
                FIELD, f"has a `$ref` that leads out of the schema or to an anchor: {_shown(value)}"
            )
        wanted = (value, shared)
        if wanted not in self._numbers:
            if len(self._numbers) >= MAX_REFERENCED:
                raise ValidationError(FIELD, f"must have `$ref`s to at most {MAX_REFERENCED} places")
            self._resolve(value)
            self._numbers[wanted] = len(self._numbers)
            self._waiting.append(wanted)
        return [("$ref", f"#/$defs/{self._numbers[wanted]}")]

    def _all(self, value: Any, at: str, shared: bool) -> _Written:
        return [("allOf", self._branches(value, at, shared))]

    def _any(self, value: Any, at: str, shared: bool) -> _Written:
        return [("anyOf", self._branches(value, at, shared))]

    def _one(self, value: Any, at: str, shared: bool) -> _Written:
        self._has_one_of = True
        branches = self._branches(value, at, shared)
        if not self._exact:
            return [("anyOf", branches)]
        return [("oneOf", [self._inlined(branch, place) for branch, place in zip(value, _places(at), strict=False)])]

    def _branches(self, value: Any, at: str, shared: bool) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise _wrong(at, "must be a list of at least one schema", value)
        return [self._schema(branch, place, shared) for branch, place in zip(value, _places(at), strict=False)]

    def _inlined(self, branch: Any, at: str) -> Any:
        """A branch that is a `$ref` alone, as what it leads to: llguidance does not look through them."""
        seen: set[str] = set()
        while isinstance(branch, dict) and [key for key in branch if key in KEYWORDS] == ["$ref"]:
            target = branch["$ref"]
            if not _is_pointer(target) or target in seen:
                break  # what `_reference` refuses, or a circle
            at = target
            seen.add(at)
            branch = self._resolve(at)
        return self._schema(branch, at, True)

    def _one_schema(self, value: Any, at: str, shared: bool) -> _Written:
        return [(at.rpartition("/")[2], self._schema(value, at, False))]

    def _prefix_items(self, value: Any, at: str, shared: bool) -> _Written:
        return [("prefixItems", self._branches(value, at, False))]

    def _named_schemas(self, value: Any, at: str, shared: bool) -> _Written:
        if not isinstance(value, dict):
            raise _wrong(at, "must be an object of schemas", value)
        for name in value:
            if at.endswith("/patternProperties"):
                _check_pattern(name, at)
            else:
                _check_text(name, at)
        schemas = {name: self._schema(schema, f"{at}/{_escaped(name)}", False) for name, schema in value.items()}
        return [(at.rpartition("/")[2], schemas)]

    def _required(self, value: Any, at: str, shared: bool) -> _Written:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise _wrong(at, "must be a list of names", value)
        _check_values(value, at)
        return [("required", value)]

    def _count(self, value: Any, at: str, shared: bool) -> _Written:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= MAX_COUNT or value != int(value):  # the range first: infinity is no int
            raise _wrong(at, f"must be an integer from 0 to {MAX_COUNT}", value)
        return [(at.rpartition("/")[2], int(value))]

    def _bound(self, value: Any, at: str, shared: bool) -> _Written:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(at, "must be a number", value)
        _check_values(value, at)
        return [(at.rpartition("/")[2], value)]

    def _multiple(self, value: Any, at: str, shared: bool) -> _Written:
        written = self._bound(value, at, shared)
        if value <= 0:
            raise _wrong(at, "must be over 0", value)
        return written

    def _pattern(self, value: Any, at: str, shared: bool) -> _Written:
        if not isinstance(value, str):
            raise _wrong(at, "must be a text", value)
        _check_pattern(value, at)
        return [("pattern", value)]

    def _format(self, value: Any, at: str, shared: bool) -> _Written:
        if not isinstance(value, str) or value not in FORMATS:
            raise NotSupportedError(FIELD, f"has {_shown(value)} at {at}; formats are {', '.join(FORMATS)}")
        return [("pattern", _PATTERNS[value])] if value in _PATTERNS else [("format", value)]

    def _unique_items(self, value: Any, at: str, shared: bool) -> _Written:
        if value is not False:
            raise NotSupportedError(FIELD, f"has `uniqueItems` at {at}, which is not supported")
        return []

    def _resolve(self, pointer: str) -> Any:
        value = self._root
        for part in pointer.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and key.isascii() and key.isdigit() and int(key) < len(value):
                value = value[int(key)]
            else:
                raise ValidationError(FIELD, f"has a `$ref` that leads nowhere: {_shown(pointer)}")
        return value


_Keyword = Callable[[_SchemaReader, Any, str, bool], _Written]
_R = _SchemaReader
KEYWORDS: Final[Mapping[str, _Keyword]] = {
    "type": _R._type,
    "const": _R._constant,
    "enum": _R._enum,
    "$ref": _R._reference,
    "allOf": _R._all,
    "anyOf": _R._any,
    "oneOf": _R._one,
    "properties": _R._named_schemas,
    "patternProperties": _R._named_schemas,
    "additionalProperties": _R._one_schema,
    "required": _R._required,
    "minProperties": _R._count,
    "maxProperties": _R._count,
    "items": _R._one_schema,
    "prefixItems": _R._prefix_items,
    "minItems": _R._count,
    "maxItems": _R._count,
    "uniqueItems": _R._unique_items,
    "minLength": _R._count,
    "maxLength": _R._count,
    "pattern": _R._pattern,
    "format": _R._format,
    "minimum": _R._bound,
    "maximum": _R._bound,
    "exclusiveMinimum": _R._bound,
    "exclusiveMaximum": _R._bound,
    "multipleOf": _R._multiple,
}
"""The keywords of JSON Schema that an answer is held to."""


def _can_end(root: Mapping[str, Any]) -> bool:
    """Whether some finite value may fit, as far as `$ref`, `required` and `minItems` decide.

    The least fixed point over the referenced schemas: one can end if a way through it needs only such as can.
    """
    definitions: Mapping[str, Any] = root.get("$defs", {})
    ends: set[str] = set()

    def fits(schema: Any) -> bool:
        if isinstance(schema, bool):
            return True  # what `false` makes impossible, llguidance sees
        if "$ref" in schema and schema["$ref"].rpartition("/")[2] not in ends:
            return False
        if not all(map(fits, schema.get("allOf", ()))):
            return False
        if "anyOf" in schema and not any(map(fits, schema["anyOf"])):
            return False
        if "const" in schema or "enum" in schema:
            return True
        types = schema.get("type", TYPES)
        types = {types} if isinstance(types, str) else set(types)
        if types - {"object", "array"}:
            return True
        if "object" in types and all(
            fits(schema.get("properties", {}).get(n, True)) for n in schema.get("required", ())
        ):
            return True
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        least = schema.get("minItems", 0)
        return "array" in types and all(map(fits, first[:least])) and (least <= len(first) or fits(rest))

    grew = True
    while grew:
        found = {name for name, schema in definitions.items() if name not in ends and fits(schema)}
        ends |= found
        grew = bool(found)
    return fits(root)


def _check_values(value: Any, at: str) -> None:
    """Numbers and texts that can be followed exactly, at any depth."""
    for item in _leaves(value):
        if isinstance(item, str):
            _check_text(item, at)
        elif abs(item) > MAX_EXACT or not math.isfinite(item):  # llguidance computes with doubles
            raise _wrong(at, f"must have numbers from -2^53 to 2^53, {MAX_EXACT}", item)


def _leaves(value: Any) -> Iterator[str | int | float]:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        yield from value
        yield from _leaves(list(value.values()))


def _check_text(text: str, at: str) -> None:
    """llguidance leaves such a character out of what it compares with."""
    if _NAMELESS.search(text):
        raise NotSupportedError(FIELD, f"has a control character at {_short(at)}: {_shown(text)}")


def _check_pattern(pattern: str, at: str) -> None:
    if any(match["bad"] for match in _NAMELESS_PATTERN.finditer(pattern)):
        raise NotSupportedError(FIELD, f"has a control character at {_short(at)}: {_shown(pattern)}")


def _is_pointer(reference: object) -> bool:
    """Whether a `$ref` leads to a place of the schema by its path."""
    return isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))


def _places(at: str) -> Iterator[str]:
    number = 0
    while True:
        yield f"{at}/{number}"
        number += 1


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _wrong(at: str, problem: str, value: Any) -> ValidationError:
    return ValidationError(FIELD, f"has a schema that is wrong at {_short(at)}: {problem}, got {_shown(value)}")


def _shown(value: Any) -> str:
    return _short(json.dumps(value, ensure_ascii=False))


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
