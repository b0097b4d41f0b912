"""The words of an SQL filter expression: names, 'texts', numbers, operators, keywords; each with its place.

Keywords in any case. A name is letters, digits, _ and $, not starting with a digit; any other name stands
in double quotes ("a-b"; a double quote in it is written twice, as a single one in a 'text').
"""

from __future__ import annotations

import math
import re
from enum import Enum
from typing import NamedTuple

from proxy_consumer.filters.fault import ExpressionError

KEYWORDS = frozenset(["AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE"])
_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.$]))
    | (?P<name>[^\W\d][\w$]*|\$[\w$]*)
    | '(?P<text>(?:[^']|'')*)'
    | "(?P<quoted>(?:[^"]|"")*)"
    | (?P<sign><>|!=|<=|>=|[=<>(),+-])""",
    re.VERBOSE,
)
NUMBER_CHARS_MAX = 64


class Sort(Enum):
    """What a token is."""

    NAME = "a property name"
    TEXT = "a 'text'"
    NUMBER = "a number"
    KEYWORD = "a keyword"
    SIGN = "a sign"
    END = "the end"


class Token(NamedTuple):
    """`value`: the name, the text, the number, the keyword in capitals, or the sign. `at` counts from 1."""

    sort: Sort
    value: str | int | float
    at: int
    shown: str


def tokens(text: str) -> list[Token]:
    """All of them, an END last. Raises ExpressionError."""
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _unreadable(text, at)
        if match.lastgroup != "space":
            found.append(_token(match, at + 1))
        at = match.end()
    found.append(Token(Sort.END, "", len(text) + 1, "the end"))
    return found


def _token(match: re.Match[str], at: int) -> Token:
    group, whole = match.lastgroup, match[0]
    if group == "number":
        return Token(Sort.NUMBER, _literal(whole, at), at, whole)
    if group == "text":
        return Token(Sort.TEXT, match["text"].replace("''", "'"), at, whole)
    if group == "quoted":
        return Token(Sort.NAME, match["quoted"].replace('""', '"'), at, whole)
    if group == "name":
        word = whole.upper()
        return (
            Token(Sort.KEYWORD, word, at, whole) if word in KEYWORDS else Token(Sort.NAME, whole, at, whole)
        )
    return Token(Sort.SIGN, whole, at, whole)


def _literal(text: str, at: int) -> int | float:
    number = read_number(text)
    if number is None:
        raise ExpressionError(f"number {text[:20]}… is too long or too large for a 64-bit float", at)
    return number


def _unreadable(text: str, at: int) -> ExpressionError:
    if text[at] in "'\"":
        return ExpressionError(f"this {text[at]} has no closing one", at + 1)
    if text[at].isdigit():
        return ExpressionError(f"{text[at : at + 20]!r} is no number", at + 1)
    return ExpressionError(f"{text[at]!r} is not understood", at + 1)


_NUMBER = re.compile(r"[+-]?(?:\d+(\.\d*)?|(\.\d+))([eE][+-]?\d+)?", re.ASCII)


def read_number(text: str) -> int | float | None:
    """The number that a text is, whole ones exactly; None when it is none, or too long to be meant as one."""
    match = _NUMBER.fullmatch(text) if len(text) <= NUMBER_CHARS_MAX else None
    if match is None:
        return None
    if match.lastindex is None:
        return int(text)
    number = float(text)
    return number if math.isfinite(number) else None
