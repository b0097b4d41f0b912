"""Frames come out as they went in, however the stream is cut; bad lengths are rejected at once."""

from itertools import pairwise
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq_rpc.envelope import FrameLengthError, Frames

LIMIT = 300
payloads = st.lists(st.binary(max_size=LIMIT), max_size=12)


def framed(payload: bytes) -> bytes:
    return pack(">i", len(payload)) + payload


def split(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({min(at, len(stream)) for at in cuts} | {0, len(stream)})
    return [stream[start:end] for start, end in pairwise(edges)]


def take_all(frames: Frames, data: bytes) -> list[bytes]:
    received = []
    frame = frames.feed_bytes(data)
    while frame is not None:
        received.append(frame)
        frame = frames.next_frame()
    return received


@given(payloads, st.lists(st.integers(0, 4_000), max_size=40))
def test_any_cut_gives_the_same_frames(sent: list[bytes], cuts: list[int]) -> None:
    frames = Frames(LIMIT)
    stream = b"".join(map(framed, sent))
    received: list[bytes] = []
    for chunk in split(stream, cuts):
        received += take_all(frames, chunk)
        assert frames.buffered_bytes <= len(stream)
    assert received == [framed(payload) for payload in sent]
    assert frames.buffered_bytes == 0
    assert all(type(frame) is bytes for frame in received)


@given(payloads, st.integers(-(1 << 31), (1 << 31) - 1).filter(lambda n: not 0 <= n <= LIMIT))
def test_a_bad_length_is_rejected_after_the_frames_before_it(sent: list[bytes], length: int) -> None:
    frames = Frames(LIMIT)
    frames.keep_bytes(b"".join(map(framed, sent)) + pack(">i", length))
    for payload in sent:
        assert frames.next_frame() == framed(payload)
    with pytest.raises(FrameLengthError, match=str(length)):
        frames.next_frame()


def test_a_bad_length_is_rejected_with_its_fourth_byte() -> None:
    frames = Frames(LIMIT)
    assert frames.feed_bytes(b"\x7f\xff\xff") is None
    with pytest.raises(FrameLengthError):
        frames.feed_bytes(b"\xff")
    assert frames.buffered_bytes == 4


@pytest.mark.parametrize("length", [0, 1, LIMIT])
def test_lengths_up_to_the_limit_are_taken(length: int) -> None:
    assert Frames(LIMIT).feed_bytes(framed(bytes(length))) == framed(bytes(length))


def test_a_frame_alone_in_one_piece_is_not_copied() -> None:
    data = framed(b"payload")
    assert Frames(LIMIT).feed_bytes(data) is data


def test_missing_tells_what_to_read() -> None:
    frames = Frames(LIMIT)
    frames.feed_bytes(b"\x00\x00")
    assert frames.missing_bytes() == 0  # length not known
    frames.feed_bytes(b"\x00\x64abc")
    assert frames.missing_bytes() == 97
    frames.feed_bytes(bytes(96))
    assert frames.missing_bytes() == 1
    assert frames.feed_bytes(b"\x00") is not None
    assert frames.missing_bytes() == 0
