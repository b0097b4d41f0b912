"""Message headers of both protocols, against Apache's own; and what cannot be a header."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rpc_support import PRODUCER, P, send_sync
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.transport.TTransport import TMemoryBuffer

from ddmq_client.idl import producer
from ddmq_rpc.api import Wire
from ddmq_rpc.client_side import decode_reply
from ddmq_rpc.codec import constant_result
from ddmq_rpc.envelope import (
    CALL,
    REPLY,
    Envelope,
    HeaderError,
    read_header,
    sequence_bytes,
    sequence_number,
)

numbers = st.integers(0, (1 << 31) - 1)
names = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=300)


@given(names, numbers, st.sampled_from([1, 2, 3, 4]), st.sampled_from(list(Wire)))
def test_headers_are_apaches(name: str, sequence: int, kind: int, wire: Wire) -> None:
    buffer = TMemoryBuffer()
    protocol = TCompactProtocol(buffer) if wire is Wire.COMPACT else TBinaryProtocol(buffer)
    protocol.writeMessageBegin(name, kind, sequence)
    frame = Envelope(name.encode(), kind).build_frame(wire, sequence_bytes(wire, sequence), b"struct")
    assert frame[4:] == buffer.getvalue() + b"struct"
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header = read_header(frame)
    assert (header.wire, header.kind, header.name) == (wire, kind, name.encode())
    assert frame[header.body_at :] == b"struct"
    assert sequence_number(wire, header.sequence) == sequence


@pytest.mark.parametrize("wire", list(Wire))
@pytest.mark.parametrize("sequence", [0, 1, 127, 128, -1, -(1 << 31), (1 << 31) - 1])
def test_sequence_ids_come_back(wire: Wire, sequence: int) -> None:
    header = read_header(send_sync(sequence, wire))
    assert sequence_number(wire, header.sequence) == sequence


def test_sequence_ids_have_32_bits() -> None:
    with pytest.raises(ValueError, match="32 bits"):
        sequence_bytes(Wire.COMPACT, 1 << 31)


@pytest.mark.parametrize("wire", list(Wire))
def test_every_cut_inside_the_header_is_an_error(wire: Wire) -> None:
    frame = Envelope(b"sendSync", CALL).build_frame(wire, sequence_bytes(wire, 300), b"")
    assert read_header(frame).body_at == len(frame)
    for end in range(4, len(frame)):
        with pytest.raises(HeaderError):
            read_header(frame[:end])


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "frame is empty"),
        (b"\x82", "cut off"),
        (b"\x80\x01\x00", "cut off"),
        (b"GET / HTTP/1.1", "0x47"),
        (b"\x00\x00\x00\x04send\x01\x00\x00\x00\x01", "0x00"),
        (b"\x82\x22\x00\x04send", "version is 2"),
        (b"\x80\x02\x00\x01\x00\x00\x00\x04send\x00\x00\x00\x01", "0x8002"),
        (b"\x82\x21" + b"\xff" * 11 + b"\x01\x01a", "longer than 10"),
        (b"\x82\x21\x05\x81\x88\x01", "method name"),
        (b"\x82\x21\x05\xff\x08" + b"a" * 1_200, "1151 bytes"),
        (b"\x80\x01\x00\x01\xff\xff\xff\xff\x00\x00\x00\x01", "-1 bytes"),
        (b"\x80\x01\x00\x01\x7f\xff\xff\xff\x00\x00\x00\x01", "2147483647 bytes"),
    ],
)
def test_what_is_no_header(payload: bytes, says: str) -> None:
    with pytest.raises(HeaderError, match=says):
        read_header(len(payload).to_bytes(4, "big") + payload)


def test_an_error_keeps_what_the_answer_needs() -> None:
    with pytest.raises(HeaderError) as caught:
        read_header(b"\x00\x00\x00\x00\x82\x21\xac\x02\x7fshort")
    assert (caught.value.wire, caught.value.sequence) == (Wire.COMPACT, b"\xac\x02")


@pytest.mark.parametrize("wire", list(Wire))
def test_constant_results(wire: Wire) -> None:
    ready = constant_result(producer, PRODUCER, "sendSync", success=P.Result(code=15, msg="FAILED: busy"))
    envelope = Envelope(b"sendSync", REPLY)
    frame = envelope.build_frame(wire, sequence_bytes(wire, 9), ready[wire])
    assert frame == envelope.build_head(wire, sequence_bytes(wire, 9), len(ready[wire])) + ready[wire]
    reply = decode_reply(producer, PRODUCER, frame)
    assert (reply.sequence, reply.result.success.code, reply.result.success.msg) == (9, 15, b"FAILED: busy")
