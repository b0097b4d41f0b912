"""Frames, records and entries: what is packed comes back, what was changed does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.file_log.core import names
from backend.file_log.core.layout import (
    ENTRY_AT,
    ENTRY_BYTES,
    ENTRY_ROWS,
    FRAME_BYTES,
    GAP_ENTRY,
    RECORD_BYTES,
    Frame,
    Record,
    RecordKind,
    decode_system,
    encode_system,
    is_valid_entry,
    pack_entry,
    pack_frame,
    pack_record,
    salt_of,
    unpack_frame,
    unpack_record,
    version_of,
)
from backend.file_log.core.scan import Bad, is_complete, scan_frames, scan_items
from backend.records import tag_hash

U32, U64 = (1 << 32) - 1, (1 << 64) - 1
I63 = (1 << 63) - 1

frame_headers = st.builds(
    lambda *fields: Frame(*fields)._replace(durable=min(fields[3], fields[5])),
    st.integers(0, U32),
    st.integers(0, U32),
    st.integers(0, U32),
    st.integers(0, U64),
    st.integers(0, U64),
    st.integers(0, U64),
    st.integers(-I63, I63),
)
salts = st.integers(0, U32)
record_fields = st.fixed_dictionaries(
    {
        "topic": st.text(max_size=60).map(str.encode).filter(lambda name: len(name) < 128),
        "incarnation": st.integers(0, U32),
        "queue_id": st.integers(0, U32),
        "offset": st.integers(0, I63),
        "key": st.binary(max_size=100),
        "system": st.dictionaries(st.text(max_size=10), st.text(max_size=20), max_size=4).map(encode_system),
        "delivery": st.binary(max_size=2000),
        "message_id": st.binary(min_size=16, max_size=16),
        "born_ms": st.integers(-I63, I63),
        "due_ms": st.integers(-I63, I63),
        "tag_hash": st.integers(0, U32),
        "flags": st.integers(0, 255),
    }
)
positions = st.integers(0, 1 << 62)


@given(frame_headers, salts)
def test_a_frame_header_is_decoded_as_encoded(frame: Frame, salt: int) -> None:
    data = pack_frame(frame, salt)
    assert len(data) == FRAME_BYTES
    assert unpack_frame(data, frame.position, salt) == frame
    assert unpack_frame(data, frame.position ^ 1, salt) is None, "found where it does not belong"
    assert unpack_frame(data[:-1], frame.position, salt) is None
    assert unpack_frame(data, frame.position, salt ^ 1) is None, "made without the salt"
    assert salt_of(data, frame.position) == (version_of(salt), salt)


def test_a_frame_that_claims_later_bytes_as_durable_is_invalid() -> None:
    frame = Frame(1, 200, 1, 4096, 3, 4097, 1)
    assert unpack_frame(pack_frame(frame, 7), 4096, 7) is None
    assert unpack_frame(pack_frame(frame._replace(durable=4096), 7), 4096, 7) is not None


@given(frame_headers, st.integers(0, FRAME_BYTES * 8 - 1))
def test_a_frame_header_with_a_flipped_bit_is_invalid(frame: Frame, bit: int) -> None:
    data = bytearray(pack_frame(frame))
    data[bit // 8] ^= 1 << bit % 8
    assert unpack_frame(bytes(data), frame.position) is None


@given(st.sampled_from(RecordKind), positions, st.integers(-I63, I63), record_fields, salts)
def test_a_record_is_decoded_as_encoded(
    kind: RecordKind, position: int, stored_ms: int, fields: dict, salt: int
) -> None:  # type: ignore[type-arg]
    data = pack_record(kind, position, stored_ms, **fields, salt=salt)
    record = unpack_record(b"before" + data, 6, position, salt)
    assert record is not None
    assert (record.kind, record.position, record.stored_ms) == (kind, position, stored_ms)
    assert record.end == position + len(data)
    assert record.topic.encode() == fields["topic"]
    assert encode_system(record.system) == fields["system"]
    for name in ("incarnation", "queue_id", "offset", "key", "message_id", "born_ms", "due_ms", "tag_hash"):
        assert getattr(record, name) == fields[name], name
    assert record.flags == fields["flags"]
    assert data[record.meta_bytes :] == fields["delivery"]
    assert record.delivery_is(fields["delivery"])
    assert unpack_record(data, 0, position + 1, salt) is None
    assert unpack_record(data, 0, position, salt ^ 1) is None, "made without the salt"


@given(positions, record_fields, st.data())
def test_a_record_with_a_flipped_bit_is_invalid(position: int, fields: dict, data: st.DataObject) -> None:  # type: ignore[type-arg]
    packed = bytearray(pack_record(RecordKind.MESSAGE, position, 5, **fields))
    bit = data.draw(st.integers(64, len(packed) * 8 - 1))
    packed[bit // 8] ^= 1 << bit % 8
    record = unpack_record(bytes(packed), 0, position)
    assert record is None or not record.delivery_is(bytes(packed[record.meta_bytes :]))


@given(positions, record_fields, st.integers(0, 63))
def test_the_second_crc_vouches_for_magic_and_first(position: int, fields: dict, bit: int) -> None:  # type: ignore[type-arg]
    packed = bytearray(pack_record(RecordKind.MESSAGE, position, 5, **fields))
    sound = unpack_record(bytes(packed), 0, position)
    packed[bit // 8] ^= 1 << bit % 8
    healed = unpack_record(bytes(packed), 0, position)
    assert sound is not None
    assert healed is not None
    assert healed[:-1] == sound[:-1]


@given(positions, record_fields)
def test_an_entry_repeats_its_record(position: int, fields: dict) -> None:  # type: ignore[type-arg]
    data = pack_record(RecordKind.MESSAGE, position, 5, **fields)
    record = unpack_record(data, 0, position)
    assert record is not None
    entry = pack_entry(record)
    assert len(entry) == ENTRY_BYTES
    assert is_valid_entry(entry)
    assert data[ENTRY_AT:].startswith(entry[:28])
    assert ENTRY_ROWS.unpack(entry) == record[2:7]
    assert not is_valid_entry(entry[:5] + bytes([entry[5] ^ 4]) + entry[6:])


def test_a_gap_entry_is_sound_and_empty() -> None:
    assert is_valid_entry(GAP_ENTRY)
    assert ENTRY_ROWS.unpack(GAP_ENTRY) == (0, 0, 0, 0, 0)
    assert not is_valid_entry(bytes(ENTRY_BYTES)), "a hole in a file is no gap"


def test_system_properties() -> None:
    assert encode_system(None) == b""
    assert decode_system(b"") == {}
    assert decode_system(encode_system({"a": "ü", "": ""})) == {"a": "ü", "": ""}


@pytest.mark.parametrize("name", ["", "1", "x" * 20, "-" * 20, "０" * 20, "0" * 21, "0" * 20 + ".new"])
def test_other_names_are_no_segments(name: str) -> None:
    assert names.parse_segment(name) is None


def test_file_names_are_parsed_back() -> None:
    assert names.parse_segment(names.segment_name(1 << 60)) == 1 << 60
    assert names.parse_queue_file(names.queue_file_name(7, 262_144)) == (7, 262_144)
    assert names.parse_queue_file("7-262144") is None


# --- walking


def log_bytes(bodies: list[list[bytes]]) -> tuple[bytes, list[Frame], list[Record]]:
    """Frames with one record per body, from position 0 on."""
    out, frames, records = b"", [], []
    for number, group in enumerate(bodies):
        start = len(out) + FRAME_BYTES
        payload = b""
        for body in group:
            payload += pack_record(RecordKind.MESSAGE, start + len(payload), 1, topic=b"t", delivery=body)
        frame = Frame(len(group), len(payload), 1, len(out), number, len(out), 1)
        out += pack_frame(frame) + payload
        frames.append(frame)
    records = [item for item in scan_items(out, 0, 0, len(out)) if isinstance(item, Record)]
    return out, frames, records


groups = st.lists(st.lists(st.binary(max_size=80), min_size=1, max_size=4), min_size=1, max_size=5)


@given(groups, st.integers(0, 200))
def test_a_complete_log_is_scanned_without_damage(bodies: list[list[bytes]], zeros: int) -> None:
    data, frames, records = log_bytes(bodies)
    items = list(scan_items(data + bytes(zeros), 0, 0, len(data) + zeros))
    assert [item for item in items if isinstance(item, Frame)] == frames
    assert len(records) == sum(map(len, bodies))
    assert [item for item in items if isinstance(item, Bad)] == (
        [Bad(len(data), len(data) + zeros)] if zeros else []
    )
    assert list(scan_frames(data, 0, 0, len(data))) == frames
    assert all(is_complete(data, 0, frame) for frame in frames)


@given(groups, st.data())
def test_one_changed_byte_costs_one_item(bodies: list[list[bytes]], data: st.DataObject) -> None:
    intact, frames, records = log_bytes(bodies)
    at = data.draw(st.integers(0, len(intact) - 1))
    changed = bytearray(intact)
    changed[at] ^= data.draw(st.integers(1, 255))
    items = list(scan_items(bytes(changed), 0, 0, len(intact)))
    good_items = [item for item in items if not isinstance(item, Bad)]
    bad = [item for item in items if isinstance(item, Bad)]
    assert len(good_items) >= len(frames) + len(records) - 1
    assert len(bad) <= 1


@given(groups, st.integers(0, 1 << 20))
def test_a_truncated_log_has_complete_frames_up_to_its_end(bodies: list[list[bytes]], length: int) -> None:
    intact, frames, _ = log_bytes(bodies)
    end = length % len(intact)
    good_items = [item for item in scan_frames(intact[:end], 0, 0, end) if isinstance(item, Frame)]
    assert good_items == [frame for frame in frames if frame.end <= end]


def test_a_body_that_looks_like_a_frame_is_not_read_as_one() -> None:
    fake = pack_frame(Frame(1, 10, 1, 4096, 3, 1 << 40, 1))
    data, frames, _ = log_bytes([[fake], [b"after"]])
    changed = bytearray(data)
    changed[FRAME_BYTES + 20] ^= 1
    assert [
        item for item in scan_frames(bytes(changed), 0, 0, len(data)) if isinstance(item, Frame)
    ] == frames


def test_record_bytes_is_what_the_document_says() -> None:
    assert RECORD_BYTES == 104
    assert FRAME_BYTES == 56
    assert tag_hash(b"") == 0
