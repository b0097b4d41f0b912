"""Slotted classes and C-codec specifications, derived from a thriftpy2 module once.

Each IDL struct becomes a msgspec class: slots, keyword construction, absent fields None or the IDL's
default, `required` fields demanded by the constructor, which is how the decoder enforces them. Strings
decode as bytes and encode from str or bytes. A specification is what the C codec walks: a tuple indexed
by field id of (id, type, name, type arguments, unused); a struct's type arguments are [class, tuple].
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import msgspec
from thrift.protocol import fastbinary
from thriftpy2.thrift import TType

TypeArgs = list[Any]
ENCODERS = (fastbinary.encode_compact, fastbinary.encode_binary)

_CONTAINERS = (TType.LIST, TType.SET, TType.MAP)
_SCALAR_ZERO: dict[int, Any] = {
    TType.BOOL: False,
    TType.BYTE: 0,
    TType.I16: 0,
    TType.I32: 0,
    TType.I64: 0,
    TType.DOUBLE: 0.0,
}
_TYPE_ARGS: dict[type, TypeArgs] = {}


class Method(NamedTuple):
    """One method of a service, ready for the codec."""

    name: str
    args: TypeArgs
    result: TypeArgs
    oneway: bool


class Structs(SimpleNamespace):
    """Slotted classes by the name the IDL gives them: `structs(producer).Result(code=0, msg="OK")`."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the IDL has no struct {name!r}; it has: {', '.join(sorted(vars(self)))}")


def type_args(kind: type) -> TypeArgs:
    """The codec's type arguments of one of our classes; KeyError for any other."""
    return _TYPE_ARGS[kind]


@lru_cache(maxsize=64)
def structs(idl: ModuleType) -> Structs:
    """The classes of every struct and exception in a thriftpy2 module; the same ones each time."""
    meta = idl.__thrift_meta__
    kinds = [*meta["structs"], *meta["exceptions"]]
    made = {kind: _declare(kind) for kind in kinds}
    for kind, args in made.items():
        args[1] = _spec(kind.thrift_spec, made)
        _TYPE_ARGS[args[0]] = args
    return Structs(**{kind.__name__: args[0] for kind, args in made.items()})


@lru_cache(maxsize=64)
def methods(idl: ModuleType, service: str) -> dict[str, Method]:
    """Every method of a service, by name."""
    return dict(_methods(idl, service))


def _methods(idl: ModuleType, service: str) -> Iterator[tuple[str, Method]]:
    ours = structs(idl)
    meta = idl.__thrift_meta__
    made = {
        kind: _TYPE_ARGS[getattr(ours, kind.__name__)] for kind in [*meta["structs"], *meta["exceptions"]]
    }
    described = getattr(idl, service)
    for name in described.thrift_services:
        given, returned = getattr(described, f"{name}_args"), getattr(described, f"{name}_result")
        args = [_argument_class(name, given.thrift_spec), _spec(given.thrift_spec, made)]
        fields = [(entry[1], Any, None) for entry in returned.thrift_spec.values()]
        result = [msgspec.defstruct(f"{name}_result", fields), _spec(returned.thrift_spec, made)]
        yield name, Method(name, args, result, bool(returned.oneway))


def _argument_class(method: str, spec: dict[int, tuple[Any, ...]]) -> type:
    """Struct and container arguments are demanded; absent scalars are zero, as old clients mean them."""
    fields: list[Any] = []
    for entry in spec.values():
        kind, name = entry[0], entry[1]
        if kind == TType.STRUCT or kind in _CONTAINERS:
            fields.append((name, Any))
        else:
            fields.append((name, Any, _SCALAR_ZERO.get(kind)))
    return msgspec.defstruct(f"{method}_args", fields, gc=False, kw_only=True)


def _declare(kind: Any) -> TypeArgs:
    """[class, specification to be filled in]: structs may refer to each other, and to themselves."""
    defaults = dict(kind.default_spec)
    fields: list[Any] = []
    for entry in kind.thrift_spec.values():
        name, required = entry[1], entry[-1]
        fields.append((name, Any) if required else (name, Any, defaults[name]))
    return [msgspec.defstruct(kind.__name__, fields, gc=False, kw_only=True), ()]


def _spec(fields: dict[int, tuple[Any, ...]], made: dict[Any, TypeArgs]) -> tuple[Any, ...]:
    spec: list[Any] = [None] * (max(fields, default=-1) + 1)
    for field_id, entry in fields.items():
        nested = entry[2] if len(entry) > 3 else None
        kind, args = _type(entry[0], nested, made)
        spec[field_id] = (field_id, kind, entry[1], args, None)
    return tuple(spec)


def _type(kind: int, nested: Any, made: dict[Any, TypeArgs]) -> tuple[int, Any]:
    """(type, type arguments) as the C codec wants them, from thriftpy2's."""
    if kind in (TType.STRING, TType.BINARY):
        return TType.STRING, "BINARY"
    if kind == TType.STRUCT:
        return kind, made[nested]
    if kind in (TType.LIST, TType.SET):
        return kind, (*_element(nested, made), False)
    if kind == TType.MAP:
        return kind, (*_element(nested[0], made), *_element(nested[1], made), False)
    return kind, None


def _element(described: Any, made: dict[Any, TypeArgs]) -> tuple[int, Any]:
    """An element type: thriftpy2 writes a bare type, or (type, its own nested type)."""
    if isinstance(described, tuple):
        return _type(described[0], described[1], made)
    return _type(described, None, made)
