"""Order key readers: functions that read the text of the key from delivery bytes.

KEY is the message key as a JSON string, so that it equals a JSON member with the same text; any other order
key but QID is a JSONPath into the body. A missing value, null, a body that is not JSON, and a body that would
cost too much work have no key: None. Two texts are equal exactly if the values are (canonical.py).

A plain path, with members and elements only, is read straight from the body's bytes: a typed decoder skips
everything off the path and returns the value as written. If the body does not have the shape of the path (an
array instead of an object, a duplicate member), general.py evaluates the path.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from itertools import groupby
from typing import Any

import msgspec

from ddmq_common.delivery import key_of, value_of
from ddmq_common.errors import DamagedError
from proxy_consumer.order_keys.canonical import bound_text, text_of, text_of_raw
from proxy_consumer.order_keys.path import PathError, PathKind, PathStep, parse_path

QID, KEY = "QID", "KEY"
READERS_MAX = 1024  # cached readers; others are built again
_KEY_FIELD, _LONG = b"\x18", 128  # first bytes of a delivery with a key shorter than _LONG
KeyReader = Callable[[bytes], str | None]
Read = Callable[[bytes], bytes]  # from a value's JSON to the JSON of the value selected in it; b"" = missing
_NOTHING = msgspec.Raw(b"")


def find_order_key_error(order_key: str) -> str | None:
    """Return why an order key is invalid, with the position; None if it is valid, as blank, QID and KEY
    are."""
    if order_key in ("", QID, KEY):
        return None
    try:
        _body_reader(order_key)
    except PathError as error:
        excerpt = order_key if len(order_key) <= 100 else f"{order_key[:99]}…"
        return f"order_key is {excerpt!r}: {error}; allowed: QID, KEY or a JSONPath as in docs/order-keys.md"
    return None


def key_reader(order_key: str) -> KeyReader:
    """Return a function that reads the key's canonical text from delivery bytes, or None (unordered); it
    never raises.

    Raises PathError for a path that `path_fault` rejects, ValueError for blank and QID, which are not read
    from a message.
    """
    if order_key in ("", QID):
        raise ValueError(f"order_key {order_key!r} is not read from messages")
    if order_key == KEY:
        return message_key
    read_body = _body_reader(order_key)

    def read(delivery: bytes) -> str | None:
        try:
            text = read_body(value_of(delivery))
        except (ValueError, RecursionError, DamagedError):
            return None
        return None if text is None else bound_text(text)

    return read


def message_key(delivery: bytes) -> str | None:
    """Return the message key as a JSON string; None if it is absent."""
    if delivery[:1] == _KEY_FIELD and len(delivery) > 2 and delivery[1] < _LONG:  # nearly every message
        raw = delivery[2 : 2 + delivery[1]]
        if raw.isalnum() and len(raw) == delivery[1]:
            return f'"{raw.decode()}"'  # ASCII without characters to escape
    try:
        key = key_of(delivery)
    except DamagedError:
        return None
    if not key:
        return None
    text = key.decode("utf-8", "backslashreplace")
    return bound_text(f'"{text}"' if text.isalnum() else text_of(text))  # alphanumeric text needs no escaping


@lru_cache(maxsize=READERS_MAX)
def _body_reader(path: str) -> KeyReader:
    steps = parse_path(path)
    if not steps or not all(step.is_plain for step in steps):
        return _read_general(steps)
    plain, general = plain_reader(steps), cache(lambda: _read_general(steps))  # built at first use

    def read(body: bytes) -> str | None:
        try:
            return plain(body)
        except Unshaped:
            return general()(body)

    return read


def _read_general(steps: tuple[PathStep, ...]) -> KeyReader:
    from proxy_consumer.order_keys.general import general_reader  # its import takes 20 ms

    return general_reader(steps)


class Unshaped(Exception):
    """The body does not have the shape of the path."""


def plain_reader(steps: tuple[PathStep, ...]) -> Callable[[bytes], str | None]:
    """Return a function that reads the canonical text of the key from a body, or None, along a plain path.

    The function raises Unshaped, or ValueError or RecursionError for unreadable bodies.
    """
    stages = [
        stage
        for kind, run in groupby(steps, key=lambda step: step.kind)
        for stage in (
            [_read_members([s.names[0] for s in run])] if kind is PathKind.NAMES else map(_read_element, run)
        )
    ]
    if len(stages) == 1:
        only = stages[0]

        def read_one(body: bytes) -> str | None:
            raw = only(body)
            return text_of_raw(raw) if raw else None

        return read_one

    def read(body: bytes) -> str | None:
        raw = body
        for stage in stages:
            raw = stage(raw)
            if not raw:
                return None
        return text_of_raw(raw)

    return read


def _read_members(names: list[str]) -> Read:
    """Return a function that reads the member at this path of names; it returns b"" if the member is
    missing."""
    shape: Any = msgspec.Raw
    default: Any = _NOTHING
    for name in reversed(names):
        shape = msgspec.defstruct("Member", [("next", shape, default)], rename={"next": name})
        shape, default = shape | None, None
    decode = msgspec.json.Decoder(shape).decode
    deeper = range(len(names) - 1)

    def read(raw: bytes) -> bytes:
        try:
            member = decode(raw)
        except msgspec.ValidationError as error:
            raise Unshaped from error
        for _ in deeper:
            if member is None:
                return b""
            member = member.next
        return b"" if member is None else bytes(member.next)

    return read


def _read_element(step: PathStep) -> Read:
    """Return a function that reads the array element which `step` selects; it returns b"" if the array is too
    short."""
    decode = msgspec.json.Decoder(list[msgspec.Raw] | None).decode
    (index,) = step.numbers
    assert index is not None
    at: int = index

    def read(raw: bytes) -> bytes:
        try:
            member = decode(raw)
        except msgspec.ValidationError as error:
            raise Unshaped from error
        return b"" if member is None or not -len(member) <= at < len(member) else bytes(member[at])

    return read
