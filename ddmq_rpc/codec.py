"""The structs of an IDL as bytes and back, through Apache Thrift's C codec, in both protocols.

Each IDL struct becomes a msgspec class, once: slots, keyword construction, absent fields None or the IDL's
default, `required` fields demanded by the constructor, which is how the decoder enforces them. Strings
decode as bytes and encode from str or bytes. A specification is what the C codec walks: a tuple indexed
by field id of (id, type, name, type arguments, unused); a struct's type arguments are [class, tuple].

One transport and one protocol object are reused for every decode: nothing here may be re-entered, and
nothing is, because the C codec calls no function of this module but `_Feed.refill_buffer`. Bounds: strings
by the frame, every container by a count, nesting by the C codec's 64 levels, and the processor time of one
frame. A large frame is fed to the codec in chunks, and the time is checked between two of them. So five
megabytes of tiny elements cost what an ordinary frame costs, and not half a second of the whole server.

Answers that are always the same are encoded once. `ready = constant_result(producer, "ProducerService",
"sendSync", success=OK)` at start, then `call.reply_encoded(ready[call.wire])` for each call: only the header
with its sequence id is built.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from io import BytesIO
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import msgspec
from thrift.protocol import fastbinary
from thriftpy2.thrift import TType

from ddmq_rpc.api import ErrorKind, Wire

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
    """One method of a service, with the codec types of its arguments and its result."""

    name: str
    args: TypeArgs
    result: TypeArgs
    oneway: bool


class Structs(SimpleNamespace):
    """The slotted classes of a module's structs by IDL name: `structs(producer).Result(code=0,
    msg="OK")`."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the IDL has no struct {name!r}; it has: {', '.join(sorted(vars(self)))}")


def type_args(kind: type) -> TypeArgs:
    """Return the codec's type arguments for a class from `structs`. Raises KeyError for any other class."""
    return _TYPE_ARGS[kind]


@lru_cache(maxsize=64)
def structs(idl: ModuleType) -> Structs:
    """Return the classes of all structs and exceptions in a thriftpy2 module; the same ones in each call."""
    meta = idl.__thrift_meta__
    kinds = [*meta["structs"], *meta["exceptions"]]
    types = {kind: _declare_struct(kind) for kind in kinds}
    for kind, args in types.items():
        args[1] = _codec_spec(kind.thrift_spec, types)
        _TYPE_ARGS[args[0]] = args
    return Structs(**{kind.__name__: args[0] for kind, args in types.items()})


@lru_cache(maxsize=64)
def methods(idl: ModuleType, service: str) -> dict[str, Method]:
    """Return all methods of a service by name."""
    return dict(_describe_methods(idl, service))


def _describe_methods(idl: ModuleType, service: str) -> Iterator[tuple[str, Method]]:
    classes = structs(idl)
    meta = idl.__thrift_meta__
    types = {
        kind: _TYPE_ARGS[getattr(classes, kind.__name__)] for kind in [*meta["structs"], *meta["exceptions"]]
    }
    described = getattr(idl, service)
    for name in described.thrift_services:
        arguments, results = getattr(described, f"{name}_args"), getattr(described, f"{name}_result")
        args = [_argument_class(name, arguments.thrift_spec), _codec_spec(arguments.thrift_spec, types)]
        fields = [(entry[1], Any, None) for entry in results.thrift_spec.values()]
        result = [msgspec.defstruct(f"{name}_result", fields), _codec_spec(results.thrift_spec, types)]
        yield name, Method(name, args, result, bool(results.oneway))


def _argument_class(method: str, spec: dict[int, tuple[Any, ...]]) -> type:
    """Create the class of a method's arguments.

    Struct and container arguments are required. Absent scalars are zero, as old clients expect.
    """
    fields: list[Any] = []
    for entry in spec.values():
        kind, name = entry[0], entry[1]
        if kind == TType.STRUCT or kind in _CONTAINERS:
            fields.append((name, Any))
        else:
            fields.append((name, Any, _SCALAR_ZERO.get(kind)))
    return msgspec.defstruct(f"{method}_args", fields, gc=False, kw_only=True)


def _declare_struct(kind: Any) -> TypeArgs:
    """Return [class, empty specification], to be filled in later, because structs may refer to each
    other."""
    defaults = dict(kind.default_spec)
    fields: list[Any] = []
    for entry in kind.thrift_spec.values():
        name, required = entry[1], entry[-1]
        fields.append((name, Any) if required else (name, Any, defaults[name]))
    return [msgspec.defstruct(kind.__name__, fields, gc=False, kw_only=True), ()]


def _codec_spec(fields: dict[int, tuple[Any, ...]], types: dict[Any, TypeArgs]) -> tuple[Any, ...]:
    spec: list[Any] = [None] * (max(fields, default=-1) + 1)
    for field_id, entry in fields.items():
        nested = entry[2] if len(entry) > 3 else None
        kind, args = _codec_type(entry[0], nested, types)
        spec[field_id] = (field_id, kind, entry[1], args, None)
    return tuple(spec)


def _codec_type(kind: int, nested: Any, types: dict[Any, TypeArgs]) -> tuple[int, Any]:
    """Convert thriftpy2's type to (type, type arguments) as the C codec reads them."""
    if kind in (TType.STRING, TType.BINARY):
        return TType.STRING, "BINARY"
    if kind == TType.STRUCT:
        return kind, types[nested]
    if kind in (TType.LIST, TType.SET):
        return kind, (*_element_type(nested, types), False)
    if kind == TType.MAP:
        return kind, (*_element_type(nested[0], types), *_element_type(nested[1], types), False)
    return kind, None


def _element_type(described: Any, types: dict[Any, TypeArgs]) -> tuple[int, Any]:
    """Convert an element type: thriftpy2 writes a bare type, or (type, its own nested type)."""
    if isinstance(described, tuple):
        return _codec_type(described[0], described[1], types)
    return _codec_type(described, None, types)


CHUNK_BYTES = 64 << 10  # frames above are fed in chunks of this
_DECODERS = (fastbinary.decode_compact, fastbinary.decode_binary)


class DecodeError(Exception):
    """The bytes cannot be decoded as the struct. The text says why."""


class _Feed:
    """The input buffer of the C codec, which reads `cstringio_buf` and calls `cstringio_refill` at its
    end."""

    __slots__ = ("_cpu", "_cpu_s", "_deadline", "_frame", "_next", "cstringio_buf", "cstringio_refill")

    def __init__(self, cpu_s: float, cpu: Callable[[], float]) -> None:
        self.cstringio_buf = BytesIO()
        self.cstringio_refill = self.refill_buffer
        self._cpu = cpu
        self._cpu_s = cpu_s
        self._deadline = 0.0
        self._frame = b""
        self._next = 0

    def start(self, frame: bytes, at: int) -> None:
        """Start to feed `frame` from byte `at` in chunks."""
        self._frame = frame
        self._next = at + CHUNK_BYTES
        self._deadline = self._cpu() + self._cpu_s
        self.cstringio_buf = BytesIO(frame[at : self._next])

    def clear(self, buffer: BytesIO) -> None:
        """Release the frame, and use `buffer` for small frames again."""
        self._frame = b""
        self._next = 0
        self.cstringio_buf = buffer

    def refill_buffer(self, rest: bytes, required: int) -> BytesIO:
        """Return a buffer that starts with `rest` and has `required` bytes. Raises EOFError, DecodeError."""
        start = self._next
        end = start + max(CHUNK_BYTES, required - len(rest))
        if required > len(rest) + max(len(self._frame) - start, 0):
            raise EOFError(f"ends inside a value: {required} bytes announced")
        if self._cpu() > self._deadline:
            raise DecodeError(
                f"takes more than {self._cpu_s * 1000:g} ms to decode: too many small elements; "
                "send fewer of them in one request"
            )
        self._next = end
        return BytesIO(b"".join((rest, memoryview(self._frame)[start:end])))


class _Protocol:
    """The object with the three attributes that the C codec reads from a protocol."""

    __slots__ = ("container_length_limit", "string_length_limit", "trans")

    def __init__(self, feed: _Feed, strings: int, containers: int) -> None:
        self.trans = feed
        self.string_length_limit = strings
        self.container_length_limit = containers


class Codec:
    """Decodes and encodes structs within the given bounds. One per server, used from one thread."""

    __slots__ = ("_buffer", "_feed", "_protocol", "_seek", "_set")

    def __init__(
        self,
        frame_bytes_max: int,
        container_elements_max: int,
        decode_cpu_s: float,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._feed = _Feed(decode_cpu_s, cpu)
        self._protocol = _Protocol(self._feed, frame_bytes_max, container_elements_max)
        self._buffer = self._feed.cstringio_buf
        self._set = self._buffer.__init__  # type: ignore[misc]  # on an exact bytes: shares it, copies nothing
        self._seek = self._buffer.seek

    def decode(self, wire: Wire, frame: bytes, at: int, struct: TypeArgs) -> Any:
        """Decode the struct that starts at byte `at` of `frame`. Raises DecodeError."""
        if len(frame) - at > CHUNK_BYTES:
            return self._decode_in_chunks(wire, frame, at, struct)
        self._set(frame)
        self._seek(at)
        try:
            return _DECODERS[wire](None, self._protocol, struct)
        except Exception as error:  # whatever the C codec says of hostile bytes
            raise DecodeError(_error_text(error)) from None

    def _decode_in_chunks(self, wire: Wire, frame: bytes, at: int, struct: TypeArgs) -> Any:
        self._feed.start(frame, at)
        try:
            return _DECODERS[wire](None, self._protocol, struct)
        except DecodeError:
            raise
        except Exception as error:
            raise DecodeError(_error_text(error)) from None
        finally:
            self._feed.clear(self._buffer)


def _error_text(error: Exception) -> str:
    return str(error)[:200] or type(error).__name__


def encode_result(method: Method, wire: Wire, **field: Any) -> bytes:
    """Encode a result struct: `success=value`, or a declared exception by its name.

    Raises TypeError for a field that the method does not have.
    """
    result: bytes = ENCODERS[wire](method.result[0](**field), method.result)
    return result


class _ApplicationException:
    """The struct that Thrift calls TApplicationException."""

    __slots__ = ("message", "type")

    def __init__(self, message: bytes | None = None, kind: int | None = None) -> None:
        self.message = message
        self.type = kind


APPLICATION_EXCEPTION: TypeArgs = [
    _ApplicationException,
    (None, (1, 11, "message", "BINARY", None), (2, 8, "type", None, None)),
]


def encode_error(wire: Wire, kind: ErrorKind, text: str) -> bytes:
    """Encode the struct of a Thrift application exception."""
    struct = _ApplicationException(text.encode("utf-8", "replace"), int(kind))
    encoded: bytes = ENCODERS[wire](struct, APPLICATION_EXCEPTION)
    return encoded


class Encoded(NamedTuple):
    """A result struct encoded in both protocols; index it with `call.wire`."""

    compact: bytes
    binary: bytes


def constant_result(idl: ModuleType, service: str, method: str, **field: Any) -> Encoded:
    """Encode `success=value`, or a declared exception by its name, in both protocols.

    Raises KeyError for an unknown method.
    """
    described = methods(idl, service)[method]
    return Encoded(
        encode_result(described, Wire.COMPACT, **field), encode_result(described, Wire.BINARY, **field)
    )
