"""The parameters of an admin request, checked against what its route declares.

A route declares the names of its query and a msgspec Struct for its body, whose fields have `Meta`
descriptions of the allowed values. A name that the route does not declare is rejected with the nearest one
that it does: a misspelt `dry_run` must not carry out the change.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.inspect import Metadata, StructType, type_info

from ddmq_common.errors import CallerError

SIMILARITY_MIN = 0.5
VALUE_CHARS = 120  # of a rejected value in an error
_FIELD = re.compile(r" - at `\$\.(\w+)")


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The base of all declared bodies."""


B = TypeVar("B", bound=Body)


def check_names(kind: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise CallerError for the first name that is not allowed, with the nearest allowed one.

    `kind`: "query name" or "body key".
    """
    allowed = sorted(allowed)
    for name in sorted(names):
        if name not in allowed:
            close = difflib.get_close_matches(name[:VALUE_CHARS], allowed, n=1, cutoff=SIMILARITY_MIN)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            allowed_names = ", ".join(allowed) if allowed else "none"
            raise CallerError(
                f"{name[:VALUE_CHARS]!r} is no {kind} of this request{hint} (allowed: {allowed_names})"
            )


def read_body(kind: type[B], body: Mapping[str, Any]) -> B:
    """Convert a JSON object to the declared body.

    Raises CallerError with the key, its value and the allowed values.
    """
    check_names("body key", body, kind.__struct_fields__)
    try:
        return msgspec.convert(dict(body), kind)
    except msgspec.ValidationError as error:
        raise CallerError(_explain_error(kind, body, str(error))) from error


def _explain_error(kind: type[Body], body: Mapping[str, Any], error: str) -> str:
    allowed = describe_fields(kind)
    field = _FIELD.search(error)
    if field is not None:
        value = repr(body[field[1]])[:VALUE_CHARS]
        return f"{field[1]} is {value}; allowed: {allowed[field[1]]}"
    missing = next(name for name in allowed if f"`{name}`" in error)
    return f"{missing} is missing; allowed: {allowed[missing]}"


def describe_fields(kind: type[Body]) -> dict[str, str]:
    """Return the allowed values of each field of a body, as its `Meta` description states them."""
    info = type_info(kind)
    assert isinstance(info, StructType)
    texts: dict[str, str] = {}
    for field in info.fields:
        extra = field.type.extra_json_schema if isinstance(field.type, Metadata) else None
        texts[field.name] = str((extra or {})["description"])
    return texts
