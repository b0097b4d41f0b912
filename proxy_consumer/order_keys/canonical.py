"""The canonical text of a JSON value: equal values have equal texts, different ones different texts.

Rules: it is JSON without spaces and with sorted keys; strings as they are, without any Unicode
normalisation; numbers by their exact value, however they were written (1, 1.0, 1e0; -0 is 0), never
through a 64-bit float. Above TEXT_CHARS_MAX characters the text is replaced by its SHA-256, marked so
that it is no JSON text; that two such keys meet is beyond chance.

A hostile body must not hold up the other clients, so its values are counted from the bytes before anything
is decoded: commas and opening brackets, also those in strings, so never too few.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

VALUES_MAX = 4096  # that a path goes through, to the power of `..`; and again, that a key's text is made of
TEXT_CHARS_MAX = 4096
DIGITS_MAX = 4300  # of one number
_PLAIN_DIGITS = 20  # numbers up to this long are written without an exponent
_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")
_dump = msgspec.json.Encoder().encode


class TooMuchWork(ValueError):
    """More values than one message may have looked through."""


def check_work(data: bytes, deep: int = 1) -> None:
    """`deep`: how often everything is gone through. Raises TooMuchWork."""
    values = 1 + data.count(b",") + data.count(b"[") + data.count(b"{")
    if values**deep > VALUES_MAX:
        raise TooMuchWork(f"about {values} values, {deep} times `..`; allowed: {VALUES_MAX} in all")


class Allowance:
    """The remaining allowance while a value is built whose size does not show in its bytes."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = VALUES_MAX

    def spend_values(self, values: int) -> None:
        """Raises TooMuchWork."""
        self._left -= values
        if self._left < 0:
            raise TooMuchWork(f"the key is made of more than {VALUES_MAX} values")


class WrittenFloat(float):
    """A number with a point or an exponent, and how it was written."""

    __slots__ = ("text",)
    text: str


def parse_written_float(text: str) -> WrittenFloat:
    """The float of a number's text, with the text."""
    number = WrittenFloat(text)
    number.text = text
    return number


decode = msgspec.json.Decoder(float_hook=parse_written_float).decode


def bound_text(text: str) -> str:
    """The text, or what stands for it where it is long."""
    if len(text) <= TEXT_CHARS_MAX:
        return text
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def text_of_raw(raw: bytes) -> str | None:
    """Return the canonical text of one value's JSON; None for null. Raises ValueError when it is not
    valid."""
    if raw[0] == 0x22:  # a string; without a backslash it is canonical already
        return _dump(decode(raw)).decode() if b"\\" in raw else raw.decode()
    if raw.isdigit():
        return raw.decode() if len(raw) <= _PLAIN_DIGITS else number_text(raw.decode())
    if raw == b"null":
        return None
    if raw in (b"true", b"false"):
        return raw.decode()
    if raw[0] in b"[{":
        check_work(raw)
        return text_of(decode(raw))
    return number_text(raw.decode())


def text_of(value: Any) -> str:
    """Return the canonical text of a decoded value. Raises ValueError (TooMuchWork too), RecursionError."""
    return _canonical_text(value, Allowance())


def _canonical_text(value: Any, allowance: Allowance) -> str:
    if isinstance(value, str):
        return _dump(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, WrittenFloat):
        return number_text(value.text)
    if isinstance(value, int):
        return number_text(str(value))
    allowance.spend_values(len(value))
    if isinstance(value, dict):
        members = [
            f"{_dump(name).decode()}:{_canonical_text(value[name], allowance)}" for name in sorted(value)
        ]
        return f"{{{','.join(members)}}}"
    return f"[{','.join([_canonical_text(one, allowance) for one in value])}]"


def number_text(text: str) -> str:
    """One text for all ways to write a number. Raises ValueError."""
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > DIGITS_MAX:
        raise ValueError(f"{text[:20]!r} is no number, or has more than {DIGITS_MAX} digits")
    fraction = match[3] or ""
    digits = (match[2] + fraction).lstrip("0")
    if not digits:
        return "0"
    significant = digits.rstrip("0")
    exponent = int(match[4] or 0) - len(fraction) + len(digits) - len(significant)
    return match[1] + _place_point(significant, exponent)


def _place_point(digits: str, exponent: int) -> str:
    if exponent >= 0 and len(digits) + exponent <= _PLAIN_DIGITS:
        return digits + "0" * exponent
    if -_PLAIN_DIGITS <= exponent < 0:
        padded = digits.rjust(1 - exponent, "0")
        return f"{padded[:exponent]}.{padded[exponent:]}"
    return f"{digits}e{exponent}" if exponent else digits
