"""Bytes of argument and result structs, through Apache Thrift's C codec, both protocols.

One transport and one protocol object are reused for every decode: nothing here may be re-entered, and
nothing is, for the C codec calls no code of ours but `_Feed.refill`. Bounds: strings by the frame, every
container by a count, nesting by the C codec's 64 levels, and the processor time of one frame: a large
frame is fed to the codec in chunks, and between two of them the time is looked at, so that five
megabytes of tiny elements cost what an honest frame costs, not half a second of everybody's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from io import BytesIO
from typing import Any

from thrift.protocol import fastbinary

from ddmq_rpc.api import Fault, Wire
from ddmq_rpc.wire.structs import ENCODERS, Method, TypeArgs

CHUNK_BYTES = 64 << 10  # frames above are fed in chunks of this
_DECODERS = (fastbinary.decode_compact, fastbinary.decode_binary)


class DecodeError(Exception):
    """The bytes are not the struct; says why, in words for the caller."""


class _Feed:
    """What the C codec reads from: `cstringio_buf`, and `cstringio_refill` when that runs out."""

    __slots__ = ("_cpu", "_cpu_s", "_deadline", "_frame", "_next", "cstringio_buf", "cstringio_refill")

    def __init__(self, cpu_s: float, cpu: Callable[[], float]) -> None:
        self.cstringio_buf = BytesIO()
        self.cstringio_refill = self.refill
        self._cpu = cpu
        self._cpu_s = cpu_s
        self._deadline = 0.0
        self._frame = b""
        self._next = 0

    def start(self, frame: bytes, at: int) -> None:
        """Feed `frame` from byte `at` in chunks."""
        self._frame = frame
        self._next = at + CHUNK_BYTES
        self._deadline = self._cpu() + self._cpu_s
        self.cstringio_buf = BytesIO(frame[at : self._next])

    def clear(self, buffer: BytesIO) -> None:
        """Forget the frame; `buffer` serves small frames again."""
        self._frame = b""
        self._next = 0
        self.cstringio_buf = buffer

    def refill(self, rest: bytes, wanted: int) -> BytesIO:
        """A buffer that starts with `rest` and holds `wanted` bytes. Raises EOFError, DecodeError."""
        start = self._next
        end = start + max(CHUNK_BYTES, wanted - len(rest))
        if wanted > len(rest) + max(len(self._frame) - start, 0):
            raise EOFError(f"ends inside a value: {wanted} bytes announced")
        if self._cpu() > self._deadline:
            raise DecodeError(
                f"takes more than {self._cpu_s * 1000:g} ms to decode: too many small elements; "
                "send fewer of them in one request"
            )
        self._next = end
        return BytesIO(b"".join((rest, memoryview(self._frame)[start:end])))


class _Protocol:
    """The three attributes that the C codec reads."""

    __slots__ = ("container_length_limit", "string_length_limit", "trans")

    def __init__(self, feed: _Feed, strings: int, containers: int) -> None:
        self.trans = feed
        self.string_length_limit = strings
        self.container_length_limit = containers


class Codec:
    """Decodes under the bounds given; encodes. One per server, used from one thread."""

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
        """The struct that starts at byte `at` of `frame`. Raises DecodeError."""
        if len(frame) - at > CHUNK_BYTES:
            return self._decode_in_chunks(wire, frame, at, struct)
        self._set(frame)
        self._seek(at)
        try:
            return _DECODERS[wire](None, self._protocol, struct)
        except Exception as error:  # whatever the C codec says of hostile bytes
            raise DecodeError(_reason(error)) from None

    def _decode_in_chunks(self, wire: Wire, frame: bytes, at: int, struct: TypeArgs) -> Any:
        self._feed.start(frame, at)
        try:
            return _DECODERS[wire](None, self._protocol, struct)
        except DecodeError:
            raise
        except Exception as error:
            raise DecodeError(_reason(error)) from None
        finally:
            self._feed.clear(self._buffer)


def _reason(error: Exception) -> str:
    return str(error)[:200] or type(error).__name__


def encode_result(method: Method, wire: Wire, **field: Any) -> bytes:
    """A result struct: `success=value`, or the name of a declared exception. Raises TypeError, …"""
    result: bytes = ENCODERS[wire](method.result[0](**field), method.result)
    return result


class _ApplicationException:
    """Thrift's TApplicationException."""

    __slots__ = ("message", "type")

    def __init__(self, message: bytes | None = None, kind: int | None = None) -> None:
        self.message = message
        self.type = kind


APPLICATION_EXCEPTION: TypeArgs = [
    _ApplicationException,
    (None, (1, 11, "message", "BINARY", None), (2, 8, "type", None, None)),
]


def encode_fault(wire: Wire, kind: Fault, text: str) -> bytes:
    """The struct of a Thrift application exception."""
    struct = _ApplicationException(text.encode("utf-8", "replace"), int(kind))
    encoded: bytes = ENCODERS[wire](struct, APPLICATION_EXCEPTION)
    return encoded
