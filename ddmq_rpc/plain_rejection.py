"""The answer to plain text at a port that requires TLS: an application exception. Pure."""

from __future__ import annotations

from ddmq_rpc.api import ErrorKind
from ddmq_rpc.codec import encode_error
from ddmq_rpc.envelope import (
    EXCEPTION,
    NAME_BYTES_MAX,
    ONEWAY,
    PREFIX_BYTES,
    Envelope,
    FrameLengthError,
    HeaderError,
    pack_length,
    read_header,
)

TEXT = "this port requires TLS and the connection is plain text; connect with TLS (tls=True in ddmq_client)"
_HEAD_BYTES_MAX = PREFIX_BYTES + 16 + NAME_BYTES_MAX  # of a message: what precedes its struct


class PlainRejection:
    """Collects the header of the first message of a connection, and builds its answer."""

    __slots__ = ("_complete", "_frame_bytes_max", "_received", "expects_no_answer")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._received = b""
        self._complete = False
        self.expects_no_answer = False  # the message is a oneway call

    def feed_bytes(self, data: bytes) -> bytes:
        """Process received bytes; return the answer when it is known, else b"". Raises FrameLengthError."""
        if self._complete:
            return b""
        self._received = received = (self._received + data)[:_HEAD_BYTES_MAX]
        if len(received) < PREFIX_BYTES:
            return b""
        length = int.from_bytes(received[:PREFIX_BYTES], "big", signed=True)
        if not 0 <= length <= self._frame_bytes_max:
            raise FrameLengthError(length, self._frame_bytes_max)
        if len(received) < min(PREFIX_BYTES + length, _HEAD_BYTES_MAX):
            return b""
        self._complete = True
        try:
            header = read_header(pack_length(len(received) - PREFIX_BYTES) + received[PREFIX_BYTES:])
        except HeaderError as error:
            wire, sequence, name = error.wire, error.sequence, b""
        else:
            if header.kind == ONEWAY:
                self.expects_no_answer = True
                return b""
            wire, sequence, name = header.wire, header.sequence, header.name
        body = encode_error(wire, ErrorKind.PROTOCOL_ERROR, TEXT)
        return Envelope(name, EXCEPTION).build_frame(wire, sequence, body)
