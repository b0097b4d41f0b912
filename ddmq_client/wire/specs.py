"""Makes classes and field tables for Apache thrift's C codec out of the IDL that thriftpy2 has loaded.

The C codec fills and reads any object by attribute name, so our own classes stand directly for wire structs:
a table says which attribute holds which field id. Field ids, types and nesting come from the IDL; only
the attribute names are ours. A name that the table does not mention keeps the IDL's; one that it maps to
None is left out, and skipped when it comes.

`string` fields become str (bytes that are not UTF-8 are replaced by U+FFFD), `binary` fields bytes; both
take either when encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BOOL, _STRING, _STRUCT, _MAP, _SET, _LIST, _BINARY = 2, 11, 12, 13, 14, 15, 18

# [class, tuple indexed by field id]: what the C codec calls type arguments of a struct.
StructArgs = list[Any]


class Specs:
    """Field tables for one IDL module. Structs not registered get a plain class of their own."""

    def __init__(self) -> None:
        self._known: dict[type, StructArgs] = {}

    def register(
        self, struct: type, ours: type | None = None, names: Mapping[str, str | None] | None = None
    ) -> StructArgs:
        """The type arguments for a thriftpy2 struct, read into and written from `ours`.

        Register inner structs before the ones that hold them, where they have a class or names of ours.
        """
        if struct in self._known:
            return self._known[struct]
        fields: dict[int, tuple[Any, ...]] = struct.thrift_spec  # type: ignore[attr-defined]
        renamed = {fid: (names or {}).get(spec[1], spec[1]) for fid, spec in fields.items()}
        renamed = {fid: name for fid, name in renamed.items() if name is not None}
        args: StructArgs = [ours or _plain_class(struct.__name__, renamed.values()), ()]
        self._known[struct] = args  # before the fields: a struct may hold itself
        table: list[tuple[Any, ...] | None] = [None] * (max(fields, default=-1) + 1)
        for fid, name in renamed.items():
            spec = fields[fid]
            kind, inner = self._type(spec[0], spec[2] if len(spec) > 3 else None)
            table[fid] = (fid, kind, name, inner, None)
        args[1] = tuple(table)
        return args

    def _type(self, kind: int, inner: Any) -> tuple[int, Any]:
        if kind == _BINARY:
            return _STRING, "BINARY"
        if kind == _STRING:
            return _STRING, "UTF8"
        if kind == _STRUCT:
            return _STRUCT, self.register(inner)
        if kind in (_LIST, _SET):
            return kind, (*self._element(inner), False)
        if kind == _MAP:
            return kind, (*self._element(inner[0]), *self._element(inner[1]), False)
        return kind, None

    def _element(self, element: Any) -> tuple[int, Any]:
        return self._type(*element) if isinstance(element, tuple) else self._type(element, None)


def _plain_class(name: str, attributes: Any) -> type:
    """A class whose attributes default to None."""
    return type(name, (), {"__doc__": f"Wire struct {name}.", **dict.fromkeys(attributes)})
