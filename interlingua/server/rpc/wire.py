"""Messages of clients, counted before they are parsed.

protobuf makes an object of each message inside a message, half a microsecond each, with the interpreter's lock held:
40 MB of empty tensors would stop the server for ten seconds. Walking over the bytes makes none, and ends at the limit.
"""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from interlingua.contract.errors import ValidationError
from interlingua.dialects._bounds import MAX_FIELDS
from interlingua.server.middleware import beside

_FEW = 65_536  # bytes in which there cannot be too many
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5  # kinds of fields

M = TypeVar("M", bound=Message)


async def read(kind: type[M], data: bytes) -> M:
    """The message, parsed beside the event loop if it is long. Raises ValidationError."""
    return await beside(len(data), lambda: parse(kind, data))


def parse(kind: type[M], data: bytes) -> M:
    """The message. Raises ValidationError: it is none, or holds more than `MAX_FIELDS` fields."""
    try:
        if len(data) > _FEW:
            _walk(data, 0, len(data), kind.DESCRIPTOR, MAX_FIELDS)
        return kind.FromString(data)
    except (DecodeError, IndexError):
        raise ValidationError("", "the message is not valid protobuf") from None


def _walk(data: bytes, at: int, end: int, message: Any, room: int) -> int:
    """How many of `room` fields are left after those of a message in `data[at:end]`, inner ones counted.

    Args:
        message: its descriptor; of one of two classes, by protobuf's backend.

    Raises:
        ValidationError: none is left.
        DecodeError: a field has a kind that is not used any more (a group).
        IndexError: the message is cut off.
    """
    inner = {field.number: field.message_type for field in message.fields if field.message_type is not None}
    while at < end:
        room -= 1
        if room < 0:
            raise ValidationError("", f"the message must hold at most {MAX_FIELDS} fields, got more")
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _EIGHT_BYTES:
            at += 8
        elif kind == _FOUR_BYTES:
            at += 4
        elif kind == _LENGTH:
            size, at = _varint(data, at)
            if at + size > end:
                raise DecodeError
            if (described := inner.get(tag >> 3)) is not None:
                room = _walk(data, at, at + size, described, room)
            at += size
        else:
            raise DecodeError
    return room


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, where it ends)."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise DecodeError
