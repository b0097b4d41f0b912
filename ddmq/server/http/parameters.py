"""The parameters of an admin request, checked against what its route declares.

A route declares a msgspec Struct for its query and one for its body. Their fields have `Meta` descriptions of
the allowed values. A name that the route does not declare is rejected with the nearest one that it does: a
misspelt `dry_run` must not carry out the change.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec.inspect import BoolType, Field, IntType, Metadata, StructType, Type, UnionType, type_info

from ddmq_common.errors import CallerError

SIMILARITY_MIN = 0.5
VALUE_CHARS = 120  # of a rejected value in an error
DIGITS_MAX = 18  # of a number in a query, which so fits into 64 bits
NUMBER_MAX = 10**DIGITS_MAX - 1
SYNONYMS = {  # names of other APIs, and of the first form of lists, by the name here
    "count": ("limit", "page_size", "per_page", "size", "max"),
    "after": ("cursor", "next", "page", "page_token"),
    "sort": ("order", "order_by", "sort_by"),
    "text": ("q", "search", "filter", "query"),
    "fields": ("columns", "select"),
}
FLAGS = {"1": True, "true": True, "0": False, "false": False}
_FIELD = re.compile(r" - at `\$\.(\w+)")


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The base of all declared bodies."""


class Query(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of all declared queries. A field is None if the query lacks it."""


class Answer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The base of all declared answers."""


S = TypeVar("S", bound=msgspec.Struct)
Q = TypeVar("Q", bound=Query)
B = TypeVar("B", bound=Body)


def check_names(kind: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise CallerError for the first name that is not allowed, with its synonym or the nearest allowed one.

    `kind`: "query name" or "body key".
    """
    allowed = sorted(allowed)
    for name in sorted(names):
        if name not in allowed:
            suggestions = [
                each for each in allowed if name in SYNONYMS.get(each, ())
            ] or difflib.get_close_matches(name[:VALUE_CHARS], allowed, n=1, cutoff=SIMILARITY_MIN)
            hint = f"; did you mean {suggestions[0]!r}?" if suggestions else ""
            allowed_names = ", ".join(allowed) if allowed else "none"
            raise CallerError(
                f"{name[:VALUE_CHARS]!r} is no {kind} of this request{hint} (allowed: {allowed_names})"
            )


def read_body(kind: type[B], body: Mapping[str, Any]) -> B:
    """Convert a JSON object to the declared body.

    Raises CallerError with the key, its value and the allowed values.
    """
    check_names("body key", body, kind.__struct_encode_fields__)
    return _convert_values(kind, body, body)


def read_query(kind: type[Q], query: Mapping[str, str]) -> Q:
    """Convert the texts of a query to the declared query: numbers from decimal digits, flags from FLAGS.

    Raises CallerError with the name, its text and the allowed values.
    """
    check_names("query name", query, kind.__struct_encode_fields__)
    types = _query_types(kind)
    return _convert_values(kind, {name: _read_text(types[name], text) for name, text in query.items()}, query)


def query_texts(query: Query) -> dict[str, str]:
    """Return the texts with which `read_query` returns this query again."""
    fields: dict[str, Any] = msgspec.to_builtins(query)
    return {name: str(int(value) if isinstance(value, bool) else value) for name, value in fields.items()}


def _read_text(kind: type, text: str) -> str | int | bool:
    """Return the value of a text; a text that is no value of that kind is returned as it is."""
    if kind is int and text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX:
        return int(text)
    return FLAGS.get(text, text) if kind is bool else text


@lru_cache(maxsize=64)
def _query_types(kind: type[Query]) -> dict[str, type]:
    """Return int, bool or str for each name of a query."""
    kinds: dict[type[Type], type] = {IntType: int, BoolType: bool}
    return {field.encode_name: kinds.get(type(_plain_type(field.type)), str) for field in _fields_of(kind)}


def _plain_type(kind: Type) -> Type:
    """Return a type without its Meta, and without None."""
    while isinstance(kind, Metadata | UnionType):
        kind = kind.type if isinstance(kind, Metadata) else kind.types[0]
    return kind


def _convert_values(kind: type[S], values: Mapping[str, Any], stated: Mapping[str, Any]) -> S:
    try:
        return msgspec.convert(dict(values), kind)
    except msgspec.ValidationError as error:
        raise CallerError(_explain_error(kind, stated, str(error))) from error


def _explain_error(kind: type[msgspec.Struct], stated: Mapping[str, Any], error: str) -> str:
    allowed = describe_fields(kind)
    field = _FIELD.search(error)
    if field is not None:
        value = repr(stated[field[1]])[:VALUE_CHARS]
        return f"{field[1]} is {value}; allowed: {allowed[field[1]]}"
    missing = next(name for name in allowed if f"`{name}`" in error)
    return f"{missing} is missing; allowed: {allowed[missing]}"


def describe_fields(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the allowed values of each field of a body or query, as its `Meta` description states them."""
    return {field.encode_name: str(meta_of(field)["description"]) for field in _fields_of(kind)}


def meta_of(field: Field) -> dict[str, Any]:
    """Return what the `Meta` of a field states besides its bounds."""
    extra = field.type.extra_json_schema if isinstance(field.type, Metadata) else None
    return dict(extra or {})


def _fields_of(kind: type[msgspec.Struct]) -> tuple[Field, ...]:
    info = type_info(kind)
    assert isinstance(info, StructType)
    return info.fields
