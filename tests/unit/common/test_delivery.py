"""Delivery bytes are the consumer's compact Message without its stop byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer

from ddmq_common import delivery
from ddmq_common.delivery import Content
from ddmq_common.errors import DamagedError

contents = st.builds(
    Content,
    st.binary(max_size=300),
    st.binary(max_size=40_000),
    st.binary(max_size=300),
    st.dictionaries(st.binary(min_size=1, max_size=20), st.binary(max_size=300), max_size=20),
)


def apache(data: bytes) -> dict[int, object]:
    """The struct as Apache's pure Python compact protocol reads it."""
    protocol = TCompactProtocol(TMemoryBuffer(data))
    fields: dict[int, object] = {}
    protocol.readStructBegin()
    while True:
        _, kind, field = protocol.readFieldBegin()
        if kind == TType.STOP:
            return fields
        if kind == TType.STRING:
            fields[field] = protocol.readBinary()
        elif kind == TType.I64:
            fields[field] = protocol.readI64()
        else:
            _, _, count = protocol.readMapBegin()
            fields[field] = {protocol.readBinary(): protocol.readBinary() for _ in range(count)}
            protocol.readMapEnd()
        protocol.readFieldEnd()


@given(contents, st.integers(0, 2**62))
def test_an_independent_codec_reads_deliveries(content: Content, offset: int) -> None:
    encoded = delivery.encode(content.key, content.value, content.tag, dict(content.properties))
    expected: dict[int, object] = {2: content.value, 4: offset}
    expected |= {1: content.key} if content.key else {}
    expected |= {3: content.tag} if content.tag else {}
    expected |= {5: dict(content.properties)} if content.properties else {}
    assert apache(encoded + delivery.encode_tail(offset)) == expected


@given(contents)
def test_decoding_reverses_encoding(content: Content) -> None:
    encoded = delivery.encode(content.key, content.value, content.tag, content.properties)
    assert delivery.decode(encoded) == content


@given(contents, st.integers(0, 200), st.integers(0, 255))
def test_changed_bytes_give_a_content_or_an_error_never_a_crash(
    content: Content, at: int, value: int
) -> None:
    encoded = bytearray(delivery.encode(content.key, content.value, content.tag, content.properties))
    encoded[at % len(encoded)] = value
    try:
        decoded = delivery.decode(bytes(encoded))
    except DamagedError:
        return
    assert len(decoded.value) <= len(encoded)


@pytest.mark.parametrize(("number", "wire"), [(0, "00"), (-1, "01"), (1, "02"), (-64, "7f"), (64, "8001")])
def test_zigzag(number: int, wire: str) -> None:
    assert delivery.zigzag(number).hex() == wire


@given(
    st.binary(max_size=20_000), st.binary(max_size=300), st.dictionaries(st.binary(min_size=1), st.binary())
)
def test_a_keyless_delivery_is_the_same_from_encoded_fields(
    value: bytes, tag: bytes, properties: dict[bytes, bytes]
) -> None:
    properties[b"one"] = b"more"
    keyless = delivery.encode_keyless(value, tag, delivery.encode_properties(properties))
    assert keyless == delivery.encode(b"", value, tag, properties)
