"""Bytes of progress: what docs/formats-progress.md says, and nothing else is taken."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.progress.ack_map import OFFSET_END, PAGE_OFFSETS
from backend.progress.codec import decode_delta, decode_progress, encode_delta, encode_progress
from backend.progress.group_progress import GroupProgress
from backend.records import ProgressDelta, QueueRef
from ddmq_common.errors import DamagedError, NewerFormatError
from tests.examples import examples

QUEUE = QueueRef("orders", 2, 7)
HEAD = b"\x01\x01g\x06orders\x02\x07"  # version, group, topic, incarnation, queue
NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, OFFSET_END - 1))


def ranges() -> st.SearchStrategy[list[tuple[int, int]]]:
    pairs = st.tuples(NUMBERS, NUMBERS).filter(lambda pair: pair[0] != pair[1])
    return st.lists(pairs.map(lambda pair: (min(pair), max(pair))), max_size=6)


def test_a_delta_takes_the_documented_bytes() -> None:
    delta = ProgressDelta("g", QUEUE, 3, 1, ((100, 200), (90, 91)), ((5, 2),))
    assert encode_delta(delta) == (HEAD + b"\x03\x01\x00" + b"\x02\xc8\x01\x64\xdb\x01\x01" + b"\x01\x0a\x02")


def test_a_reset_takes_the_documented_bytes() -> None:
    delta = ProgressDelta("g", QUEUE, 3, 2, reset_to=0)
    assert encode_delta(delta) == HEAD + b"\x03\x02\x01\x00\x00"


def test_a_progress_takes_the_documented_bytes() -> None:
    progress = GroupProgress()
    finished = [(4, 6), (7, 8), (PAGE_OFFSETS, 3 * PAGE_OFFSETS)]
    progress.apply(ProgressDelta("g", QUEUE, 3, 0, finished, ((1, 2),)))
    expected = HEAD + b"\x03\x00\x01" + b"\x02" + b"\x00\x02\x02\x04\x02\x01\x01" + b"\x00\x00\x02"
    assert encode_progress("g", QUEUE, progress) == expected + b"\x01\x02\x02"


def test_a_page_with_many_ranges_is_a_bitmap() -> None:
    progress = GroupProgress()
    ranges = [(offset, offset + 1) for offset in range(1, PAGE_OFFSETS, 2)]
    progress.apply(ProgressDelta("g", QUEUE, 0, 0, ranges))
    data = encode_progress("g", QUEUE, progress)
    assert data == HEAD + b"\x00\x00\x01\x01\x00\x01" + b"\xaa" * (PAGE_OFFSETS // 8) + b"\x00"
    assert decode_progress(data)[2].view() == progress.view()


@given(
    st.text(max_size=5),
    st.builds(QueueRef, st.text(max_size=5), NUMBERS, NUMBERS),
    NUMBERS,
    NUMBERS,
    ranges(),
    st.lists(st.tuples(NUMBERS, st.integers(1, 50)), max_size=4),
)
def test_every_delta_comes_back(
    group: str,
    queue: QueueRef,
    epoch: int,
    generation: int,
    finished: list[tuple[int, int]],
    attempts: list[tuple[int, int]],
) -> None:
    delta = ProgressDelta(group, queue, epoch, generation, tuple(finished), tuple(attempts))
    assert decode_delta(encode_delta(delta)) == delta


@pytest.mark.parametrize(
    "delta",
    [
        ProgressDelta("g", QUEUE, 0, 0, ((5, 5),)),
        ProgressDelta("g", QUEUE, 0, 0, ((6, 5),)),
        ProgressDelta("g", QUEUE, 0, 0, ((-1, 5),)),
        ProgressDelta("g", QUEUE, 0, 0, ((0, OFFSET_END + 1),)),
        ProgressDelta("g", QUEUE, 0, 0, (), ((1, 0),)),
        ProgressDelta("g", QUEUE, 0, 0, (), ((-1, 1),)),
        ProgressDelta("g", QUEUE, -1, 0),
        ProgressDelta("g", QUEUE, 0, -1),
        ProgressDelta("g", QUEUE, 0, 1, ((1, 2),), reset_to=0),
        ProgressDelta("g", QUEUE, 0, 1, reset_to=-1),
    ],
)
def test_what_no_queue_could_take_is_not_encoded(delta: ProgressDelta) -> None:
    with pytest.raises(ValueError, match="progress of group g on orders queue 7 refused"):
        encode_delta(delta)


def _examples() -> list[bytes]:
    progress = GroupProgress()
    finished = [(4, 6), (PAGE_OFFSETS, 3 * PAGE_OFFSETS)]
    progress.apply(ProgressDelta("g", QUEUE, 3, 0, finished, ((1, 2), (2, 9))))
    delta = ProgressDelta("g", QUEUE, 3, 1, ((100, 200), (90, 91)), ((5, 2),))
    return [encode_delta(delta), encode_progress("g", QUEUE, progress)]


def _decode(kind: int, data: bytes) -> object:
    return decode_delta(data) if kind == 0 else decode_progress(data)


@pytest.mark.parametrize("kind", [0, 1])
def test_truncated_or_longer_data_is_damaged(kind: int) -> None:
    data = _examples()[kind]
    for length in range(len(data)):
        with pytest.raises(DamagedError):
            _decode(kind, data[:length])
    with pytest.raises(DamagedError, match="1 bytes follow"):
        _decode(kind, data + b"\x00")


@pytest.mark.parametrize("kind", [0, 1])
def test_another_version_is_refused(kind: int) -> None:
    with pytest.raises(NewerFormatError, match="version 2, this program knows versions up to 1"):
        _decode(kind, b"\x02" + _examples()[kind][1:])


@pytest.mark.parametrize("kind", [0, 1])
@settings(max_examples=examples(300))
@given(data=st.data())
def test_mutated_bytes_are_damaged_or_parse(kind: int, data: st.DataObject) -> None:
    mutated = bytearray(_examples()[kind])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(mutated) - 1))
        mutated[at] = data.draw(st.integers(0, 255))
    try:
        _decode(kind, bytes(mutated))
    except (DamagedError, NewerFormatError):
        pass


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (b"\x06\x01\x00\x03\x00", "pages of kind 3"),
        (b"\x06\x01\x00\x02\x01\x02\x02\x00", r"\[2, 4\), committed 5"),
        (b"\x06\x01\x00\x02\x01\x05\x02\x00", r"\[5, 7\), committed 5"),
        (b"\x01\x01\x00\x01" + bytes(1024) + b"\x00", "page 0 is empty"),
        (b"\x01\x01\x01\x00\x00\x00", "finished range"),
        (b"\x06\x00\x01\x04\x01", "attempts of offset 2"),
        (b"\x06\x00\xff\xff\xff\x7f", "entries in 0 bytes"),
        (b"\x86\x00\x00\x00", "padded"),
    ],
)
def test_impossible_progress_is_damaged(tail: bytes, reason: str) -> None:
    with pytest.raises(DamagedError, match=reason):
        decode_progress(HEAD + b"\x00\x00" + tail)
