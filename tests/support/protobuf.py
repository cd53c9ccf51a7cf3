"""Just enough of protobuf's wire format to speak Hadoop: fields by number, without their names."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

Value = int | bytes | str
Fields = dict[int, list[int | bytes]]


def encoded(*fields: tuple[int, Value]) -> bytes:
    """A message of fields: integers of 0 or more, and bytes, texts or messages."""
    message = b""
    for number, value in fields:
        if isinstance(value, int):
            message += varint(number << 3) + varint(value)
        else:
            raw = value.encode() if isinstance(value, str) else value
            message += varint(number << 3 | 2) + varint(len(raw)) + raw
    return message


def fixed(number: int, layout: str, value: int) -> bytes:
    """A field of fixed width."""
    kind = 1 if layout == "<q" else 5
    return varint(number << 3 | kind) + struct.pack(layout, value)


def delimited(message: bytes) -> bytes:
    """The message after its length."""
    return varint(len(message)) + message


def decoded(message: bytes) -> Fields:
    """All values of each field."""
    fields: Fields = {}
    at = 0

    def take(n: int) -> bytes:
        nonlocal at
        at += n
        return message[at - n : at]

    while at < len(message):
        number, kind = divmod(read_varint(take), 8)
        value: int | bytes
        if kind == 0:
            value = read_varint(take)
        elif kind == 1:
            (value,) = struct.unpack("<q", take(8))
        elif kind == 5:
            (value,) = struct.unpack("<i", take(4))
        else:
            value = take(read_varint(take))
        fields.setdefault(number, []).append(value)
    return fields


def number_of(fields: Fields, number: int, default: int = 0) -> int:
    """The last integer of a field."""
    value = fields.get(number, [default])[-1]
    assert isinstance(value, int)
    return value


def bytes_of(fields: Fields, number: int) -> bytes:
    """The last bytes of a field."""
    value = fields.get(number, [b""])[-1]
    assert isinstance(value, bytes)
    return value


def text_of(fields: Fields, number: int) -> str:
    """The last text of a field."""
    return bytes_of(fields, number).decode()


def varint(value: int) -> bytes:
    """An integer in groups of seven bits."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(take: Callable[[int], bytes]) -> int:
    """The next integer of a stream; `take` returns its next bytes."""
    value, shift = 0, 0
    while True:
        byte = take(1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7


def zigzag(value: int) -> int:
    """A signed integer as an unsigned one."""
    return value * 2 if value >= 0 else -value * 2 - 1


def unzigzag(value: int) -> int:
    """The signed integer that `zigzag` has encoded."""
    return value // 2 if value % 2 == 0 else -(value + 1) // 2


def split(message: bytes) -> Iterator[bytes]:
    """The messages of a stream in which each follows its length."""
    at = 0
    while at < len(message):
        n_bytes, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            n_bytes |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        yield message[at : at + n_bytes]
        at += n_bytes
