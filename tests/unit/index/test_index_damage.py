"""Single bit flips in every region of both files: reported, never served, repaired from the log."""

from pathlib import Path

import pytest

from backend.file_log.core.names import entries_name, sorted_name
from backend.file_log.index import entries, sorted_table
from backend.file_log.index.entries import IndexDamage
from backend.file_log.index.log_index import LogIndex
from tests.examples import some_of
from tests.unit.index.files_for_index import OsStorage
from tests.unit.index.logs import PretendLog, run, some_rows, stored_between

COMMITS, ROWS = 5, 1_100  # a block a commit
BLOCK = entries.HEADER_BYTES + ROWS * entries.ROW_BYTES


class Damaged:
    """One full segment, sealed, with a bit flipped on demand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = PretendLog()
        self.damages: list[IndexDamage] = []
        self.index = LogIndex(OsStorage(), str(folder), self.damages.append)
        self.index.recover_files([(0, 0)])
        for commit in range(COMMITS):
            self.log.commit(self.index, some_rows(ROWS, commit, keys=3), commit)
        self.log.roll(self.index)
        self.index.write_blocks()
        run(self.index.seal_steps(self.log.segment_ranges()[0]))

    def flip(self, name: str, bit: int) -> None:
        path = self.folder / name
        data = bytearray(path.read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)

    def answers(self) -> tuple[list[int], list[int], list[int]]:
        row = self.log.rows[ROWS * 2 + 5]
        return (
            list(self.index.find_key("topic-1", b"key-1", 1 << 20)),
            list(self.index.find_id(row.message_id, 9)),
            stored_between(self.folder, self.index, 0, 99),
        )

    def repair(self) -> None:
        segment_range = self.log.segment_ranges()[0]
        run(self.index.repair_steps(segment_range, lambda: self.log.rows_in(*segment_range)))


@pytest.fixture
def sealed(tmp_path: Path) -> Damaged:
    return Damaged(tmp_path)


def bits_of(region_start: int, size: int) -> list[int]:
    """First, last and some bits between."""
    return [8 * region_start, *range(8 * region_start + 13, 8 * (region_start + size), 8 * size // 7 + 1)]


@pytest.mark.parametrize(
    "bit", some_of([*range(0, 8 * entries.HEADER_BYTES, 11), 8 * entries.HEADER_BYTES - 1])
)
def test_flip_in_a_block_header(sealed: Damaged, bit: int) -> None:
    check_entries(sealed, 8 * 2 * BLOCK + bit)


@pytest.mark.parametrize("bit", some_of(bits_of(entries.HEADER_BYTES, ROWS * entries.ROW_BYTES)))
def test_flip_in_a_block_body(sealed: Damaged, bit: int) -> None:
    check_entries(sealed, 8 * 2 * BLOCK + bit)


def check_entries(sealed: Damaged, bit: int) -> None:
    """Without the table, exactly the damaged block's rows are missing; with it, hashes still find them."""
    keyed, by_id, between = sealed.answers()
    sealed.flip(entries_name(0), bit)
    assert sealed.answers()[:2] == (keyed, by_id)
    (sealed.folder / sorted_name(0)).unlink()
    lost = range(sealed.log.rows[2 * ROWS].position, sealed.log.rows[3 * ROWS].position)
    assert sealed.answers() == (
        [p for p in keyed if p not in lost],
        [],
        [p for p in between if p not in lost],
    )
    assert {(damage.file, damage.offset) for damage in sealed.damages} == {(entries_name(0), 2 * BLOCK)}
    assert sealed.index.damaged == {0}
    sealed.repair()
    assert sealed.answers() == (keyed, by_id, between)
    assert sealed.index.damaged == set()


@pytest.mark.parametrize(
    "bit", some_of([*range(0, 8 * sorted_table.HEADER_BYTES, 11), 8 * sorted_table.HEADER_BYTES - 1])
)
def test_flip_in_the_table_header(sealed: Damaged, bit: int) -> None:
    check_table(sealed, bit)


@pytest.mark.parametrize("bit", some_of(bits_of(sorted_table.HEADER_BYTES, sorted_table.PAGE_BYTES)))
def test_flip_in_a_table_page(sealed: Damaged, bit: int) -> None:
    pages = (sealed.folder / sorted_name(0)).stat().st_size // sorted_table.PAGE_BYTES
    for page in range(pages):  # one of them is on the way of the lookups
        sealed.flip(sorted_name(0), 8 * page * sorted_table.PAGE_BYTES + bit)
    check_table(sealed, None)


def test_a_truncated_table(sealed: Damaged) -> None:
    path = sealed.folder / sorted_name(0)
    path.write_bytes(path.read_bytes()[:-1])
    check_table(sealed, None)


def check_table(sealed: Damaged, bit: int | None) -> None:
    """The entries answer instead; the table is made again."""
    if bit is not None:
        sealed.flip(sorted_name(0), bit)
    keyed, by_id, between = sealed.answers()
    row = sealed.log.rows[ROWS * 2 + 5]
    assert keyed == sealed.log.by_key("topic-1", b"key-1")
    assert by_id == [row.position]
    assert between == sealed.log.positions()
    assert {damage.file for damage in sealed.damages} == {sorted_name(0)}
    assert sealed.index.damaged == {0}
    sealed.damages.clear()
    sealed.repair()
    assert sealed.answers() == (keyed, by_id, between)
    assert sealed.damages == []


def test_a_page_of_another_segment_or_position_is_rejected(sealed: Damaged) -> None:
    path = sealed.folder / sorted_name(0)
    data = bytearray(path.read_bytes())
    first, second = sorted_table.HEADER_BYTES, sorted_table.HEADER_BYTES + sorted_table.PAGE_BYTES
    data[first:second], data[second : second + sorted_table.PAGE_BYTES] = (
        data[second : second + sorted_table.PAGE_BYTES],
        data[first:second],
    )
    path.write_bytes(data)
    for row in sealed.log.rows[::50]:
        assert list(sealed.index.find_id(row.message_id, 9)) == [row.position]
    assert sealed.index.damaged == {0}
