"""Structs to bytes and back, through Apache thrift's C codec in the compact protocol.

Decoding never trusts a length: strings are bound by the frame, containers by a count, nesting by the
codec's own depth limit. Every failure to decode is a FrameError.

The codec fills and reads any object by attribute name, so classes of this client can be wire structs. A
table, made from the IDL that thriftpy2 has loaded, maps attributes to field ids. Field ids, types and nesting
come from the IDL; attribute names can differ from it. A field that the table does not mention has its name in
the IDL. A field that the table maps to None is not encoded, and is skipped when decoding.

`string` fields become str (bytes that are not UTF-8 are replaced by U+FFFD), `binary` fields bytes; both
take either when encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

from thrift.protocol import fastbinary
from thrift.Thrift import TException

from ddmq_client.core.frames import FrameError
from ddmq_client.idl.codes import FRAME_BYTES_MAX

CONTAINER_ITEMS_MAX = 200_000


class _Transport:
    """The input of the C codec: a buffer that is never refilled."""

    __slots__ = ("cstringio_buf",)

    def __init__(self, buffer: BytesIO) -> None:
        self.cstringio_buf = buffer

    def cstringio_refill(self, partial: bytes, required: int) -> BytesIO:
        raise EOFError(f"{required} bytes wanted, {len(partial)} left")


class _Source:
    """Replaces the protocol object, from which the codec reads its limits and transport."""

    __slots__ = ("trans",)
    string_length_limit = FRAME_BYTES_MAX * 4
    container_length_limit = CONTAINER_ITEMS_MAX

    def __init__(self, transport: _Transport) -> None:
        self.trans = transport


def encode(value: Any, args: StructArgs) -> bytes:
    """Encode a struct, including its stop byte. Raises TypeError or ValueError."""
    encoded: bytes = fastbinary.encode_compact(value, args)
    return encoded


def decode(payload: bytes, at: int, args: StructArgs) -> Any:
    """Decode the struct at position `at`. Raises FrameError."""
    buffer = BytesIO(payload)
    buffer.seek(at)
    try:
        return fastbinary.decode_compact(args[0](), _Source(_Transport(buffer)), args)
    except (EOFError, TException, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise FrameError(f"answer cannot be decoded: {error!r}") from error


_BOOL, _STRING, _STRUCT, _MAP, _SET, _LIST, _BINARY = 2, 11, 12, 13, 14, 15, 18

# [class, tuple indexed by field id]: what the C codec calls type arguments of a struct.
StructArgs = list[Any]


class Specs:
    """The field tables of one IDL module. Structs that are not registered get a generated class."""

    def __init__(self) -> None:
        self._registered: dict[type, StructArgs] = {}

    def register_struct(
        self, struct: type, own_class: type | None = None, names: Mapping[str, str | None] | None = None
    ) -> StructArgs:
        """Return the type arguments for a thriftpy2 struct that is converted to and from `own_class`.

        Register inner structs before the structs that contain them, if they have a class or names of their
        own.
        """
        if struct in self._registered:
            return self._registered[struct]
        fields: dict[int, tuple[Any, ...]] = struct.thrift_spec  # type: ignore[attr-defined]
        renamed = {fid: (names or {}).get(spec[1], spec[1]) for fid, spec in fields.items()}
        renamed = {fid: name for fid, name in renamed.items() if name is not None}
        args: StructArgs = [own_class or _plain_class(struct.__name__, renamed.values()), ()]
        self._registered[struct] = args  # before the fields: a struct may contain itself
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
            return _STRUCT, self.register_struct(inner)
        if kind in (_LIST, _SET):
            return kind, (*self._element(inner), False)
        if kind == _MAP:
            return kind, (*self._element(inner[0]), *self._element(inner[1]), False)
        return kind, None

    def _element(self, element: Any) -> tuple[int, Any]:
        return self._type(*element) if isinstance(element, tuple) else self._type(element, None)


def _plain_class(name: str, attributes: Any) -> type:
    """Create a class whose attributes default to None."""
    return type(name, (), {"__doc__": f"Wire struct {name}.", **dict.fromkeys(attributes)})
