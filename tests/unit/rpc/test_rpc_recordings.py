"""What real clients sent decodes whole; what real servers answered encodes to the same bytes."""

import pytest
from rpc_support import Recorded, recordings

from ddmq_rpc.api import Wire
from ddmq_rpc.client_side import decode_reply
from ddmq_rpc.codec import ENCODERS, Codec, methods
from ddmq_rpc.envelope import CALL, REPLY, Envelope, read_header

ALL = recordings()


def test_none_is_missing() -> None:
    assert len(ALL) > 100
    assert {read_header(one.request).name for one in ALL} == {
        b"sendSync", b"sendBatchSync", b"sendDelaySync",
        b"pull", b"submit", b"getConsumeStats", b"fetch", b"ack",
    }  # fmt: skip


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_requests_decode(one: Recorded) -> None:
    header = read_header(one.request)
    args = methods(one.idl, one.service)[header.name.decode()].args
    value = Codec(5_000_000, 16_384, 5.0).decode(header.wire, one.request, header.body_at, args)
    assert (header.wire, header.kind) == (Wire.COMPACT, CALL)
    encoded = ENCODERS[Wire.BINARY](value, args)
    assert Codec(5_000_000, 16_384, 5.0).decode(Wire.BINARY, encoded, 0, args) == value


@pytest.mark.parametrize("one", [one for one in ALL if one.reply], ids=lambda one: one.name)
def test_replies_encode_to_the_same_bytes(one: Recorded) -> None:
    assert one.reply is not None
    header = read_header(one.reply)
    method = methods(one.idl, one.service)[header.name.decode()]
    result = decode_reply(one.idl, one.service, one.reply).result
    body = ENCODERS[Wire.COMPACT](result, method.result)
    assert Envelope(header.name, REPLY).build_frame(Wire.COMPACT, header.sequence, body) == one.reply
