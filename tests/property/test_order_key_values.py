"""Order keys of random bodies: the direct walk gives what the library gives, and texts are identities."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy_consumer.order_keys.general import general_reader
from proxy_consumer.order_keys.path import parse_path
from proxy_consumer.order_keys.reader import Unshaped, find_order_key_error, plain_reader
from tests.examples import examples

NAMES = st.sampled_from(["a", "b", "k-k", "é", ""])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.sampled_from([0, 1, 1.0, -0.0, "1", ""]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=10,
)
STEPS = st.lists(st.one_of(NAMES, st.integers(-3, 3)), min_size=1, max_size=4)


def written(steps: list[str | int]) -> str:
    return "$" + "".join(f"['{step}']" if isinstance(step, str) else f"[{step}]" for step in steps)


@settings(deadline=None, max_examples=examples(400))
@given(value=VALUES, steps=STEPS, ascii_only=st.booleans())
def test_the_direct_walk_agrees_with_the_library(
    value: Any, steps: list[str | int], ascii_only: bool
) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    parsed = parse_path(written(steps))
    expected = general_reader(parsed)(body)
    try:
        assert plain_reader(parsed)(body) == expected
    except Unshaped:
        return  # then the library is asked


@settings(deadline=None, max_examples=examples(300))
@given(value=VALUES, data=st.data())
def test_the_direct_walk_finds_every_stored_value(value: Any, data: st.DataObject) -> None:
    """Paths made from the body itself; compared with a walk over Python's own reading of it."""
    steps: list[str | int] = []
    node = value
    while isinstance(node, dict | list) and node and len(steps) < 5:
        step = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        steps.append(step)
        node = node[step]
    if steps:
        text = plain_reader(parse_path(written(steps)))(json.dumps(value).encode())
        assert (text is None) == (node is None)
        if text is not None:
            assert same(json.loads(text, parse_float=Fraction), node)


def exact(number: int | float | Fraction) -> Fraction:
    """The number as it is written."""
    return number if isinstance(number, Fraction) else Fraction(repr(number))


def same(one: Any, two: Any) -> bool:
    """Equality of JSON values as order keys understand it."""
    if isinstance(one, bool) or isinstance(two, bool) or one is None or two is None:
        return one is two
    if isinstance(one, int | float | Fraction) and isinstance(two, int | float | Fraction):
        return exact(one) == exact(two)
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[name], two[name]) for name in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two and type(one) is type(two))


@settings(deadline=None, max_examples=examples(400))
@given(one=VALUES, two=VALUES)
def test_texts_are_equal_exactly_when_values_are(one: Any, two: Any) -> None:
    read = general_reader(parse_path("['v']"))
    first, second = (read(json.dumps({"v": value}).encode()) for value in (one, two))
    assert (first == second) is same(one, two)


@settings(deadline=None, max_examples=examples(300))
@given(path=st.text(alphabet="$./[]*'\"-:,?@()=<>ab1 size", max_size=25))
def test_any_text_is_a_path_or_has_an_error(path: str) -> None:
    if find_order_key_error(path) is None and path:
        general_reader(parse_path(path))(b'{"a":[{"b":1,"a":2},2],"b":{"a":"x"}}')
