"""The two forms of an answer, which `form=` of a query selects.

Form 1 is the form of earlier releases. In form 2, every list is `{"items", "next", "total", "exact",
"missing"}`, and a value that does not exist is absent, instead of null, -1, 0 or "". The Structs of the
answers declare form 1; those of form 2 are derived from them. An answer is a plain dict, as in answers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ddmq.server.http.pace import paced
from ddmq.server.http.paging import ItemPage
from ddmq.server.http.parameters import Answer, check_names
from ddmq_common.errors import CallerError

FIRST, SECOND = 1, 2
MissingProcesses = Annotated[
    dict[str, str], Meta(description="the processes that did not answer: name to admin address")
]
_ABSENT = "absent"
Converter = Callable[[Any], Any]


def absent_if(value: Any) -> Meta:
    """Return the annotation of a field whose value is absent in form 2 if it is this value in form 1."""
    return Meta(extra={_ABSENT: value})


OptionalText = Annotated[str, absent_if("")]
OptionalTime = Annotated[int, absent_if(0)]
OptionalNumber = Annotated[int, absent_if(-1)]


class _Rule:
    """The rule by which form 2 states a field.

    `absent`: the values that are left out; `convert`: for other values.
    """

    __slots__ = ("absent", "convert")

    def __init__(self, absent: tuple[Any, ...], convert: Converter | None) -> None:
        self.absent = absent
        self.convert = convert


@cache
def second_form(kind: Any) -> Any:
    """Return the type that describes form 2 of an answer whose form 1 is described by `kind`."""
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return _convert_type(kind)
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        value = _convert_type(_without_null(field.type))
        renaming = {} if field.encode_name == field.name else {"name": field.encode_name}
        if _absent_values(field.type) or not field.required:
            fields.append((field.name, value | UnsetType, msgspec.field(default=UNSET, **renaming)))
        else:
            fields.append((field.name, value, msgspec.field(**renaming)))
    return msgspec.defstruct(
        f"{kind.__name__}2", fields, bases=(Answer,), namespace={"__doc__": kind.__doc__},
        kw_only=True, forbid_unknown_fields=True,
    )  # fmt: skip


@cache
def page_form(item: type[Answer], more: type[Answer] | None) -> Any:
    """Return the type of form 2 of a list. `more`: the Struct with its further keys, in form 1."""
    fields: list[Any] = [
        ("items", list[second_form(item)]),  # type: ignore[misc]  # a computed type
        ("exact", bool),
        ("missing", MissingProcesses),
        ("next", str | UnsetType, UNSET),
        ("total", int | UnsetType, UNSET),
    ]  # fmt: skip
    if more is not None:
        base = second_form(more)
        fields += [
            (field.name, field.type) if field.required else (field.name, field.type, field.default)
            for field in msgspec.structs.fields(base)
        ]
    return msgspec.defstruct(
        f"{(more or item).__name__}Page", fields, bases=(Answer,), kw_only=True, forbid_unknown_fields=True,
        namespace={"__doc__": f"One page of a list: `next` is the `after` of the next page. {item.__doc__}"},
    )  # fmt: skip


def to_second_form(kind: Any, answer: Any) -> Any:
    """Return an answer in form 2, without the values that do not exist. `kind` describes it in form 1."""
    convert = _converter_of(kind)
    return answer if convert is None else convert(answer)


def format_page(item: type[Answer], more: type[Answer] | None, page: ItemPage) -> dict[str, Any]:
    """Return the page of a list as an answer in form 2."""
    answer: dict[str, Any] = {"items": to_second_form(list[item], page.items)}  # type: ignore[valid-type]
    if page.next is not None:
        answer["next"] = page.next
    if page.total is not None:
        answer["total"] = page.total
    answer |= {"exact": page.exact, "missing": dict(page.missing)}
    return answer if more is None else answer | to_second_form(more, dict(page.more))


def select_fields(kind: Any, rows: Iterable[Any], text: str) -> list[dict[str, Any]]:
    """Return the rows with those fields only that `text` names, with commas between them.

    Raises CallerError for a name that `kind`, the Struct of a row, does not have.
    """
    allowed = getattr(kind, "__struct_encode_fields__", None)
    if allowed is None:
        raise CallerError("fields is not for this request: its answer has no fixed fields")
    names = [name.strip() for name in text.split(",")]
    check_names("field", names, allowed)
    return [{name: row[name] for name in names if name in row} for row in paced(rows)]


@cache
def _converter_of(kind: Any) -> Converter | None:
    """Return the function that drops the absent values of a value of this type; None if it has none."""
    kind = _without_null(kind)
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (list, dict):
        convert = _converter_of(get_args(kind)[-1])
        if convert is None:
            return None
        if get_origin(kind) is list:
            return lambda values: [convert(value) for value in paced(values)]
        return lambda values: {name: convert(value) for name, value in values.items()}
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return None
    rules = {
        field.encode_name: _Rule(_absent_values(field.type), _converter_of(field.type))
        for field in msgspec.structs.fields(kind)
    }
    rules = {name: rule for name, rule in rules.items() if rule.absent or rule.convert is not None}
    return (lambda row: _convert_row(rules, row)) if rules else None


def _convert_row(rules: Mapping[str, _Rule], row: Mapping[str, Any]) -> dict[str, Any]:
    answer = {}
    for name, value in row.items():
        rule = rules.get(name)
        if rule is None:
            answer[name] = value
        elif value not in rule.absent:
            answer[name] = value if rule.convert is None or value is None else rule.convert(value)
    return answer


def _convert_type(kind: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return Annotated[(_convert_type(arguments[0]), *kind.__metadata__)]
    if origin is list:
        return list[_convert_type(arguments[0])]  # type: ignore[misc]
    if origin is dict:
        return dict[arguments[0], _convert_type(arguments[1])]  # type: ignore[misc,valid-type]
    if origin in (Union, UnionType):
        return Union[tuple(map(_convert_type, arguments))]  # noqa: UP007  # of a computed number of types
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return second_form(kind)
    return kind


def _without_null(kind: Any) -> Any:
    """Return the type of a field without None and without UNSET."""
    if get_origin(kind) in (Union, UnionType):
        options = [each for each in get_args(kind) if each not in (type(None), UnsetType)]
        return Union[tuple(options)]  # noqa: UP007  # of a computed number of types
    if get_origin(kind) is Annotated:
        return Annotated[(_without_null(get_args(kind)[0]), *kind.__metadata__)]
    return kind


def _absent_values(kind: Any) -> tuple[Any, ...]:
    """Return the values of a field in form 1 that mean that it has none."""
    if kind is type(None):
        return (None,)
    if get_origin(kind) in (Union, UnionType):
        return tuple(value for option in get_args(kind) for value in _absent_values(option))
    if get_origin(kind) is not Annotated:
        return ()
    stated = [each.extra[_ABSENT] for each in kind.__metadata__ if _ABSENT in (each.extra or {})]
    return (*stated, *_absent_values(get_args(kind)[0]))
