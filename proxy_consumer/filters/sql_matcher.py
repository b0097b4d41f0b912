"""Compiles the trees of SQL filter expressions into functions. Three-valued: True, False, None = unknown.

The rules are those of SQL: a comparison with an absent property, or of values of different types, is unknown;
NOT unknown is unknown; AND is false as soon as one operand is false, OR true as soon as one is true. A
property is text: compared with a number or a truth value, it counts as the number or truth value that the
text spells, or else the comparison is unknown. Between two properties, = and <> compare the texts, the other
signs the numbers that they spell.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from proxy_consumer.filters.sql_parser import (
    Between,
    Both,
    Compare,
    Condition,
    Either,
    In,
    IsNull,
    Literal,
    Not,
    Operand,
    Property,
    read_number,
)

Row = Mapping[str, str]  # the properties of a message
Truth = bool | None
Matcher = Callable[[Row], Truth]
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def build_matcher(condition: Condition) -> Matcher:
    """Compile a condition into a function that takes a message's properties and returns its truth."""
    if isinstance(condition, Both):
        return _match_together([build_matcher(inner) for inner in condition.conditions], decisive=False)
    if isinstance(condition, Either):
        return _match_together([build_matcher(inner) for inner in condition.conditions], decisive=True)
    if isinstance(condition, Not):
        return _negate_matcher(build_matcher(condition.inner))
    if isinstance(condition, Compare):
        return _compile_comparison(condition)
    if isinstance(condition, Between):
        low = _compile_comparison(Compare(">=", condition.operand, condition.low))
        high = _compile_comparison(Compare("<=", condition.operand, condition.high))
        return _match_together([low, high], decisive=False)
    if isinstance(condition, In):
        return _compile_in(condition)
    if isinstance(condition, IsNull):
        name = condition.operand.name
        return lambda row: name not in row
    if isinstance(condition, Property):
        name = condition.name
        return lambda row: _truth_of(row.get(name))
    constant = condition.value
    return lambda row: constant if isinstance(constant, bool) else None


def names_in(condition: Condition) -> Iterator[str]:
    """Iterate over the names of the properties in a condition."""
    if isinstance(condition, Both | Either):
        for inner in condition.conditions:
            yield from names_in(inner)
    elif isinstance(condition, Not):
        yield from names_in(condition.inner)
    elif isinstance(condition, Compare):
        yield from (each.name for each in (condition.left, condition.right) if isinstance(each, Property))
    elif isinstance(condition, Between):
        operands = (condition.operand, condition.low, condition.high)
        yield from (each.name for each in operands if isinstance(each, Property))
    elif isinstance(condition, In | IsNull):
        yield condition.operand.name
    elif isinstance(condition, Property):
        yield condition.name


def _match_together(matchers: list[Matcher], decisive: bool) -> Matcher:
    """Combine matchers by AND (`decisive` False) or OR (True).

    An operand with the decisive value decides; otherwise an unknown operand makes the result unknown.
    """

    def match(row: Row) -> Truth:
        truth: Truth = not decisive
        for matcher in matchers:
            one = matcher(row)
            if one is decisive:
                return decisive
            if one is None:
                truth = None
        return truth

    return match


def _negate_matcher(inner: Matcher) -> Matcher:
    def match(row: Row) -> Truth:
        truth = inner(row)
        return None if truth is None else not truth

    return match


def _truth_of(text: str | None) -> Truth:
    word = None if text is None else text.lower()
    return True if word == "true" else False if word == "false" else None


def _compile_comparison(condition: Compare) -> Matcher:
    sign, left, right = condition.sign, condition.left, condition.right
    if isinstance(left, Literal) and isinstance(right, Literal):
        constant = _compare_constants(sign, left.value, right.value)
        return lambda row: constant
    value = _build_reader(left, right, sign), _build_reader(right, left, sign)
    return _compare_values(_SIGNS[sign], *value)


def _compare_constants(sign: str, left: object, right: object) -> Truth:
    if left is None or right is None or _kind_of(left) is not _kind_of(right):
        return None
    return _SIGNS[sign](left, right)


def _kind_of(value: object) -> type:
    return type(value) if isinstance(value, str | bool) else float


def _compare_values(
    sign: Callable[[Any, Any], bool], left: Callable[[Row], Any], right: Callable[[Row], Any]
) -> Matcher:
    def match(row: Row) -> Truth:
        first = left(row)
        if first is None:
            return None
        second = right(row)
        return None if second is None else sign(first, second)

    return match


def _build_reader(operand: Operand, beside: Operand, sign: str) -> Callable[[Row], Any]:
    """Return a function that reads one operand, converted to the type of the other (`beside`); it returns
    None for unknown."""
    if isinstance(operand, Literal):
        constant = operand.value
        return lambda row: constant
    name = operand.name
    if isinstance(beside, Property):
        convert: Callable[[str], Any] | None = None if sign in ("=", "<>") else read_number
    elif isinstance(beside.value, bool):
        convert = _truth_of
    elif isinstance(beside.value, str):
        convert = None
    else:
        convert = read_number
    if convert is None:
        return lambda row: row.get(name)
    return lambda row: None if (text := row.get(name)) is None else convert(text)


def _compile_in(condition: In) -> Matcher:
    """Compile IN: true if the property equals a value; unknown if it is absent or matches no type in the
    list."""
    name = condition.operand.name
    texts = frozenset(value for value in condition.values if isinstance(value, str))
    truths = frozenset(value for value in condition.values if isinstance(value, bool))
    numbers = frozenset(value for value in condition.values if _kind_of(value) is float)

    def match(row: Row) -> Truth:
        text = row.get(name)
        if text is None:
            return None
        if text in texts:
            return True
        truth = _truth_of(text) if truths else None
        number = read_number(text) if numbers else None
        if truth in truths or number in numbers:
            return True
        unknown = (truths and truth is None) or (numbers and number is None)
        return None if unknown else False

    return match
