"""Choosing consume-queue entries by tag hash: the same as looking at each, also where entries are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.file_log.consume_queue import HUB_ENTRIES, are_all_valid, search_entries, select_entries
from backend.file_log.core.layout import (
    ENTRY_BYTES,
    ENTRY_ROWS,
    GAP_ENTRY,
    pack_entry,
    pack_record,
    unpack_record,
)
from backend.port import ReadCall
from backend.records import QueueRef, tag_hash
from tests.examples import examples
from tests.support.waits import done
from tests.unit.file_log.log_rig import LogRig, record

QUEUE = QueueRef("t", 1, 0)
HASHES = st.sampled_from([0, 1, 7, 7 + 256, 7 + 512, 0x01020304, 0xFFFFFFFF])


def entry(tag_hash: int, offset: int = 0) -> bytes:
    record = unpack_record(pack_record(1, offset, 0, tag_hash=tag_hash, offset=offset), 0, offset)
    assert record is not None
    return pack_entry(record)


def build_call(tags: set[int] | None, count_max: int = 100, offset: int = 10) -> ReadCall:
    return ReadCall(QUEUE, offset, count_max, 1 << 20, None if tags is None else frozenset(tags))


@settings(max_examples=examples(200))
@given(hashes=st.lists(HASHES, max_size=30), tags=st.sets(HASHES, max_size=3), count_max=st.integers(1, 6))
def test_selected_entries_equal_those_selected_one_by_one(
    hashes: list[int], tags: set[int], count_max: int
) -> None:
    entries = [entry(tag, index) for index, tag in enumerate(hashes)]
    picked = select_entries(build_call(tags, count_max), b"".join(entries))
    indexes = [index for index, tag in enumerate(hashes) if tag in tags]
    assert list(picked.offsets) == [10 + index for index in indexes[:count_max]]
    assert picked.entries == b"".join(entries[index] for index in indexes[:count_max])
    more = len(indexes) > count_max
    assert picked.after == 10 + (indexes[count_max] if more else len(hashes))


def test_without_tags_all_are_picked() -> None:
    picked = select_entries(build_call(None), entry(1) + entry(2))
    assert (list(picked.offsets), picked.after, len(picked.entries)) == ([10, 11], 12, 2 * ENTRY_BYTES)


@pytest.mark.parametrize("byte", range(ENTRY_BYTES))
def test_an_entry_with_any_flipped_bit_is_always_picked(byte: int) -> None:
    """Its tag says nothing: only the record can tell."""
    for bit in range(8):
        entries = bytearray(b"".join(entry(5, offset) for offset in range(6)))
        entries[3 * ENTRY_BYTES + byte] ^= 1 << bit
        assert not are_all_valid(bytes(entries))
        assert list(select_entries(build_call({99}), bytes(entries)).offsets) == [13]


def test_an_entry_that_the_file_lost_is_picked_and_a_gap_is_not() -> None:
    entries = entry(5) + bytes(ENTRY_BYTES) + GAP_ENTRY + entry(5)
    assert list(select_entries(build_call({99}), entries).offsets) == [11]


def test_one_crc_speaks_for_a_run_of_any_content() -> None:
    for count in (0, 1, 2, 100):
        assert are_all_valid(b"".join(entry(offset * 77 % 1009, offset) for offset in range(count)))
    two = entry(1, 1) + entry(2, 2)
    for byte in range(len(two)):
        assert not are_all_valid(two[:byte] + bytes([two[byte] ^ 0x40]) + two[byte + 1 :])


class Files:
    """Entries of one queue in memory; counts how many were read."""

    def __init__(self, entries: bytes) -> None:
        self.entries = entries
        self.longest = 0

    def read(self, ref: QueueRef, offset: int, count: int) -> bytes:
        self.longest = max(self.longest, count)
        return self.entries[offset * ENTRY_BYTES : (offset + count) * ENTRY_BYTES]


@pytest.mark.interpreted
def test_a_search_continues_in_chunks_until_an_entry_matches() -> None:
    count = 3 * HUB_ENTRIES
    files = Files(entry(5) * (count - 1) + entry(6))
    selected = search_entries(build_call({6}, offset=0), files, count)  # type: ignore[arg-type]
    assert (list(selected.offsets), selected.after) == ([count - 1], count)
    assert ENTRY_ROWS.unpack(selected.entries)[2] == 6
    assert files.longest == HUB_ENTRIES
    nothing = search_entries(build_call({7}, offset=0), files, count - 5)  # type: ignore[arg-type]
    assert (list(nothing.offsets), nothing.after) == ([], count - 5)
    short = search_entries(build_call({7}, offset=0), files, 2 * count)  # type: ignore[arg-type]
    assert (list(short.offsets), short.after) == ([], count)


def test_a_record_whose_entry_lost_its_tag_is_still_read(tmp_path: Path) -> None:
    """In the files, as a disk may do it: the entry is looked up again by its record, and repaired."""
    rig = LogRig(tmp_path)
    ref = rig.make("t")
    records = [record(b"%d" % at, "t", tags=b"red" if at == 20 else b"blue") for at in range(40)]
    done(rig.log.append(records, rig.soon))
    rig.checkpoint()
    rig.log.close()
    (path,) = (tmp_path / "consumequeue").rglob("*-*")
    data = bytearray(path.read_bytes())
    data[20 * ENTRY_BYTES + 12] ^= 0xFF
    path.write_bytes(data)
    rig.open()
    for _ in range(2):
        batch = done(rig.log.read(ref, 0, 100, 1 << 20, tags=frozenset([tag_hash(b"red")])))
        assert (list(batch.offsets), batch.next_offset) == ([20], 40)
    batch = done(rig.log.read(ref, 0, 100, 1 << 20, tags=frozenset([tag_hash(b"never")])))
    assert (list(batch.offsets), batch.next_offset) == ([], 40)
    rig.log.close()
