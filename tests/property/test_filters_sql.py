"""Random SQL expressions: text to matcher gives what a naive evaluator of the same tree gives."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy_consumer.filters.message_filters import compile_sql, find_expression_error
from tests.examples import examples

NAMES = ["a", "b", "c"]
NUMBERS = ["0", "1", "-1", "2.5", "1e1", "10", "1.0"]
TEXTS = ["", "x", "1", "1.0", "true", "it's", "2.5"]
VALUES = ["0", "1", "1.0", "-1", "2.5", "10", "1e1", "x", "true", "FALSE", "it's", "abc"]
Tree = tuple  # ("and", l, r) | ("or", l, r) | ("not", x) | ("cmp", sign, l, r) | …

name = st.sampled_from(NAMES).map(lambda one: ("name", one))
number = st.sampled_from(NUMBERS).map(lambda one: ("number", one))
text = st.sampled_from(TEXTS).map(lambda one: ("text", one))
truth = st.sampled_from(["TRUE", "FALSE"]).map(lambda one: ("truth", one))
null = st.just(("null", "NULL"))
operand = st.one_of(name, name, number, text, truth, null)
ordered = st.one_of(name, name, number, null)
leaf = st.one_of(
    st.tuples(st.just("cmp"), st.sampled_from(["=", "<>"]), operand, operand),
    st.tuples(st.just("cmp"), st.sampled_from(["<", "<=", ">", ">="]), ordered, ordered),
    st.tuples(st.just("between"), st.booleans(), ordered, ordered, ordered),
    st.tuples(
        st.just("in"), st.booleans(), name, st.lists(st.one_of(number, text, truth), min_size=1, max_size=3)
    ),
    st.tuples(st.just("null?"), st.booleans(), name),
    name,
    truth,
)
trees = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner), st.tuples(st.sampled_from(["and", "or"]), inner, inner)
    ),
    max_leaves=8,
)


def written(tree: Tree) -> str:
    kind = tree[0]
    if kind in ("and", "or"):
        return f"({written(tree[1])} {kind.upper()} {written(tree[2])})"
    if kind == "not":
        return f"NOT ({written(tree[1])})"
    if kind == "cmp":
        return f"{written(tree[2])} {tree[1]} {written(tree[3])}"
    if kind == "between":
        no = "NOT " if tree[1] else ""
        return f"{written(tree[2])} {no}BETWEEN {written(tree[3])} AND {written(tree[4])}"
    if kind == "in":
        no = "NOT " if tree[1] else ""
        return f"{written(tree[2])} {no}IN ({', '.join(map(written, tree[3]))})"
    if kind == "null?":
        return f"{written(tree[2])} IS {'NOT ' if tree[1] else ''}NULL"
    return "'" + tree[1].replace("'", "''") + "'" if kind == "text" else tree[1]


def as_number(value: str) -> Fraction | None:
    try:
        return Fraction(value)
    except ValueError:
        return None


def as_truth(value: str) -> bool | None:
    return {"true": True, "false": False}.get(value.lower())


def compare(sign: str, left: Tree, right: Tree, row: dict[str, str]) -> bool | None:
    kinds = {left[0], right[0]}
    first, second = (row.get(one[1]) if one[0] == "name" else one[1] for one in (left, right))
    if first is None or second is None or "null" in kinds:
        return None
    if kinds == {"name"}:
        convert = str if sign in ("=", "<>") else as_number
    elif len(kinds - {"name"}) == 1:
        convert = {"text": str, "number": as_number, "truth": as_truth}[next(iter(kinds - {"name"}))]
    else:
        return None
    one, two = convert(first), convert(second)
    if one is None or two is None:
        return None
    below, same = (one < two if sign not in ("=", "<>") else False), one == two
    table = {"=": same, "<>": not same, "<": below, "<=": below or same, ">": not below and not same}
    return table.get(sign, not below)


def opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


def together(kind: str, truths: list[bool | None]) -> bool | None:
    decides = kind == "or"
    if decides in truths:
        return decides
    return None if None in truths else not decides


def naive(tree: Tree, row: dict[str, str]) -> bool | None:
    kind = tree[0]
    if kind in ("and", "or"):
        return together(kind, [naive(tree[1], row), naive(tree[2], row)])
    if kind == "not":
        return opposite(naive(tree[1], row))
    if kind == "cmp":
        return compare(tree[1], tree[2], tree[3], row)
    if kind == "between":
        ends = [compare(">=", tree[2], tree[3], row), compare("<=", tree[2], tree[4], row)]
        value = together("and", ends)
        return opposite(value) if tree[1] else value
    if kind == "in":
        value = together("or", [compare("=", tree[2], one, row) for one in tree[3]])
        return opposite(value) if tree[1] else value
    if kind == "null?":
        return (tree[2][1] in row) is tree[1]
    if kind == "name":
        return as_truth(row[tree[1]]) if tree[1] in row else None
    return bool(tree[1] == "TRUE")


@settings(deadline=None, max_examples=examples(400))
@given(tree=trees, row=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES)))
def test_the_matcher_agrees_with_the_naive_evaluator(tree: Tree, row: dict[str, str]) -> None:
    sql = written(tree)
    assert compile_sql(sql).match(row) is naive(tree, row), sql


@settings(deadline=None, max_examples=examples(300))
@given(sql=st.text(alphabet="ab1'\"()=<>!., -+eINOTANDR\n", max_size=60))
def test_any_text_is_an_expression_or_has_an_error(sql: str) -> None:
    error = find_expression_error("*", sql)
    if error is None and sql:
        assert compile_sql(sql).match({}) in (True, False, None)
