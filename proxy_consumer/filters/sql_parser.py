"""Parses SQL filter expressions into trees, by recursive descent with bounds on size and depth.

    expression = conjunction { OR conjunction }
    conjunction = negation { AND negation }
    negation = NOT negation | condition
    condition = ( expression ) | operand [ comparison | range | list | null test ]

Keywords are case-insensitive. A name is letters, digits, _ and $, not starting with a digit; any other name
is written in double quotes ("a-b"; a double quote in it is doubled, like a single one in a 'text'). Errors
state the position. Types are checked as far as the expression tells, so that a filter that could never match
is rejected when the subscription is created. A comparison with NULL, which is never true, is rejected in a
new setting (`strict`), but accepted in a stored one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

EXPRESSION_BYTES_MAX = 4096
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
DEPTH_MAX = 64
_COMPARISONS = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


class ExpressionError(ValueError):
    """An invalid expression. `at`: the position of the error, in characters from 1."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(f"at character {at}: {text}")
        self.at = at


def check_size(text: str) -> None:
    """Raise ExpressionError if an expression is longer than EXPRESSION_BYTES_MAX."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > EXPRESSION_BYTES_MAX:
        raise ExpressionError(f"it has {size} bytes; allowed: at most {EXPRESSION_BYTES_MAX}", 1)


class Sort(Enum):
    """The kinds of tokens."""

    NAME = "a property name"
    TEXT = "a 'text'"
    NUMBER = "a number"
    KEYWORD = "a keyword"
    SIGN = "a sign"
    END = "the end"


class Token(NamedTuple):
    """A word, literal or sign of a filter expression.

    `value`: the name, text, number, keyword in capitals, or sign. `at`: its position, from 1.
    """

    sort: Sort
    value: str | int | float
    at: int
    shown: str


def split_tokens(text: str) -> list[Token]:
    """Split an expression into tokens, with an END last. Raises ExpressionError."""
    tokens_read: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _unreadable_text(text, at)
        if match.lastgroup != "space":
            tokens_read.append(_build_token(match, at + 1))
        at = match.end()
    tokens_read.append(Token(Sort.END, "", len(text) + 1, "the end"))
    return tokens_read


def _build_token(match: re.Match[str], at: int) -> Token:
    group, text = match.lastgroup, match[0]
    if group == "number":
        return Token(Sort.NUMBER, _parse_number(text, at), at, text)
    if group == "text":
        return Token(Sort.TEXT, match["text"].replace("''", "'"), at, text)
    if group == "quoted":
        return Token(Sort.NAME, match["quoted"].replace('""', '"'), at, text)
    if group == "name":
        word = text.upper()
        return Token(Sort.KEYWORD, word, at, text) if word in KEYWORDS else Token(Sort.NAME, text, at, text)
    return Token(Sort.SIGN, text, at, text)


def _parse_number(text: str, at: int) -> int | float:
    number = read_number(text)
    if number is None:
        raise ExpressionError(f"number {text[:20]}… is too long or too large for a 64-bit float", at)
    return number


def _unreadable_text(text: str, at: int) -> ExpressionError:
    if text[at] in "'\"":
        return ExpressionError(f"this {text[at]} has no closing one", at + 1)
    if text[at].isdigit():
        return ExpressionError(f"{text[at : at + 20]!r} is no number", at + 1)
    return ExpressionError(f"{text[at]!r} is not understood", at + 1)


_NUMBER = re.compile(r"[+-]?(?:\d+(\.\d*)?|(\.\d+))([eE][+-]?\d+)?", re.ASCII)


def read_number(text: str) -> int | float | None:
    """Return the number that a text spells, integers exactly; None if it spells none, or is too long."""
    match = _NUMBER.fullmatch(text) if len(text) <= NUMBER_CHARS_MAX else None
    if match is None:
        return None
    if match.lastindex is None:
        return int(text)
    number = float(text)
    return number if math.isfinite(number) else None


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a property, of TAGS or of KEYS; as a condition: whether it is `true`."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant value; None is NULL."""

    value: str | int | float | bool | None


Operand = Property | Literal


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison of two operands; `sign` is one of = <> < <= > >=."""

    sign: str
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class Between:
    operand: Operand
    low: Operand
    high: Operand


@dataclass(frozen=True, slots=True)
class In:
    operand: Property
    values: tuple[str | int | float | bool, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Property


@dataclass(frozen=True, slots=True)
class Not:
    inner: Condition


@dataclass(frozen=True, slots=True)
class Both:
    """The conjunction (AND) of two or more conditions."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """The disjunction (OR) of two or more conditions."""

    conditions: tuple[Condition, ...]


Condition = Compare | Between | In | IsNull | Not | Both | Either | Property | Literal


def parse_sql(text: str, *, strict: bool = False) -> Condition:
    """Parse a whole expression; `strict` rejects comparisons with NULL. Raises ExpressionError."""
    check_size(text)
    parser = _Parser(split_tokens(text), strict=strict)
    expression = parser.parse_expression(0)
    parser.end()
    return expression


class _Parser:
    def __init__(self, tokens: list[Token], *, strict: bool) -> None:
        self._tokens = tokens
        self._strict = strict
        self._next = 0

    # --- tokens

    @property
    def _next_token(self) -> Token:
        return self._tokens[self._next]

    def _take_token(self) -> Token:
        token = self._next_token
        self._next += 1
        return token

    def _next_is(self, value: str) -> bool:
        token = self._next_token
        return token.sort in (Sort.KEYWORD, Sort.SIGN) and token.value == value

    def _take_if(self, value: str) -> bool:
        matches = self._next_is(value)
        self._next += matches
        return matches

    def _take_required(self, value: str) -> None:
        if not self._take_if(value):
            raise self._expected_error(value)

    def _expected_error(self, what: str) -> ExpressionError:
        return ExpressionError(f"found {self._next_token.shown}; expected {what}", self._next_token.at)

    def end(self) -> None:
        if self._next_token.sort is not Sort.END:
            raise self._expected_error("AND, OR or the end")

    # --- conditions

    def parse_expression(self, depth: int) -> Condition:
        return self._parse_several(
            "OR", lambda: self._parse_several("AND", lambda: self._parse_negation(depth), Both), Either
        )

    def _parse_several(
        self, word: str, one: Callable[[], Condition], of: Callable[[tuple[Condition, ...]], Condition]
    ) -> Condition:
        conditions = [one()]
        while self._take_if(word):
            conditions.append(one())
        return conditions[0] if len(conditions) == 1 else of(tuple(conditions))

    def _parse_negation(self, depth: int) -> Condition:
        if depth >= DEPTH_MAX:
            raise ExpressionError(f"nested more than {DEPTH_MAX} deep", self._next_token.at)
        if self._take_if("NOT"):
            return Not(self._parse_negation(depth + 1))
        if self._take_if("("):
            inner = self.parse_expression(depth + 1)
            if not self._take_if(")"):
                raise self._expected_error("AND, OR or )")
            return inner
        return self._parse_condition()

    def _parse_condition(self) -> Condition:
        first = self._next_token
        operand = self._parse_operand("a condition")
        token = self._next_token
        if token.sort is Sort.SIGN and token.value in _COMPARISONS:
            return self._parse_comparison(operand, first)
        if self._take_if("IS"):
            negated = self._take_if("NOT")
            self._take_required("NULL")
            return _negate_condition(IsNull(_check_property(operand, first, "IS NULL")), negated)
        negated = self._take_if("NOT")
        if self._next_token.shown.upper() == "LIKE":
            text = "LIKE does not exist here; allowed: =, <>, <, <=, >, >=, BETWEEN, IN, IS NULL"
            raise ExpressionError(text, self._next_token.at)
        if self._take_if("BETWEEN"):
            return _negate_condition(self._parse_between(operand, first), negated)
        if self._take_if("IN"):
            return _negate_condition(In(_check_property(operand, first, "IN"), self._parse_list()), negated)
        if negated:
            raise self._expected_error("BETWEEN or IN")
        if isinstance(operand, Literal) and not isinstance(operand.value, bool | None):
            raise self._expected_error("=, <>, <, <=, >, >=, BETWEEN")
        return operand

    def _parse_comparison(self, left: Operand, first: Token) -> Condition:
        sign = _COMPARISONS[str(self._take_token().value)]
        second = self._next_token
        right = self._parse_operand("a property, a number, a 'text', TRUE or FALSE")
        if sign not in ("=", "<>"):
            _check_ordered(left, first, sign)
            _check_ordered(right, second, sign)
        return Compare(sign, left, right)

    def _parse_between(self, operand: Operand, first: Token) -> Condition:
        _check_ordered(operand, first, "BETWEEN")
        bounds = []
        for word in ("AND", ""):
            at = self._next_token
            bound = self._parse_operand("a number or a property")
            _check_ordered(bound, at, "BETWEEN")
            bounds.append(bound)
            if word:
                self._take_required(word)
        return Between(operand, *bounds)

    def _parse_list(self) -> tuple[str | int | float | bool, ...]:
        self._take_required("(")
        values: list[str | int | float | bool] = []
        while True:
            at = self._next_token
            operand = self._parse_operand("a 'text', a number, TRUE or FALSE")
            if isinstance(operand, Property) or operand.value is None:
                raise ExpressionError(f"found {at.shown}; IN takes texts, numbers, TRUE and FALSE", at.at)
            values.append(operand.value)
            if self._take_if(")"):
                return tuple(values)
            if not self._take_if(","):
                raise self._expected_error(", or )")

    def _parse_operand(self, what: str) -> Operand:
        token = self._next_token
        if token.sort is Sort.NAME:
            return Property(str(self._take_token().value))
        if token.sort in (Sort.TEXT, Sort.NUMBER):
            return Literal(self._take_token().value)
        if self._strict and self._next_is("NULL"):
            text = "nothing equals NULL, so this is never true; allowed: name IS NULL, name IS NOT NULL"
            raise ExpressionError(text, token.at)
        for word, value in (("TRUE", True), ("FALSE", False), ("NULL", None)):
            if self._take_if(word):
                return Literal(value)
        if self._next_is("-") or self._next_is("+"):
            return self._parse_signed()
        raise self._expected_error(what)

    def _parse_signed(self) -> Literal:
        negative = self._take_token().value == "-"
        if self._next_token.sort is not Sort.NUMBER:
            raise self._expected_error("a number")
        value = self._take_token().value
        assert not isinstance(value, str)
        return Literal(-value if negative else value)


def _negate_condition(condition: Condition, negated: bool) -> Condition:
    return Not(condition) if negated else condition


def _check_property(operand: Operand, token: Token, what: str) -> Property:
    if isinstance(operand, Property):
        return operand
    raise ExpressionError(f"found {token.shown}; {what} wants a property on its left", token.at)


def _check_ordered(operand: Operand, token: Token, what: str) -> None:
    if isinstance(operand, Literal) and isinstance(operand.value, str | bool):
        raise ExpressionError(
            f"found {token.shown}; {what} compares numbers only (texts: =, <>, IN)", token.at
        )
