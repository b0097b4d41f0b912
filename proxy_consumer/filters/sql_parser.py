"""SQL filter expressions into trees. A descent by hand: bounded in size and depth, errors with places.

    expression = conjunction { OR conjunction }
    conjunction = negation { AND negation }
    negation = NOT negation | condition
    condition = ( expression ) | operand [ comparison | range | list | null test ]

Whether types fit is decided here as far as the expression tells, so that a filter that could never match
is refused when the subscription is made. Comparing with NULL, which is never true either, is refused where
a filter is stated anew (`strict`): one that stands in the settings is still understood.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from proxy_consumer.filters.fault import ExpressionError, check_size
from proxy_consumer.filters.sql_tokens import Sort, Token, tokens

DEPTH_MAX = 64
_COMPARISONS = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a property, of TAGS or of KEYS; as a condition: whether it is `true`."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant; None is NULL."""

    value: str | int | float | bool | None


Operand = Property | Literal


@dataclass(frozen=True, slots=True)
class Compare:
    """`sign`: = <> < <= > >=."""

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
    """AND of two or more."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """OR of two or more."""

    parts: tuple[Condition, ...]


Condition = Compare | Between | In | IsNull | Not | Both | Either | Property | Literal


def parse_sql(text: str, *, strict: bool = False) -> Condition:
    """The whole expression; `strict`: without NULL as a value. Raises ExpressionError."""
    check_size(text)
    parser = _Parser(tokens(text), strict=strict)
    found = parser.expression(0)
    parser.end()
    return found


class _Parser:
    def __init__(self, given: list[Token], *, strict: bool) -> None:
        self._tokens = given
        self._strict = strict
        self._next = 0

    # --- tokens

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._token
        self._next += 1
        return token

    def _is(self, value: str) -> bool:
        token = self._token
        return token.sort in (Sort.KEYWORD, Sort.SIGN) and token.value == value

    def _took(self, value: str) -> bool:
        found = self._is(value)
        self._next += found
        return found

    def _must(self, value: str) -> None:
        if not self._took(value):
            raise self._wanted(value)

    def _wanted(self, what: str) -> ExpressionError:
        return ExpressionError(f"found {self._token.shown}; expected {what}", self._token.at)

    def end(self) -> None:
        if self._token.sort is not Sort.END:
            raise self._wanted("AND, OR or the end")

    # --- conditions

    def expression(self, depth: int) -> Condition:
        return self._several("OR", lambda: self._several("AND", lambda: self._negation(depth), Both), Either)

    def _several(
        self, word: str, one: Callable[[], Condition], of: Callable[[tuple[Condition, ...]], Condition]
    ) -> Condition:
        parts = [one()]
        while self._took(word):
            parts.append(one())
        return parts[0] if len(parts) == 1 else of(tuple(parts))

    def _negation(self, depth: int) -> Condition:
        if depth >= DEPTH_MAX:
            raise ExpressionError(f"nested more than {DEPTH_MAX} deep", self._token.at)
        if self._took("NOT"):
            return Not(self._negation(depth + 1))
        if self._took("("):
            inner = self.expression(depth + 1)
            if not self._took(")"):
                raise self._wanted("AND, OR or )")
            return inner
        return self._condition()

    def _condition(self) -> Condition:
        first = self._token
        operand = self._operand("a condition")
        token = self._token
        if token.sort is Sort.SIGN and token.value in _COMPARISONS:
            return self._comparison(operand, first)
        if self._took("IS"):
            negated = self._took("NOT")
            self._must("NULL")
            return _negated(IsNull(_property(operand, first, "IS NULL")), negated)
        negated = self._took("NOT")
        if self._token.shown.upper() == "LIKE":
            text = "LIKE does not exist here; allowed: =, <>, <, <=, >, >=, BETWEEN, IN, IS NULL"
            raise ExpressionError(text, self._token.at)
        if self._took("BETWEEN"):
            return _negated(self._between(operand, first), negated)
        if self._took("IN"):
            return _negated(In(_property(operand, first, "IN"), self._list()), negated)
        if negated:
            raise self._wanted("BETWEEN or IN")
        if isinstance(operand, Literal) and not isinstance(operand.value, bool | None):
            raise self._wanted("=, <>, <, <=, >, >=, BETWEEN")
        return operand

    def _comparison(self, left: Operand, first: Token) -> Condition:
        sign = _COMPARISONS[str(self._take().value)]
        second = self._token
        right = self._operand("a property, a number, a 'text', TRUE or FALSE")
        if sign not in ("=", "<>"):
            _ordered(left, first, sign)
            _ordered(right, second, sign)
        return Compare(sign, left, right)

    def _between(self, operand: Operand, first: Token) -> Condition:
        _ordered(operand, first, "BETWEEN")
        bounds = []
        for word in ("AND", ""):
            at = self._token
            bound = self._operand("a number or a property")
            _ordered(bound, at, "BETWEEN")
            bounds.append(bound)
            if word:
                self._must(word)
        return Between(operand, *bounds)

    def _list(self) -> tuple[str | int | float | bool, ...]:
        self._must("(")
        values: list[str | int | float | bool] = []
        while True:
            at = self._token
            operand = self._operand("a 'text', a number, TRUE or FALSE")
            if isinstance(operand, Property) or operand.value is None:
                raise ExpressionError(f"found {at.shown}; IN takes texts, numbers, TRUE and FALSE", at.at)
            values.append(operand.value)
            if self._took(")"):
                return tuple(values)
            if not self._took(","):
                raise self._wanted(", or )")

    def _operand(self, what: str) -> Operand:
        token = self._token
        if token.sort is Sort.NAME:
            return Property(str(self._take().value))
        if token.sort in (Sort.TEXT, Sort.NUMBER):
            return Literal(self._take().value)
        if self._strict and self._is("NULL"):
            text = "nothing equals NULL, so this is never true; allowed: name IS NULL, name IS NOT NULL"
            raise ExpressionError(text, token.at)
        for word, value in (("TRUE", True), ("FALSE", False), ("NULL", None)):
            if self._took(word):
                return Literal(value)
        if self._is("-") or self._is("+"):
            return self._signed()
        raise self._wanted(what)

    def _signed(self) -> Literal:
        negative = self._take().value == "-"
        if self._token.sort is not Sort.NUMBER:
            raise self._wanted("a number")
        value = self._take().value
        assert not isinstance(value, str)
        return Literal(-value if negative else value)


def _negated(condition: Condition, negated: bool) -> Condition:
    return Not(condition) if negated else condition


def _property(operand: Operand, token: Token, what: str) -> Property:
    if isinstance(operand, Property):
        return operand
    raise ExpressionError(f"found {token.shown}; {what} wants a property on its left", token.at)


def _ordered(operand: Operand, token: Token, what: str) -> None:
    if isinstance(operand, Literal) and isinstance(operand.value, str | bool):
        raise ExpressionError(
            f"found {token.shown}; {what} compares numbers only (texts: =, <>, IN)", token.at
        )
