"""What is done to a delay store while its storage fails, and what must be true afterwards.

Each scene is a life of a process: `act` runs there, tells what is durable, and may be cut short at any call;
`check` looks at the folder that is left, without faults.
"""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from ddmq_common.errors import DdmqError, StorageError
from delay_service.store.copies import DAMAGED, MARK_FILE, copies_of, make_folder
from delay_service.store.opening import open_store, restore
from delay_service.store.port import DelayStore, DueKey, Pending, Scan, StoreChanges
from delay_service.store.rocks_store import RocksStore
from delay_service.store.salvage import StoreDamage
from tests.crash.delay_store.store_images import SHARD, SMALL, Image, lost_ids
from tests.crash.delay_store.store_load import FOREVER, Load, assert_same, model_of, written
from tests.crash.storage_calls import give_in

SEED = 20261122
BATCHES = 16
LATER = 100  # an epoch that is newer than all in the scenes


class Reported(NamedTuple):
    """By the process: `flushed` batches are durable; `backups` that were made hold so many. `refused`: how it
    was told of the fault, in words. `bug`: what should not have been raised."""

    flushed: int
    backups: dict[str, int]
    refused: list[str]
    bug: str
    completed: bool


class Reporter:
    """The process's side of the line."""

    def __init__(self, line: Connection) -> None:
        self._line = line

    def __call__(self, what: str, value: object) -> None:
        self._line.send((what, value))


def read_reports(line: Connection) -> Reported:
    """All that a process has told."""
    flushed, backups, refused, bug, completed = 0, {}, [], "", False
    try:
        while line.poll():
            what, value = line.recv()
            if what == "flushed":
                flushed = value
            elif what == "backup":
                backups[value[0]] = value[1]
            elif what == "refused":
                refused.append(value)
            elif what == "bug":
                bug = value
            else:
                completed = True
    except EOFError:
        pass
    return Reported(flushed, backups, refused, bug, completed)


def live(name: str, folder: Path, call_at: str, line: Connection) -> None:
    """The process: the scene, with its storage watched."""
    report = Reporter(line)
    give_in(call_at)
    try:
        SCENES[name].act(folder, report)
    except DdmqError as error:
        report("refused", f"{type(error).__name__}: {error}")
    except BaseException:
        report("bug", traceback.format_exc())
    report("ended", None)


# --- at work: open, write, flush, tidy, back up, close, open again


def _work(folder: Path, report: Reporter) -> None:
    load = Load(SEED)
    for epoch in (1, 2):
        store = open_store(folder / "delay", SHARD, epoch, SMALL)
        try:
            _write(store, load, report, epoch * BATCHES)
            if epoch == 1:
                store.checkpoint(folder / "backup")
                report("backup", ("backup", load.number))
                store.tidy()
        except StorageError:
            _refuses(store)
            raise
        finally:
            store.close()


def _write(store: DelayStore, load: Load, report: Reporter, until: int) -> None:
    while load.number < until:
        for _ in range(load.number % 3 + 1):
            store.write(load.next())
        store.flush()
        report("flushed", load.number)


def _refuses(store: DelayStore) -> None:
    """After a failed write nothing more is taken; after another failure a write may fail or not."""
    try:
        store.flush()
    except StorageError:
        for call in (lambda: store.write(StoreChanges()), store.flush):
            try:
                call()
            except StorageError:
                continue
            raise AssertionError("a store that failed to flush went on") from None


def _check_work(folder: Path, reported: Reported) -> None:
    store = open_store(folder / "delay", SHARD, LATER, SMALL)
    if _salvage_of(store) is not None:
        _check_salvaged(store, reported)
    else:
        number = written(store)
        assert number >= reported.flushed, f"{reported.flushed} batches were durable, {number} are there"
        assert_same(store, model_of(SEED, number))
        _goes_on(store, number)
    store.close()
    for name, count in reported.backups.items():
        restore(folder / name, folder / "restored", SHARD)
        store = open_store(folder / "restored", SHARD, LATER, SMALL)
        assert written(store) == count, f"{name} was made of {count} batches and has {written(store)}"
        assert_same(store, model_of(SEED, count))
        store.close()


def _salvage_of(store: RocksStore) -> StoreDamage | None:
    """What this opening salvaged; None: nothing was damaged, or only the end of the log: it was left out."""
    damage = store.damage
    return None if damage is None or damage.log_truncated else damage


def _check_salvaged(store: RocksStore, reported: Reported) -> None:
    """Power loss may leave zeros at the end of the list of tables: everything is there, and is looked at
    again."""
    assert written(store) == 0, "orders are to be taken in again"
    messages = _all(store)
    numbers = range(reported.flushed, max(reported.flushed, 4 * BATCHES) + 1)
    assert any(messages == _all(model_of(SEED, number)) for number in numbers), "messages are missing"


def _goes_on(store: RocksStore, number: int) -> None:
    load = Load(SEED)
    while load.number < number:
        load.next()
    store.write(load.next())
    store.flush()
    assert_same(store, load.model)


# --- many writes between two flushes, over several files of the write-ahead log


def _rush(folder: Path, report: Reporter) -> None:
    load = Load(SEED)
    store = open_store(folder / "delay", SHARD, 1, SMALL)
    try:
        while load.number < 40:
            store.write(load.next())
            if load.number % 20 == 0:
                store.flush()
                report("flushed", load.number)
    finally:
        store.close()


# --- a stopped owner still has the copy: it is cloned


def _clone(folder: Path, report: Reporter) -> None:
    load = Load(SEED)
    old = open_store(folder / "delay", SHARD, 1, SMALL)
    try:
        _write(old, load, report, 9)
        new = open_store(folder / "delay", SHARD, 2, SMALL)
        try:
            _write(new, load, report, 20)
            new.tidy()
        finally:
            new.close()
    finally:
        old.close()


# --- a copy that is not to be trusted is salvaged


def _prepare_image(folder: Path) -> None:
    image = Image(folder / "delay", SEED, 12, 15, 18)
    (image.copy / MARK_FILE).write_text("a test says so")


def _salvage(folder: Path, report: Reporter) -> None:
    open_store(folder / "delay", SHARD, 2, SMALL).close()
    report("flushed", 18)


def _check_salvage(folder: Path, reported: Reported) -> None:
    store = open_store(folder / "delay", SHARD, LATER, SMALL)
    assert written(store) == 0, "orders are to be taken in again"
    assert _all(store) == _all(model_of(SEED, 18))
    assert dict(store.counts()) == dict(model_of(SEED, 18).counts())
    store.close()
    damaged_copies = [path for path in (folder / "delay").iterdir() if path.name.endswith(DAMAGED)]
    assert len(damaged_copies) == 1 + _is_last_write_partial(store), (
        f"each damaged copy is kept once, and there is {damaged_copies}"
    )


def _is_last_write_partial(store: RocksStore) -> bool:
    """Whether power was lost while the database wrote its list of tables: it is salvaged then."""
    damage = _salvage_of(store)
    return damage is not None and "MANIFEST" in damage.reason


def _all(store: DelayStore) -> list[Pending]:
    return store.scan(Scan(None, 0, FOREVER, 1 << 30))


# --- the write-ahead log has damage in it: its end is left out


def _prepare_damaged_log(folder: Path) -> None:
    image = Image(folder / "delay", SEED, 6, 12, 18)
    log = image.newest("*.log")
    content = bytearray(log.read_bytes())
    content[image.synced[log.name] // 2] ^= 8
    log.write_bytes(content)


def _truncate(folder: Path, report: Reporter) -> None:
    open_store(folder / "delay", SHARD, 2, SMALL).close()


def _check_truncated(folder: Path, reported: Reported) -> None:
    store = open_store(folder / "delay", SHARD, LATER, SMALL)
    if (damage := _salvage_of(store)) is not None:
        _check_damaged_twice(store, damage)
        return
    number = written(store)
    assert 6 <= number < 12, number
    assert_same(store, model_of(SEED, number))
    store.close()
    damaged_copies = sorted((folder / "delay").glob("*/damaged-log-*"))
    assert damaged_copies, "the damaged log is kept"
    assert len(damaged_copies) <= 3, damaged_copies


def _check_damaged_twice(store: RocksStore, damage: StoreDamage) -> None:
    """A power loss tore the list of tables while the end of the log was left out: everything readable is
    there, what is not is listed, and all orders are to be taken in again."""
    assert written(store) == 0
    lost = {DueKey(due_ms, offset) for _, due_ms, offset in lost_ids(damage.lost_file)}
    at_each = [{one.key for one in _all(model_of(SEED, number))} for number in range(6, 19)]
    messages = {one.key for one in _all(store)}
    assert messages <= set.union(*at_each)
    assert set.intersection(*at_each) <= messages | lost
    damaged_copies = [path for path in store.folder.parent.iterdir() if path.name.endswith(DAMAGED)]
    assert damaged_copies, "the damaged copy is kept"
    store.close()


# --- a backup is put back


def _prepare_backup(folder: Path) -> None:
    load = Load(SEED)
    store = open_store(folder / "other", SHARD, 1, SMALL)
    while load.number < 14:
        store.write(load.next())
    store.checkpoint(folder / "backup")
    store.close()
    shutil.rmtree(folder / "other")


def _restore(folder: Path, report: Reporter) -> None:
    restore(folder / "backup", folder / "delay", SHARD)
    report("flushed", 14)
    open_store(folder / "delay", SHARD, 1, SMALL).close()


def _check_restore(folder: Path, reported: Reported) -> None:
    make_folder(folder / "delay")
    if not copies_of(folder / "delay", SHARD):
        assert not reported.flushed, "a restore that was told to be done is gone"
        restore(folder / "backup", folder / "delay", SHARD)  # again, because it was cut short
    store = open_store(folder / "delay", SHARD, LATER, SMALL)
    if _is_last_write_partial(store):
        assert written(store) == 0, "orders are to be taken in again"
        assert _all(store) == _all(model_of(SEED, 14))
    else:
        assert written(store) == 14
        assert_same(store, model_of(SEED, 14))
    store.close()


class Scene(NamedTuple):
    """`prepare` makes what is there before; its storage is sound."""

    act: Callable[[Path, Reporter], None]
    check: Callable[[Path, Reported], None]
    prepare: Callable[[Path], None] | None = None


SCENES: dict[str, Scene] = {
    "work": Scene(_work, _check_work),
    "rush": Scene(_rush, _check_work),
    "clone": Scene(_clone, _check_work),
    "salvage": Scene(_salvage, _check_salvage, _prepare_image),
    "cut": Scene(_truncate, _check_truncated, _prepare_damaged_log),
    "restore": Scene(_restore, _check_restore, _prepare_backup),
}


def violations_of(name: str, folder: Path, reported: Reported) -> Iterable[str]:
    """What is not as it should be; nothing but errors that a user can act on may have been told."""
    if reported.bug:
        yield f"raised what nobody expects: {reported.bug}"
    for text in reported.refused:
        if str(folder) not in text and "failed before" not in text:
            yield f"refused without saying where: {text}"
    try:
        SCENES[name].check(folder, reported)
    except (AssertionError, DdmqError):
        yield f"{traceback.format_exc()}told: {reported}"
