"""The other end of a call: for tests, probes and benchmarks. No sockets here.

`encode_call` returns a complete frame; `decode_reply` decodes one. The client library has its own codec.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from ddmq_client.idl.codes import FRAME_BYTES_MAX
from ddmq_rpc.api import Wire
from ddmq_rpc.codec import APPLICATION_EXCEPTION, ENCODERS, Codec, methods
from ddmq_rpc.envelope import CALL, EXCEPTION, Envelope, read_header, sequence_bytes, sequence_number

ELEMENTS_MAX = 1 << 20


class ReplyError(Exception):
    """The server answered with a Thrift application exception."""

    def __init__(self, kind: int, text: str) -> None:
        super().__init__(f"application exception {kind}: {text}")
        self.kind = kind
        self.text = text


class DecodedReply(NamedTuple):
    """The decoded answer of a server to an RPC call.

    `result` has `success` and the method's declared exceptions; absent ones are None.
    """

    wire: Wire
    name: str
    sequence: int
    result: Any


def encode_call(
    idl: ModuleType,
    service: str,
    method: str,
    wire: Wire = Wire.COMPACT,
    sequence: int = 0,
    **arguments: Any,
) -> bytes:
    """Encode a frame that calls `method`.

    Raises KeyError for an unknown method, TypeError for wrong arguments.
    """
    args = methods(idl, service)[method].args
    body = ENCODERS[wire](args[0](**arguments), args)
    return Envelope(method.encode(), CALL).build_frame(wire, sequence_bytes(wire, sequence), body)


def decode_reply(idl: ModuleType, service: str, frame: bytes) -> DecodedReply:
    """Decode an answer's frame (with its prefix). Raises ReplyError, HeaderError, DecodeError."""
    header = read_header(frame)
    codec = Codec(max(FRAME_BYTES_MAX, len(frame)), ELEMENTS_MAX, 10.0)
    if header.kind == EXCEPTION:
        error = codec.decode(header.wire, frame, header.body_at, APPLICATION_EXCEPTION)
        raise ReplyError(error.type, (error.message or b"").decode("utf-8", "replace"))
    name = header.name.decode()
    result = codec.decode(header.wire, frame, header.body_at, methods(idl, service)[name].result)
    return DecodedReply(header.wire, name, sequence_number(header.wire, header.sequence), result)
