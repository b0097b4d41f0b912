"""Structs to bytes and back, through Apache thrift's C codec in the compact protocol.

Decoding never trusts a length: strings are bound by the frame, containers by a count, nesting by the
codec's own depth limit. Every failure to decode is a FrameError.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

from thrift.protocol import fastbinary
from thrift.Thrift import TException

from ddmq_client.core.frames import FrameError
from ddmq_client.idl.codes import FRAME_BYTES_MAX
from ddmq_client.wire.specs import StructArgs

CONTAINER_ITEMS_MAX = 200_000


class _Transport:
    """What the C codec reads from: a buffer that cannot be refilled."""

    __slots__ = ("cstringio_buf",)

    def __init__(self, buffer: BytesIO) -> None:
        self.cstringio_buf = buffer

    def cstringio_refill(self, partial: bytes, wanted: int) -> BytesIO:
        raise EOFError(f"{wanted} bytes wanted, {len(partial)} left")


class _Source:
    """Stands for the protocol object: the codec takes its limits and its transport."""

    __slots__ = ("trans",)
    string_length_limit = FRAME_BYTES_MAX * 4
    container_length_limit = CONTAINER_ITEMS_MAX

    def __init__(self, transport: _Transport) -> None:
        self.trans = transport


def encode(value: Any, args: StructArgs) -> bytes:
    """The struct's bytes, stop byte included; TypeError or ValueError for a value that does not fit."""
    encoded: bytes = fastbinary.encode_compact(value, args)
    return encoded


def decode(payload: bytes, at: int, args: StructArgs) -> Any:
    """The struct that starts at `at`; FrameError when the bytes do not hold one."""
    buffer = BytesIO(payload)
    buffer.seek(at)
    try:
        return fastbinary.decode_compact(args[0](), _Source(_Transport(buffer)), args)
    except (EOFError, TException, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise FrameError(f"answer cannot be decoded: {error!r}") from error
