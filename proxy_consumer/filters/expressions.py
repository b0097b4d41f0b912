"""What is wrong with the filter that a subscription, or a pull, states. Compiled expressions are kept."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ddmq_common.errors import CallerError
from proxy_consumer.filters.fault import ExpressionError
from proxy_consumer.filters.sql_matcher import Matcher, matcher, names_in
from proxy_consumer.filters.sql_parser import parse_sql
from proxy_consumer.filters.tags import parse_tags

COMPILED_MAX = 1024  # expressions kept; others are compiled again


class Compiled(NamedTuple):
    """An SQL expression ready to use, and the properties it looks at."""

    match: Matcher
    names: frozenset[str]


@lru_cache(maxsize=COMPILED_MAX)
def compile_sql(sql: str) -> Compiled:
    """Raises ExpressionError."""
    condition = parse_sql(sql)
    return Compiled(matcher(condition), frozenset(names_in(condition)))


def expression_fault(tags: str, sql: str) -> str | None:
    """What is wrong with a pair of settings, with key, value and place; None = nothing.

    `tags` "" and "*" are no filter; `sql` "" is none. Both together are refused.
    """
    key, text = "tags", tags
    try:
        wanted = parse_tags(tags)
        if sql:
            key, text = "sql", sql
            compile_sql(sql)
    except ExpressionError as error:
        return f"{key} is {_short(text)}: {error}"
    if wanted is not None and sql:
        return (
            f"tags is {_short(tags)} and sql is {_short(sql)}; allowed is one of them "
            "(tags: \"*\" with sql; in sql, a tag is TAGS = 'A')"
        )
    return None


def check_stated(sql: str) -> None:
    """Raises CallerError for a filter that may not be stated anew; one in the settings is understood."""
    try:
        if sql:
            parse_sql(sql, strict=True)
    except ExpressionError as error:
        raise CallerError(f"sql is {_short(sql)}: {error}") from error


def _short(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:99]}…")
