"""Copies of a shard: taken over, cloned, fenced, swept, restored; none is ever taken for more than it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddmq_common.errors import CallerError, ConfigError, FencedError, StorageError
from ddmq_common.rocks.database import Rocks, WriteBatch
from delay_service.store.copies import MAKING, CopyLock, copies_of, copy_name, new_folder
from delay_service.store.opening import check_store_folder, open_store, restore
from delay_service.store.port import DueKey, IdKind, IdState, Pending, Scan, StoreChanges
from delay_service.store.rocks_store import RocksStore

FOREVER = 1 << 50
ROOT = Path(__file__).parents[3]
OWNER = """
import sys
from pathlib import Path
from tests.unit.delay_store.test_store_copies import add
from delay_service.store.opening import open_store
from delay_service.store.port import Scan
store = open_store(Path(sys.argv[1]), 0, int(sys.argv[2]))
add(store, 0, 100)
store.flush()
add(store, 100, 50)
print("ready", flush=True)
for line in sys.stdin:
    add(store, 1000, 500)
    store.flush()
    print(len(store.scan(Scan(None, 0, 1 << 50, 10_000))), store.folder.name, flush=True)
"""


def add(store: RocksStore, first: int, count: int) -> None:
    messages = [
        Pending(number, number, 0, "t", number.to_bytes(16, "big"), "{}", b"m" * 16, 1, 0, b"", b"body")
        for number in range(first, first + count)
    ]
    ids: dict[bytes, IdState | None] = {
        one.uuid: IdState(IdKind.PENDING, one.due_ms, one.offset) for one in messages
    }
    store.write(StoreChanges(added=messages, ids=ids))


def pending(store: RocksStore) -> list[DueKey]:
    return [message.key for message in store.scan(Scan(None, 0, FOREVER, 100_000))]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def start_owner(folder: Path, epoch: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder), str(epoch)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("before", [0, 1_795_746_712_474_000], ids=["file log", "kafka"])
def test_the_next_owner_takes_the_copy_over(tmp_path: Path, before: int) -> None:
    """`before`: all epochs. Those of Kafka begin with the time, in microseconds."""
    first = open_store(tmp_path, 0, before + 3)
    add(first, 0, 10)
    first.close()
    second = open_store(tmp_path, 0, before + 7)
    assert names(tmp_path) == [copy_name(0, before + 7)]
    assert len(pending(second)) == 10
    second.close()
    reopened = open_store(tmp_path, 0, before + 7)
    assert len(pending(reopened)) == 10
    reopened.close()


@pytest.mark.slow
def test_a_stopped_owner_keeps_its_copy_and_changes_only_that(tmp_path: Path) -> None:
    stopped = start_owner(tmp_path, 3)
    try:
        os.kill(stopped.pid, signal.SIGSTOP)
        owner = open_store(tmp_path, 0, 4)
        assert names(tmp_path) == [copy_name(0, 3), copy_name(0, 4)]
        assert pending(owner) == [(number, number) for number in range(150)]
        owner.write(StoreChanges(removed=owner.due(FOREVER, 100, FOREVER)))
        os.kill(stopped.pid, signal.SIGCONT)
        output, _ = stopped.communicate("go on\n", timeout=60)
        assert output.split() == ["650", copy_name(0, 3)]
        assert len(pending(owner)) == 50
        owner.tidy()
        assert names(tmp_path) == [copy_name(0, 4)]
        owner.close()
    finally:
        stopped.kill()
        stopped.communicate()


@pytest.mark.slow
def test_the_next_owner_uses_the_copy_of_a_killed_one(tmp_path: Path) -> None:
    killed = start_owner(tmp_path, 3)
    killed.kill()
    killed.communicate()
    owner = open_store(tmp_path, 0, 4)
    assert names(tmp_path) == [copy_name(0, 4)]
    assert len(pending(owner)) == 150
    owner.close()


def test_an_older_epoch_is_rejected(tmp_path: Path) -> None:
    open_store(tmp_path, 0, 9).close()
    with pytest.raises(FencedError, match="epoch 9"):
        open_store(tmp_path, 0, 8)


def test_the_same_epoch_cannot_be_open_twice(tmp_path: Path) -> None:
    store = open_store(tmp_path, 0, 9)
    with pytest.raises(CallerError, match="open already"):
        open_store(tmp_path, 0, 9)
    store.close()


def test_shards_do_not_meet(tmp_path: Path) -> None:
    one, eleven = open_store(tmp_path, 1, 5), open_store(tmp_path, 11, 2)
    add(one, 0, 5)
    assert pending(eleven) == []
    one.close()
    eleven.close()


@pytest.mark.parametrize("is_locked", [False, True])
def test_an_unfinished_copy_is_no_store(tmp_path: Path, is_locked: bool) -> None:
    first = open_store(tmp_path, 0, 3)
    add(first, 0, 10)
    first.close()
    making, lock = new_folder(tmp_path / copy_name(0, 5))
    (making / "CURRENT").write_text("MANIFEST-000001\n")
    if not is_locked:
        lock.release()
    store = open_store(tmp_path, 0, 6)
    assert len(pending(store)) == 10
    assert names(tmp_path) == sorted([copy_name(0, 6)] + [copy_name(0, 5) + MAKING] * is_locked)
    store.close()
    lock.release()


def test_a_lock_moves_with_its_folder(tmp_path: Path) -> None:
    making, lock = new_folder(tmp_path / "copy")
    making.rename(tmp_path / "copy")
    assert CopyLock.try_take(tmp_path / "copy") is None
    assert CopyLock.try_take(tmp_path / "gone") is None
    lock.release()
    lock.release()
    second_lock = CopyLock.try_take(tmp_path / "copy")
    assert second_lock is not None
    second_lock.release()


def test_a_newer_schema_is_rejected_and_kept_intact(tmp_path: Path) -> None:
    open_store(tmp_path, 0, 1).close()
    database = Rocks(copies_of(tmp_path, 0)[0].path)
    batch = WriteBatch()
    batch.put(b"m.schema", b"2")
    database.write(batch)
    database.close()
    with pytest.raises(StorageError, match="schema 2, this program knows up to 1"):
        open_store(tmp_path, 0, 2)
    assert names(tmp_path) == [copy_name(0, 2)]


def test_a_folder_of_another_shard_is_rejected(tmp_path: Path) -> None:
    open_store(tmp_path, 0, 1).close()
    (tmp_path / copy_name(0, 1)).rename(tmp_path / copy_name(4, 1))
    with pytest.raises(StorageError, match="holds shard 0, not 4"):
        open_store(tmp_path, 4, 2)


def test_a_checkpoint_is_the_same_store_somewhere_else(tmp_path: Path) -> None:
    source = open_store(tmp_path / "source", 0, 4)
    add(source, 0, 1000)
    source.write(StoreChanges(removed=source.due(FOREVER, 300, FOREVER), meta={"ingested": b"7"}))
    source.checkpoint(tmp_path / "backup")
    add(source, 5000, 10)
    restore(tmp_path / "backup", tmp_path / "elsewhere", 0)
    restored = open_store(tmp_path / "elsewhere", 0, 1)
    assert pending(restored) == [(number, number) for number in range(300, 1000)]
    assert dict(restored.counts()) == {"t": 700}
    assert restored.meta("ingested") == b"7"
    assert len(pending(source)) == 710
    with pytest.raises(CallerError, match="has a store of shard 0 already"):
        restore(tmp_path / "backup", tmp_path / "elsewhere", 0)
    with pytest.raises(StorageError):
        source.checkpoint(tmp_path / "backup")
    source.close()
    restored.close()


def test_no_checkpoint_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(CallerError, match="no file CURRENT"):
        restore(tmp_path / "nothing", tmp_path / "delay", 0)


def test_stores_in_another_folder_are_rejected_while_the_first_exist(tmp_path: Path) -> None:
    default_folder, other, third, folder_file = (
        tmp_path / name for name in ("delay", "other", "third", "delay-stores")
    )
    check_store_folder(default_folder, default_folder, folder_file)
    open_store(default_folder, 0, 1).close()
    check_store_folder(default_folder, default_folder, folder_file)
    with pytest.raises(ConfigError, match=f"are in {default_folder}, and {other} has none.* runs$"):
        check_store_folder(other, default_folder, folder_file)
    default_folder.rename(other)
    check_store_folder(other, default_folder, folder_file)
    for folder in (default_folder, third):
        with pytest.raises(
            ConfigError, match=f"are in {other}, and {folder} has none.* delete {folder_file}"
        ):
            check_store_folder(folder, default_folder, folder_file)
    default_folder.mkdir()
    check_store_folder(
        default_folder / ".." / "other", default_folder, folder_file
    )  # the same in other words
    default_folder.rmdir()
    other.rename(tmp_path / "put away")
    check_store_folder(third, default_folder, folder_file)
    check_store_folder(default_folder, default_folder, folder_file)
    assert not folder_file.exists()


def test_of_two_folders_with_stores_the_configured_one_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory of a release that did not note where they are, with stores of before left behind."""
    default_folder, other, folder_file = (tmp_path / name for name in ("delay", "other", "delay-stores"))
    for folder in (default_folder, other):
        open_store(folder, 0, 1).close()
    check_store_folder(other, default_folder, folder_file)
    assert caplog.messages == ["delay stores in two folders"]
    assert folder_file.read_text() == str(other)
    check_store_folder(other, default_folder, folder_file)
    assert len(caplog.messages) == 1, "from now on it is known"
    check_store_folder(default_folder, default_folder, folder_file)
    assert not folder_file.exists()


def test_folders_without_a_store_block_no_start(tmp_path: Path) -> None:
    default_folder, other, folder_file = (tmp_path / name for name in ("delay", "other", "delay-stores"))
    (default_folder / "lost+found").mkdir(parents=True)
    (default_folder / "0-000000000001-000.damaged").mkdir()
    check_store_folder(other, default_folder, folder_file)
    assert folder_file.read_text() == str(other)
