"""SQL expressions: what they mean, what is refused and where, and that nothing in them runs away."""

from __future__ import annotations

import pytest

from ddmq_common.delivery import encode
from ddmq_common.errors import CallerError
from proxy_consumer.filters.message_filters import SqlFilter, check_stated, compile_sql, find_expression_error
from proxy_consumer.filters.sql_parser import DEPTH_MAX

ROW = {"n": "5", "f": "2.50", "neg": "-3", "e": "1e3", "s": "abc", "t": "true", "F": "FALSE", "q": "it's"}
T, F, U = True, False, None


@pytest.mark.parametrize(
    ("sql", "truth"),
    [
        ("n = 5", T), ("n = 5.0", T), ("n <> 5", F), ("n != 6", T), ("5 < n", F), ("4 < n", T),
        ("n > 4.99", T), ("n >= 5", T), ("n <= 4", F), ("f = 2.5", T), ("f > 2 AND f < 3", T),
        ("neg < 0", T), ("neg = -3", T), ("neg = - 3", T), ("e = 1000", T), ("n = .5e1", T), ("n = +5", T),
        ("n BETWEEN 5 AND 6", T), ("n BETWEEN 6 AND 9", F), ("n NOT BETWEEN 6 AND 9", T),
        ("n BETWEEN f AND e", T), ("none BETWEEN 1 AND 2", U), ("n BETWEEN none AND 2", F),
        ("n BETWEEN none AND 9", U), ("n NOT BETWEEN none AND 9", U),
        ("s = 'abc'", T), ("s <> 'abc'", F), ("s = 'ABC'", F), ("q = 'it''s'", T), ("'abc' = s", T),
        ("n = '5'", T), ("n = '5.0'", F), ("s = 5", U), ("s <> 5", U), ("NOT s = 5", U), ("s > 5", U),
        ("t = TRUE", T), ("t", T), ("F", F), ("NOT F", T), ("F = FALSE", T), ("s", U), ("s = TRUE", U),
        ("t <> FALSE", T), ("none", U), ("none = 1", U), ("none <> 1", U), ("NOT none = 1", U),
        ("n = NULL", U), ("n <> NULL", U), ("NULL = NULL", U), ("NULL", U), ("TRUE", T), ("FALSE", F),
        ("none IS NULL", T), ("n IS NULL", F), ("n IS NOT NULL", T), ("none IS NOT NULL", F),
        ("s IN ('x', 'abc')", T), ("s IN ('x')", F), ("s NOT IN ('x')", T), ("none IN ('x')", U),
        ("none NOT IN ('x')", U), ("n IN (1, 5.0)", T), ("s IN (1, 2)", U), ("t IN (TRUE)", T),
        ("s NOT IN (1)", U), ("s IN (1, 'abc')", T), ("n IN (1, 'x')", F),
        ("n = 5 AND none = 1", U), ("n = 6 AND none = 1", F), ("n = 5 OR none = 1", T),
        ("none = 1 OR n = 6", U), ("n = 6 OR n = 7 AND n = 5 OR n = 5", T),
        ("(n = 6 OR n = 5) AND s = 'x'", F),
        ("NOT n = 6 AND s = 'abc'", T), ("NOT (n = 6 AND s = 'abc')", T), ("not n = 6 and S is null", T),
        ("n = n", T), ("n = f", F), ("n > f", T), ("s = q", F), ("s < q", U), ("1 < 2", T), ("1 = '1'", U),
        ('"n" = 5', T), ('"a-b" IS NULL', T),
    ],
)  # fmt: skip
def test_what_an_expression_means(sql: str, truth: bool | None) -> None:
    assert compile_sql(sql).match(ROW) is truth


@pytest.mark.parametrize(
    ("text", "number"),
    [("5", T), ("5.000", T), ("+5", T), ("50e-1", T), ("05", T), ("5 ", U), ("", U), ("0x5", U), ("5d", U),
     ("NaN", U), ("Infinity", U), ("1e999", U), ("٥", U), ("5" + "0" * 64, U), ("1_0", U)],
)  # fmt: skip
def test_which_texts_are_numbers(text: str, number: bool | None) -> None:
    assert compile_sql("p = 5").match({"p": text}) is number


def test_integers_are_exact() -> None:
    big = 2**70 + 1
    assert compile_sql(f"p = {big}").match({"p": str(big)}) is True
    assert compile_sql(f"p = {big}").match({"p": str(big - 1)}) is False


@pytest.mark.parametrize(
    ("sql", "at", "what"),
    [
        ("a =", 4, "found the end; expected a property"),
        ("a = = 1", 5, "found =; expected"),
        ("a 5", 3, "found 5; expected AND, OR or the end"),
        ("(a = 1", 7, "expected AND, OR or )"),
        ("a = 1)", 6, "found ); expected AND, OR or the end"),
        ("a = 'x", 5, "no closing"),
        ("a = 5OR b", 5, "'5OR b' is no number"),
        ("a = 12x", 5, "'12x' is no number"),
        ("a = 1.2.3", 5, "is no number"),
        ("a # 1", 3, "'#' is not understood"),
        ("a LIKE 'x%'", 3, "LIKE does not exist here; allowed: =, <>"),
        ("a not like 'x%'", 7, "LIKE does not exist here"),
        ("a < 'x'", 5, "found 'x'; < compares numbers only"),
        ("a > TRUE", 5, "compares numbers only"),
        ("a BETWEEN 'a' AND 'b'", 11, "BETWEEN compares numbers only"),
        ("a BETWEEN 1 OR 2", 13, "found OR; expected AND"),
        ("a IN 5", 6, "found 5; expected ("),
        ("a IN ()", 7, "expected a 'text', a number"),
        ("a IN (1 2)", 9, "found 2; expected , or )"),
        ("a IN (NULL)", 7, "IN takes texts"),
        ("5 IN (5)", 1, "IN wants a property"),
        ("5 IS NULL", 1, "IS NULL wants a property"),
        ("a IS 5", 6, "found 5; expected NULL"),
        ("a NOT 5", 7, "expected BETWEEN or IN"),
        ("5", 2, "expected =, <>"),
        ("a = 1e999", 5, "too large"),
        ("a = -x", 6, "expected a number"),
        (" ", 2, "found the end; expected a condition"),
        ("a = 1 AND", 10, "expected a condition"),
        ("(" * 65 + "a" + ")" * 65, 65, f"more than {DEPTH_MAX} deep"),
        ("NOT " * 65 + "a", 257, f"more than {DEPTH_MAX} deep"),
    ],
)
def test_a_bad_expression_says_where_and_what_was_expected(sql: str, at: int, what: str) -> None:
    error = find_expression_error("*", sql)
    assert error is not None
    assert error.startswith("sql is ")
    assert f": at character {at}: " in error
    assert what in error


@pytest.mark.parametrize(
    "sql",
    [
        "(" * 4096,
        "NOT " * 1024,
        "a=1 AND " * 511 + "a=1",
        "'" * 4095,
        "a IN (" + "1," * 2000 + "1)",
        "-" * 4096,
    ],
)
def test_the_largest_expressions_are_quick_to_judge(sql: str) -> None:
    assert len(sql) <= 4096
    find_expression_error("*", sql)  # must come back, with a fault or not
    assert "at most 4096" in str(find_expression_error("*", sql + " " * 4096))


def judge(sql: str, key: bytes = b"", tag: bytes = b"", **properties: str) -> bool:
    raw_properties = {name.encode(): value.encode() for name, value in properties.items()}
    return SqlFilter(sql).find_rejection(encode(key, b"body", tag, raw_properties)) is None


def test_tag_and_key_of_the_message() -> None:
    assert judge("TAGS = 'A' AND KEYS = 'k'", b"k", b"A")
    assert not judge("TAGS = 'A' AND KEYS = 'k'", b"k")
    assert judge("TAGS IS NULL AND KEYS IS NULL")
    assert not judge("TAGS IS NULL", tag=b"A")
    assert judge("TAGS IN ('A', 'ü') AND p > 5", tag="ü".encode(), p="6", other="x")
    assert not judge("p > 5", b"k", b"t", p="5")
    assert not judge("p > 5", b"k", b"t")


def test_a_property_does_not_stand_for_the_tag() -> None:
    assert judge("TAGS = 'A'", tag=b"A", TAGS="B")
    assert judge("TAGS IS NULL", TAGS="B")


@pytest.mark.parametrize(
    ("sql", "at"),
    [
        ("region = NULL", 10),
        ("null <> region", 1),
        ("n = 1 OR NULL", 10),
        ("n BETWEEN NULL AND 5", 11),
        ("n > NULL", 5),
    ],
)
def test_null_as_a_value_is_refused_where_a_filter_is_stated(sql: str, at: int) -> None:
    with pytest.raises(CallerError, match=f"at character {at}: nothing equals NULL.*allowed: name IS NULL"):
        check_stated(sql)
    assert find_expression_error("*", sql) is None  # settings of before still load


def test_like_may_be_the_name_of_a_property() -> None:
    assert find_expression_error("*", '"LIKE" = 1 AND LIKE = 1 AND n IS NOT NULL') is None
    check_stated("LIKE = 1 AND n IS NOT NULL")
