"""Hashes that may never change, the stepwise sort, names, and the keeper."""

import random
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.file_log.core import names
from backend.file_log.index import entries, sorted_table
from backend.file_log.index.attached import IndexKeeper
from backend.file_log.index.entries import IndexDamage
from backend.file_log.index.log_index import LogIndex
from tests.support.waits import until
from tests.unit.index.files_for_index import OsStorage
from tests.unit.index.logs import PretendLog, some_rows, stored_between


def test_stored_hashes_never_change() -> None:
    assert entries.key_hash("orders", b"order-1") == 0x9DC0ECFE
    assert entries.id_hash(bytes(range(16))) == 0x00000000
    assert entries.id_hash(bytes.fromhex("0123456789abcdef0011223344556677")) == 0xCCCCCCCC


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.binary(max_size=5)), max_size=30))
def test_columns_agree_with_single_hashes(rows: list[tuple[str, bytes]]) -> None:
    column = entries.key_column([row[0] for row in rows], [row[1] for row in rows], entries.Seeds())
    assert list(column) == [entries.key_hash(*row) if row[1] else 0 for row in rows]


def test_a_hash_of_zero_is_stored_as_one() -> None:
    key = bytes.fromhex("9d0ad96d")  # its CRC is 0
    assert list(entries.key_column(["t"] * 2, [key, b""], entries.Seeds(t=0))) == [1, 0]
    assert list(entries.key_column(["t"], [key], entries.Seeds(t=0))) == [1]


def test_remembered_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "TOPICS_REMEMBERED_MAX", 3)
    seeds = entries.Seeds()
    for number in range(10):
        assert seeds[f"t{number}"]
        assert len(seeds) <= 3


@given(st.lists(st.sampled_from([0, 1, 0xABCD, 0xCDAB0000, 0x01010101]), min_size=1, max_size=40), st.data())
def test_search_in_a_column_matches_complete_numbers_only(column: list[int], data: st.DataObject) -> None:
    body = array("I", [0] * len(column) + column + column + column).tobytes()
    searched = data.draw(st.sampled_from(column))
    expected = [row for row in reversed(range(len(column))) if column[row] == searched]
    assert list(entries.rows_with_hash(body, entries.KEY_COLUMN, searched)) == expected


@pytest.mark.parametrize("kind", ["spread", "one hash", "one bucket", "low", "none"])
def test_sorting_in_steps(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_table, "SORT_MAX", 64)
    monkeypatch.setattr(sorted_table, "PASS_MAX", 3_000)
    chance = random.Random(3)
    numbers = {
        "spread": [chance.getrandbits(64) for _ in range(10_000)],
        "one hash": [0xDEADBEEF << 32 | n * 100 for n in range(10_000)],
        "one bucket": [0xDEAD << 48 | chance.getrandbits(30) for _ in range(10_000)],
        "low": [chance.randrange(5) << 32 | n for n in range(10_000)],
        "none": [],
    }[kind]
    source = [numbers[start : start + 700] for start in range(0, len(numbers), 700)]
    steps = list(sorted_table.sort_ascending(lambda: source, len(numbers)))
    assert [number for step in steps for number in step] == sorted(numbers)
    assert all(len(step) <= 64 for step in steps)


def test_names() -> None:
    assert names.entries_name(1 << 30) == "00000000001073741824.entries"
    assert names.parse_index_file("00000000001073741824.sorted") == (1 << 30, ".sorted")
    for strange in ("1.entries", "00000000001073741824.entries.new", "0000000000107374182x.sorted", ""):
        assert names.parse_index_file(strange) is None


def test_the_keeper_seals_and_repairs(tmp_path: Path) -> None:
    damages: list[IndexDamage] = []
    index = LogIndex(OsStorage(), str(tmp_path), damages.append)
    index.recover_files([(0, 0)])
    log = PretendLog()
    for segment in range(3):
        if segment:
            log.roll(index)
        log.commit(index, some_rows(1_500, segment), segment)
        index.write_blocks()
    path = tmp_path / names.entries_name(log.starts[1])
    path.write_bytes(b"x" + path.read_bytes()[1:])
    keeper = IndexKeeper(
        index, log.segment_ranges, lambda segment_range: log.rows_in(*segment_range), pause_s=0
    )
    keeper.start()
    until(lambda: not (index.list_unsealed() or index.damaged))
    keeper.stop()
    assert len(damages) == 1
    assert stored_between(tmp_path, index, 0, 9) == log.positions()


def test_the_keeper_counts_failed_steps(tmp_path: Path) -> None:
    storage = OsStorage()
    index = LogIndex(storage, str(tmp_path), lambda _: None)
    index.recover_files([(0, 0)])
    log = PretendLog()
    log.commit(index, some_rows(10), 1)
    log.roll(index)
    index.write_blocks()
    keeper = IndexKeeper(
        index, log.segment_ranges, lambda segment_range: log.rows_in(*segment_range), pause_s=0
    )
    storage.fail_writes = True
    keeper.work_once()
    assert keeper.failures == 1
    storage.fail_writes = False
    keeper.work_once()
    assert index.list_unsealed() == []
