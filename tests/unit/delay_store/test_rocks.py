"""The one module that knows RocksDB: its ranges, its errors, its closing."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import rocksdict

from ddmq_common.errors import DamagedError, StorageError
from ddmq_common.rocks.database import Rocks, RocksOptions, WriteBatch
from ddmq_common.rocks.write_capacity import UNMERGED_LAST, UNMERGED_MAX
from tests.support.waits import until


def filled(folder: Path, count: int = 3_000) -> Rocks:
    database = Rocks(folder)
    batch = WriteBatch()
    for number in range(count):
        batch.put(b"k%06d" % number, b"v%d" % number)
    batch.put(b"z", b"last")
    database.write(batch)
    return database


def test_ranges_end_at_their_bound(tmp_path: Path) -> None:
    database = filled(tmp_path / "db")
    keys = [key for chunk in database.read_chunks(b"k000100", b"k002222") for key, _ in chunk]
    assert keys == [b"k%06d" % number for number in range(100, 2222)]
    assert [key for chunk in database.read_chunks(b"k", b"l", 70) for key, _ in chunk] == first_keys(70)
    assert list(database.read_chunks(b"a", b"b")) == []
    assert list(database.read_chunks(b"zz", b"zzz")) == []
    assert database.first_key(b"k000100x", b"l") == b"k000101"
    assert database.first_key(b"l", b"z") is None
    assert database.first_key(b"zz", b"zzz") is None
    database.close()


def first_keys(count: int) -> list[bytes]:
    return [b"k%06d" % number for number in range(count)]


def test_a_batch_is_applied_in_its_order(tmp_path: Path) -> None:
    database = filled(tmp_path / "db", 10)
    batch = WriteBatch()
    batch.delete_range(b"k", b"l")
    batch.put(b"k000005", b"again")
    batch.put(b"new", b"1")
    batch.delete(b"new")
    assert len(batch) == 4
    database.write(batch)
    assert list(database.read_chunks(b"", b"z")) == [[(b"k000005", b"again")]]
    assert database.get_many([b"k000005", b"new", b"z"]) == [b"again", None, b"last"]
    assert database.get_many([]) == []
    database.close()


def test_an_open_database_cannot_be_opened_twice(tmp_path: Path) -> None:
    database = filled(tmp_path / "db", 1)
    with pytest.raises(StorageError, match="lock"):
        Rocks(tmp_path / "db")
    database.close()


def test_closing_ends_those_that_read(tmp_path: Path) -> None:
    """The folder is given back although somebody still holds an iterator."""
    database = filled(tmp_path / "db")
    reading = database.read_chunks(b"k", b"l")
    next(iter(reading))
    database.close()
    database.close()
    assert list(reading) == []
    with pytest.raises(StorageError):
        database.get(b"k")
    with pytest.raises(StorageError, match="closed"):
        database.sync()
    Rocks(tmp_path / "db").close()


def test_closing_ends_those_that_read_in_another_thread(tmp_path: Path) -> None:
    database = filled(tmp_path / "db", 20_000)
    started = threading.Event()
    errors: list[Exception] = []

    def read_for_ever() -> None:
        try:
            while True:
                for _ in database.read_chunks(b"k", b"l"):
                    started.set()
        except StorageError as error:
            errors.append(error)

    thread = threading.Thread(target=read_for_ever)
    thread.start()
    assert started.wait(30)
    database.close()
    thread.join(30)
    assert len(errors) == 1
    Rocks(tmp_path / "db").close()


def test_closing_waits_for_a_sync_in_another_thread(tmp_path: Path) -> None:
    database = filled(tmp_path / "db")
    errors: list[Exception] = []
    started = threading.Event()

    def sync_for_ever() -> None:
        while True:
            try:
                database.sync()
            except StorageError as error:
                errors.append(error)
                return
            started.set()

    thread = threading.Thread(target=sync_for_ever)
    thread.start()
    assert started.wait(30)
    database.close()
    thread.join(30)
    assert [str(error) for error in errors] == [f"the store in {tmp_path / 'db'} is closed"]


def test_closing_ends_a_compaction(tmp_path: Path) -> None:
    database = filled(tmp_path / "db", 200_000)
    started = threading.Event()

    def compact() -> None:
        started.set()
        with suppress(StorageError):  # closed before it began
            database.compact(b"", b"\xff")

    thread = threading.Thread(target=compact)
    thread.start()
    assert started.wait(30)
    database.close()
    thread.join(30)
    reopened = Rocks(tmp_path / "db")
    assert sum(map(len, reopened.read_chunks(b"k", b"l"))) == 200_000
    reopened.close()


def test_options_hold_for_a_database_that_exists(tmp_path: Path) -> None:
    """RocksDB's own log tells what it uses; the bindings would go by what the database was made with."""
    filled(tmp_path / "db", 1).close()
    Rocks(tmp_path / "db", RocksOptions(write_buffer_bytes=123_456, block_bytes=2_048)).close()
    text = (tmp_path / "db" / "LOG").read_text()
    assert "Options.write_buffer_size: 123456" in text
    assert "block_size: 2048" in text


def test_a_damaged_block_ends_a_range_with_an_error(tmp_path: Path) -> None:
    database = filled(tmp_path / "db", 20_000)
    database.compact(b"\0", b"\xff")
    database.close()
    table = next((tmp_path / "db").glob("*.sst"))
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 4
    table.write_bytes(content)
    database = Rocks(tmp_path / "db")
    read: list[bytes] = []
    with pytest.raises(DamagedError) as caught:
        read.extend(key for chunk in database.read_chunks(b"k", b"l") for key, _ in chunk)
    assert read == first_keys(len(read))
    behind = database.salvage_from(read[-1])
    assert behind is not None
    rest = [key for chunk in database.read_chunks(behind, b"l") for key, _ in chunk]
    assert rest[-1] == b"k019999"
    assert 0 < 20_000 - len(read) - len(rest) < 4_000
    assert caught.value  # with its traceback, and still the folder is given back
    database.close()
    Rocks(tmp_path / "db").close()


def stub_pressure(monkeypatch: pytest.MonkeyPatch, rocks: Rocks, *states: tuple[int, int]) -> None:
    """Buffers that wait to become tables, and failures of the background; the last answer stays."""
    answers = list(states)
    waiting = [0]

    def number(name: str) -> int:
        if name == "rocksdb.num-immutable-mem-table":
            waiting[:] = answers.pop(0) if len(answers) > 1 else answers[0]
        return waiting[0] if name == "rocksdb.num-immutable-mem-table" else waiting[1]

    monkeypatch.setattr(rocks, "read_property", number)


def test_a_write_waits_outside_for_buffers_to_become_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rocks = Rocks(tmp_path / "db", RocksOptions(write_buffers=4))
    stub_pressure(monkeypatch, rocks, (3, 0), (3, 0), (2, 0))
    rocks.write(one_key())
    assert rocks.get(b"k") == b"v"
    rocks.close()


@pytest.mark.parametrize(("waiting", "failures", "says"), [(3, 0, "too slowly"), (1, 1, "space on the disk")])
def test_a_write_is_rejected_where_rocksdb_would_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int, failures: int, says: str
) -> None:
    rocks = Rocks(tmp_path / "db", RocksOptions(write_buffers=4))
    monkeypatch.setattr("ddmq_common.rocks.write_capacity.WRITE_WAIT_S_MAX", 0.01)
    stub_pressure(monkeypatch, rocks, (waiting, failures))
    with pytest.raises(StorageError, match=says):
        rocks.write(one_key())
    assert rocks.get(b"k") is None
    rocks.close()


def one_key() -> WriteBatch:
    batch = WriteBatch()
    batch.put(b"k", b"v")
    return batch


def test_writes_that_enlarge_the_store_leave_a_buffer_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rocks = Rocks(tmp_path / "db", RocksOptions(write_buffers=4))
    capacities = []
    for waiting in range(4):
        stub_pressure(monkeypatch, rocks, (waiting, 0))
        capacities.append((rocks.has_capacity(growing=True), rocks.has_capacity(growing=False)))
    assert capacities == [(True, True), (True, True), (False, True), (False, False)]
    stub_pressure(monkeypatch, rocks, (1, 1))
    for growing in (True, False):
        with pytest.raises(StorageError, match="space on the disk"):
            rocks.has_capacity(growing)
    rocks.close()


@pytest.mark.parametrize("running", [1, 0])
def test_tables_that_are_not_merged_yet_keep_writes_out_while_they_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: int
) -> None:
    """Where nothing merges them, something has failed, and a write hears what."""
    rocks = Rocks(tmp_path / "db")
    properties = {"rocksdb.num-running-compactions": running}
    monkeypatch.setattr(rocks, "read_property", lambda name: properties.get(name, 0))
    capacities = []
    for count in range(UNMERGED_LAST + 10):
        properties["rocksdb.num-files-at-level0"] = count
        capacities.append((rocks.has_capacity(growing=True), rocks.has_capacity(growing=False)))
    assert capacities == [
        (count < UNMERGED_MAX or not running, count < UNMERGED_LAST or not running)
        for count in range(len(capacities))
    ]
    rocks.close()


def test_recovered_background_errors_reject_no_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB counts such errors, and never forgets one."""
    rocks = Rocks(tmp_path / "db", RocksOptions(write_buffers=4))
    stub_pressure(monkeypatch, rocks, (0, 2))
    assert rocks.has_capacity(growing=True)
    stub_pressure(monkeypatch, rocks, (1, 2))
    assert rocks.has_capacity(growing=True)
    rocks.write(one_key())
    stub_pressure(monkeypatch, rocks, (1, 3))
    with pytest.raises(StorageError, match="space on the disk"):
        rocks.has_capacity(growing=True)
    rocks.close()


@pytest.fixture
def unmerged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Rocks, Any]:
    """A database of many tables that nothing merges, and RocksDB's own handle of it."""
    databases: list[Any] = []
    opened = rocksdict.Rdict
    monkeypatch.setattr(rocksdict, "Rdict", lambda *args: databases.append(opened(*args)) or databases[-1])
    rocks, raw = Rocks(tmp_path / "db"), databases[0]
    raw.set_options({"disable_auto_compactions": "true"})
    for _ in range(2 * UNMERGED_MAX):
        rocks.write(random_bytes(1 << 19))  # so much that merging them takes a while
        raw.flush()
    return rocks, raw


def test_many_tables_slow_no_write_down(unmerged: tuple[Rocks, Any]) -> None:
    """RocksDB's own way to do that is to sleep in it."""
    rocks, raw = unmerged
    raw.set_options({"disable_auto_compactions": "false"})
    assert rocks.read_property("rocksdb.actual-delayed-write-rate") == 0
    until(lambda: rocks.has_capacity(growing=True), "the tables are merged")
    rocks.close()


def test_a_write_reports_a_table_that_cannot_be_merged(unmerged: tuple[Rocks, Any]) -> None:
    rocks, raw = unmerged
    table = min(rocks.folder.glob("*.sst"))
    with table.open("r+b") as file:
        file.seek(1 << 18)
        file.write(bytes(1 << 12))
    raw.set_options({"disable_auto_compactions": "false"})
    until(lambda: rocks.read_property("rocksdb.background-errors"), "merging has failed")
    until(lambda: rocks.has_capacity(growing=True), "it says so")
    with pytest.raises(DamagedError):
        rocks.write(one_key())
    with suppress(DamagedError):
        rocks.close()


def random_bytes(count: int) -> WriteBatch:
    """Under keys that lie among all others, or their table would be moved instead of merged."""
    batch = WriteBatch()
    for _ in range(32):
        batch.put(os.urandom(8), os.urandom(count // 32))
    return batch
