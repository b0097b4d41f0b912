"""Trace events on the disk, and which messages are traced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq_common.errors import DamagedError
from ddmq_common.trace.events import (
    WALL_MS_MAX,
    TraceBatch,
    TraceEvent,
    TraceKind,
    decode_batch,
    encode_batch,
)
from ddmq_common.trace.sampling import OFF, is_sampled, limit_of

moments = st.integers(0, WALL_MS_MAX)
facts = st.dictionaries(
    st.text(max_size=10),
    st.text(max_size=50)
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.lists(st.tuples(st.text(max_size=9), moments, moments), max_size=3),
    max_size=5,
)
events = st.builds(
    TraceEvent, st.integers(0, 1 << 40), st.integers(0, 99), moments, st.text(max_size=9), facts
)


@given(st.text(max_size=20), st.text(max_size=20), st.lists(events, max_size=5))
def test_a_batch_is_read_as_it_was_written(process: str, instance: str, recorded: list[TraceEvent]) -> None:
    batch = TraceBatch(process, instance, recorded)
    assert decode_batch(encode_batch(batch)) == batch


@given(st.binary(max_size=200), st.booleans())
def test_anything_else_is_damaged(body: bytes, versioned: bool) -> None:
    try:
        decode_batch(b"\x01" + body if versioned else body)
    except DamagedError:
        return
    assert versioned or body[:1] == b"\x01"


@given(st.integers(0, 300), st.integers(1, 255))
def test_a_changed_byte_raises_nothing_else(position: int, change: int) -> None:
    event = TraceEvent(1, int(TraceKind.HANDED_OUT), 5, "g", {"client": "c", "waits": [("rate", 1, 2)]})
    body = bytearray(encode_batch(TraceBatch("p", "i", [event])))
    body[position % len(body)] ^= change
    try:
        decode_batch(bytes(body))
    except DamagedError:
        pass


@pytest.mark.parametrize("at_ms", [-1, WALL_MS_MAX + 1])
def test_a_moment_that_no_calendar_has_is_damage(at_ms: int) -> None:
    with pytest.raises(DamagedError, match="does not parse"):
        decode_batch(encode_batch(TraceBatch("p", "i", [TraceEvent(1, 1, at_ms, "", {})])))


def test_a_later_version_is_named() -> None:
    with pytest.raises(DamagedError, match="version 02; known: 1"):
        decode_batch(b"\x02rest")


def test_all_one_in_so_many_or_none() -> None:
    ids = [b"prefix42" + number.to_bytes(8, "big") for number in range(1, 25_601)]
    sampled_ids = {
        one_in: {each for each in ids if is_sampled(each, limit_of(one_in))} for one_in in (1, 10, 100)
    }
    assert len(sampled_ids[1]) == len(ids)
    assert abs(len(sampled_ids[10]) - 2_560) < 100, "a tenth"
    assert abs(len(sampled_ids[100]) - 256) < 30
    assert sampled_ids[100] < sampled_ids[10], "those of a thinner sample are among those of a denser one"
    assert not any(is_sampled(each, OFF) for each in ids)
    assert limit_of(0) == OFF


def test_the_choice_never_changes() -> None:
    """Processes of different versions choose the same messages."""
    assert limit_of(1_000) == 4_294_968
    assert [n for n in range(10_000) if is_sampled(n.to_bytes(16, "big"), limit_of(1_000))] == FIRST_CHOSEN


FIRST_CHOSEN = [749, 1780, 2783, 3782, 4745, 5776, 6843, 7842, 8741, 9788]
