"""The canonical text of a JSON value: equal values have equal texts, different values different texts.

The text is JSON without spaces and with sorted keys; strings are unchanged, without any Unicode
normalisation; numbers are written by their exact value, whatever their notation (1, 1.0, 1e0; -0 is 0), never
through a 64-bit float. Above TEXT_CHARS_MAX characters the text is replaced by its SHA-256, with a prefix
that makes it no JSON text; a collision of two such keys is practically impossible.

A hostile body must not delay other clients, so its values are counted in the bytes before it is decoded:
commas and opening brackets, also those in strings, so that the count is never too low.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

VALUES_MAX = 4096  # most values that a path visits (counted once per `..`), and most in a key's text
TEXT_CHARS_MAX = 4096
DIGITS_MAX = 4300  # in one number
_PLAIN_DIGITS = 20  # numbers up to this long are written without an exponent
_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")
_dump = msgspec.json.Encoder().encode


class TooMuchWork(ValueError):
    """The message has more values than an order key may visit."""


def check_work(data: bytes, deep: int = 1) -> None:
    """Raise TooMuchWork if a body has too many values. `deep`: the exponent, how many `..` the path has."""
    values = 1 + data.count(b",") + data.count(b"[") + data.count(b"{")
    if values**deep > VALUES_MAX:
        raise TooMuchWork(f"about {values} values, {deep} times `..`; allowed: {VALUES_MAX} in all")


class Allowance:
    """A limit on the number of values in a key's text, counted down while the text is built."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = VALUES_MAX

    def spend_values(self, values: int) -> None:
        """Subtract `values` from the allowance. Raises TooMuchWork if it is exhausted."""
        self._left -= values
        if self._left < 0:
            raise TooMuchWork(f"the key is made of more than {VALUES_MAX} values")


class WrittenFloat(float):
    """A number with a point or an exponent, together with its original text."""

    __slots__ = ("text",)
    text: str


def parse_written_float(text: str) -> WrittenFloat:
    """Parse a number into a float that keeps its text."""
    number = WrittenFloat(text)
    number.text = text
    return number


decode = msgspec.json.Decoder(float_hook=parse_written_float).decode


def bound_text(text: str) -> str:
    """Return the text, or its marked SHA-256 if it is too long."""
    if len(text) <= TEXT_CHARS_MAX:
        return text
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def text_of_raw(raw: bytes) -> str | None:
    """Return the canonical text of one value's JSON; None for null. Raises ValueError if it is invalid."""
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
    """Return the canonical text of a decoded value. Raises ValueError (or TooMuchWork) and RecursionError."""
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
    """Return the one canonical text for all notations of a number. Raises ValueError."""
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > DIGITS_MAX:
        raise ValueError(f"{text[:20]!r} is no number, or has more than {DIGITS_MAX} digits")
    fraction = match[3] or ""
    digits = (match[2] + fraction).lstrip("0")
    if not digits:
        return "0"
    significant = digits.rstrip("0")
    exponent = int(match[4] or 0) - len(fraction) + len(digits) - len(significant)
    return match[1] + _insert_point(significant, exponent)


def _insert_point(digits: str, exponent: int) -> str:
    if exponent >= 0 and len(digits) + exponent <= _PLAIN_DIGITS:
        return digits + "0" * exponent
    if -_PLAIN_DIGITS <= exponent < 0:
        padded = digits.rjust(1 - exponent, "0")
        return f"{padded[:exponent]}.{padded[exponent:]}"
    return f"{digits}e{exponent}" if exponent else digits
