"""Frames, heads, addresses, placement and splitting of the client, against models."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thriftpy2.protocol import compact
from thriftpy2.protocol.compact import TCompactProtocol
from thriftpy2.transport import TMemoryBuffer

from ddmq_client import OptionError, OutgoingMessage
from ddmq_client.core import frames
from ddmq_client.core.frames import FrameBuffer, FrameError
from ddmq_client.core.nodes import ProxyAddress, parse_addresses
from ddmq_client.core.pipeline import split_batches
from ddmq_client.core.selectors import ANY, Placement, hash_of, make_placer

FIXED = settings(deadline=None, derandomize=True)


@FIXED
@given(st.integers(1, 2**31 - 1), st.sampled_from(["sendSync", "pull", "m" * 200]))
def test_a_head_is_read_by_another_codec(sequence_id: int, method: str) -> None:
    head = frames.call_head(method.encode(), sequence_id)
    assert TCompactProtocol(TMemoryBuffer(head)).read_message_begin() == (method, 1, sequence_id)


@FIXED
@given(st.integers(-(2**63), 2**63 - 1))
def test_zigzag_is_read_by_another_codec(value: int) -> None:
    assert compact.from_zig_zag(compact.read_varint(TMemoryBuffer(frames.encode_zigzag(value)))) == value


@FIXED
@given(st.lists(st.binary(max_size=300), max_size=8), st.data())
def test_frames_are_complete_however_the_bytes_are_split(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frames.build_frame([payload]) for payload in payloads)
    buffer, received, at = FrameBuffer(1000), [], 0
    while at < len(stream):
        step = data.draw(st.integers(1, 100))
        payload = buffer.feed_bytes(stream[at : at + step])
        at += step
        while payload is not None:
            received.append(payload)
            payload = buffer.feed_bytes(b"")
    assert received == payloads
    assert len(buffer) == 0


@pytest.mark.parametrize("length", [b"\x00\x00\x03\xe9", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00"])
def test_a_long_or_negative_frame_is_refused_from_its_length_alone(length: bytes) -> None:
    with pytest.raises(FrameError, match="at most 1000"):
        FrameBuffer(1000).feed_bytes(length)


def test_reply_heads() -> None:
    answer = frames.call_head(b"pull", 300, frames.REPLY) + b"rest"
    assert frames.body_of_reply(answer, b"pull", 300) == len(answer) - 4
    assert frames.body_of_reply(answer, b"pull", 301) is None
    head = frames.reply_head(answer)
    assert (head.kind, head.sequence_id, head.body_at) == (frames.REPLY, 300, len(answer) - 4)


@FIXED
@given(st.binary(max_size=40))
def test_any_bytes_are_a_head_or_a_frame_error(payload: bytes) -> None:
    try:
        head = frames.reply_head(b"\x82" + payload)
    except FrameError:
        return
    assert head.kind in (frames.REPLY, frames.EXCEPTION)
    assert head.body_at <= len(payload) + 1


def test_addresses() -> None:
    addresses = parse_addresses("a:1, b ,[::1]:7,a:1,::1", 9613)
    assert addresses == (
        ProxyAddress("a", 1),
        ProxyAddress("b", 9613),
        ProxyAddress("::1", 7),
        ProxyAddress("::1", 9613),
    )
    assert str(addresses[2]) == "[::1]:7"
    assert parse_addresses(["x:2"], 1) == (ProxyAddress("x", 2),)


@pytest.mark.parametrize("text", ["", " , ", "a:0", "a:65536", "a:b", ":5", "[::1]:x"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(OptionError):
        parse_addresses(text, 9613)


def test_placement() -> None:
    message = OutgoingMessage("t", b"b", key="k")
    keyed = OutgoingMessage("t", b"b", key="k", shard_key="user-7")
    fixed = OutgoingMessage("t", b"b", shard_key=5, queue=3)
    assert make_placer("hash")(message) == ANY
    assert make_placer("hash")(keyed) == Placement(-1, hash_of("user-7")) == make_placer("key")(keyed)
    assert make_placer("key")(message) == Placement(-1, hash_of("k"))
    assert make_placer("random")(keyed) == ANY
    assert make_placer(lambda m: len(m.topic))(keyed) == Placement(1, 0)
    assert make_placer(lambda m: None)(keyed) == ANY
    for selector in ("hash", "key", "random"):
        assert make_placer(selector)(fixed) == Placement(3, 0)  # type: ignore[arg-type]
    assert make_placer(lambda m: 9)(fixed) == Placement(3, 0)


def test_hashes_are_stable_and_whole_numbers_stay() -> None:
    assert hash_of("user-7") == hash_of(b"user-7") == 2537939745
    assert hash_of(-(2**63)) == -(2**63)
    with pytest.raises(OptionError, match="64-bit"):
        hash_of(2**63)
    with pytest.raises(OptionError, match="queue -1"):
        make_placer(lambda m: -1)(OutgoingMessage("t", b"b"))
    with pytest.raises(OptionError, match="hash, key, random"):
        make_placer("nearest")  # type: ignore[arg-type]


@FIXED
@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 100), st.integers(1, 7))
def test_batches_cover_all_in_order_within_the_bounds(sizes: list[int], bytes_max: int, most: int) -> None:
    batches = list(split_batches(sizes, bytes_max, most))
    assert [at for batch in batches for at in batch] == list(range(len(sizes)))
    for batch in batches:
        assert 1 <= len(batch) <= most
        assert len(batch) == 1 or sum(sizes[at] for at in batch) <= bytes_max
    for before, after in pairwise(batches):  # and no batch is cut early
        total = sum(sizes[at] for at in before) + sizes[after.start]
        assert len(before) == most or total > bytes_max
