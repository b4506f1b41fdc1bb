"""Prompts: a string, or a list of typed parts (text, image, video, audio), as far as bytes alone tell.

Nothing is fetched or opened here: whether a host is allowed and a file exists is what `media/sources.py` looks at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urlsplit

from interlingua.contract.dialect import DialectSettings
from interlingua.contract.request import MediaPart, TextPart, TextPrompt
from interlingua.dialects._bounds import MAX_MEDIA, MAX_PARTS
from interlingua.dialects._rules import Refusal

MiB = 1024 * 1024
MAX_LOCATOR = 4096  # characters of a URL or a path
_DATA_URI = re.compile(r"data:([a-z]+)/([a-z0-9.+-]+);base64,", re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")  # in whole groups of four, which is checked by the length
_PATH = re.compile(r"(?:file://)?[\w./-]+")
_URL = re.compile(r"[^\x00-\x20\x7f\\]+")  # parsers disagree about the rest, and attackers live off that
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of media: what its files and data URIs may be."""

    kind: Literal["image", "video", "audio"]
    extensions: tuple[str, ...]
    subtypes: tuple[str, ...]
    bare_base64: bool = False


_KINDS: Mapping[str, Kind] = {
    "image_url": Kind("image", ("jpg", "jpeg", "png"), ("jpeg", "jpg", "png"), bare_base64=True),
    "video_url": Kind("video", ("mp4", "avi", "wmv"), ("mp4", "x-msvideo", "x-ms-wmv")),
    "audio_url": Kind("audio", ("mp3", "wav", "flac"), ("mpeg", "mp3", "x-wav", "wav", "flac")),
}
_TYPES = ("text", *_KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The rule of a prompt field. Limits are in characters and in bytes of decoded media."""

    max_chars: int
    image_bytes: int
    audio_bytes: int
    video_bytes: int = 512 * MiB
    type_name: str = "string or list of parts"

    def check(self, value: object, settings: DialectSettings) -> tuple[TextPart | MediaPart, ...]:
        """The parts; the `field` of a MediaPart is its place inside the prompt (`[1].image_url`)."""
        if isinstance(value, str):
            self._check_length(len(value))
            return (TextPart(value),)
        if not isinstance(value, list) or not value:
            raise Refusal(value)
        if len(value) > MAX_PARTS:
            raise Refusal(value, expected=f"a list of at most {MAX_PARTS} parts", given=f"{len(value)}")
        parts: list[TextPart | MediaPart] = []
        media = chars = 0
        for place, item in enumerate(value):
            part = self.part(item, f"[{place}]")
            parts.append(part)
            if isinstance(part, TextPart):
                chars += len(part.text)
            else:
                media += 1
                if media > MAX_MEDIA:
                    raise Refusal(value, expected=f"a list with at most {MAX_MEDIA} media parts", given="more")
        if chars > self.max_chars:
            self._check_length(chars)
        return tuple(parts)

    def _check_length(self, chars: int) -> None:
        if not 0 < chars <= self.max_chars:
            raise Refusal("", given=f"{chars} characters" if chars else "an empty string")

    def part(self, item: object, place: str) -> TextPart | MediaPart:
        """One typed part; `place` is where it stands inside the field. Raises Refusal."""
        if not isinstance(item, dict):
            raise Refusal(item, place, 'an object {"type": …}')
        name = item.get("type")
        if not isinstance(name, str) or name not in _TYPES:
            raise Refusal(name, place + ".type", f"one of {', '.join(_TYPES)}")
        value = item.get(name)
        place = f"{place}.{name}"
        if name == "text":
            if not isinstance(value, str) or not value:
                raise Refusal(value, place, "a non-empty string")
            return TextPart(value)
        if isinstance(value, dict):
            value, place = value.get("url"), place + ".url"
        if not isinstance(value, str) or not value:
            raise Refusal(value, place, 'a non-empty string or an object {"url": string}')
        kind = _KINDS[name]
        return MediaPart(kind.kind, self._form(kind, value, place), value, place, self._most(kind))

    def audio(self, data: str, place: str) -> MediaPart:
        """An audio clip of bare base64. Raises Refusal."""
        kind = _KINDS["audio_url"]
        self._check_base64(kind, data, 0, place)
        return MediaPart(kind.kind, "data", data, place, self._most(kind))

    def _most(self, kind: Kind) -> int:
        return {"image": self.image_bytes, "audio": self.audio_bytes, "video": self.video_bytes}[kind.kind]

    def _form(self, kind: Kind, source: str, place: str) -> Literal["url", "file", "data"]:
        """A URL, a data URI, a local path or bare base64, decided in this order. Raises Refusal."""
        scheme = match[1].lower() if (match := _SCHEME.match(source)) else ""
        if scheme in ("http", "https"):
            _check_url(kind, source, place)
            return "url"
        if scheme == "data":
            self._check_data(kind, source, place)
            return "data"
        if scheme not in ("", "file"):
            raise Refusal(source, place, "an http or https URL, a data URI or a local path", given=f"scheme {scheme}")
        if source.lower().endswith(tuple("." + extension for extension in kind.extensions)):
            if len(source) > MAX_LOCATOR:
                raise Refusal(source, place, f"a path of at most {MAX_LOCATOR} characters", f"{len(source)}")
            if not _PATH.fullmatch(source):
                raise Refusal(source, place, "a path of letters, digits, `_`, `.`, `-` and `/`")
            return "file"
        if kind.bare_base64 and "." not in source[:MAX_LOCATOR]:
            self._check_base64(kind, source, 0, place)
            return "data"
        raise Refusal(source, place, _file_words(kind))

    def _check_data(self, kind: Kind, source: str, place: str) -> None:
        match = _DATA_URI.match(source[:128])
        if match is None or match[1].lower() != kind.kind or match[2].lower() not in kind.subtypes:
            types = ", ".join(f"{kind.kind}/{subtype}" for subtype in kind.subtypes)
            raise Refusal(source, place, f"a base64 data URI of type {types}")
        self._check_base64(kind, source, match.end(), place)

    def _check_base64(self, kind: Kind, source: str, start: int, place: str) -> None:
        if (len(source) - start) % 4 or not _BASE64.fullmatch(source, start):
            raise Refusal(source, place, f"{_file_words(kind)} or valid base64 data")
        size = (len(source) - start) // 4 * 3 - source[-2:].count("=")
        if size > self._most(kind):
            raise Refusal(source, place, f"{kind.kind} data of at most {self._most(kind)} bytes", f"{size} bytes")

    def accepts(self, settings: DialectSettings) -> str:
        return f"a string of 1 to {self.max_chars} characters or a list of 1 to {MAX_PARTS} typed parts"

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        def part(name: str, value: dict[str, Any]) -> dict[str, Any]:
            properties = {"type": {"type": "string", "enum": [name]}, name: value}
            return {"type": "object", "required": ["type", name], "properties": properties}

        text = {"type": "string", "minLength": 1}
        url = {"type": "object", "required": ["url"], "properties": {"url": text}}
        media = [part(name, {"anyOf": [text, url]}) for name in _KINDS]
        parts = {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_PARTS,
            "items": {"oneOf": [part("text", text), *media]},
        }
        return {"anyOf": [{"type": "string", "minLength": 1, "maxLength": self.max_chars}, parts]}


def text_prompt(parts: tuple[TextPart | MediaPart, ...], field: str) -> TextPrompt:
    """The prompt of field `field`, whose media parts then know their full wire names."""
    if any(isinstance(part, MediaPart) for part in parts):
        parts = tuple(
            replace(part, field=field + part.field) if isinstance(part, MediaPart) else part for part in parts
        )
    return TextPrompt(parts, field)


def _check_url(kind: Kind, source: str, place: str) -> None:
    if len(source) > MAX_LOCATOR:
        raise Refusal(source, place, f"a URL of at most {MAX_LOCATOR} characters", f"{len(source)}")
    try:
        url = urlsplit(source)
        host, path = url.hostname, url.path
        _ = url.port  # raises for ports that are no numbers
    except ValueError:
        raise Refusal(source, place, "a valid URL") from None
    if not host or not _URL.fullmatch(source):
        raise Refusal(source, place, "a URL with a host and without spaces, control characters and backslashes")
    if not path.lower().endswith(tuple("." + extension for extension in kind.extensions)):
        raise Refusal(source, place, f"a URL whose path ends with .{', .'.join(kind.extensions)}")


def _file_words(kind: Kind) -> str:
    article = "a" if kind.kind == "video" else "an"
    return f"{article} {kind.kind} file ({', '.join(kind.extensions)})"
