"""A fault at every write point of the log: what was promised is kept, or was refused with a clear error."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from backend.file_log import FileLog
from ddmq_common.errors import DdmqError
from tests.crash.faulty_storage import FaultyStorage
from tests.crash.log.log_story import Promises, Story, check, check_absent, open_story


def live(folder: Path, plan: dict[int, str], rounds: int) -> tuple[FaultyStorage, Promises]:
    """Tell the story to a log whose storage fails as planned."""
    folder.mkdir(parents=True)
    storage = FaultyStorage(folder, plan)
    promises = Promises()
    try:
        log = open_story(folder, storage)
    except DdmqError as error:
        promises.failures.append(error)
        return storage, promises
    try:
        Story(log, promises).play(rounds)
        if not storage.lost and log.health().ready:
            check_living(log, storage, promises)
    finally:
        log.close()
    return storage, promises


def check_living(log: FileLog, storage: FaultyStorage, promises: Promises) -> None:
    try:
        check(log, promises, written_too=True)
    except AssertionError:
        if not storage.lost:  # else it happened right here
            raise


def reopen_and_check(folder: Path, promises: Promises, *, written_too: bool) -> None:
    log = open_story(folder)
    try:
        assert log.recovered.damaged_ranges == 0, "a torn tail was taken for damage"
        check(log, promises, written_too=written_too)
        check_absent(log, promises)
    finally:
        log.close()


def run(tmp_path: Path, plan: dict[int, str], rounds: int = 3) -> FaultyStorage:
    storage, promises = live(tmp_path / "live", plan, rounds)
    reopen_and_check(storage.image(tmp_path / "dark"), promises, written_too=False)
    for seed in range(2):
        image = storage.image(tmp_path / f"torn{seed}", seed)
        reopen_and_check(image, promises, written_too=False)
    reopen_and_check(storage.cache(tmp_path / "killed"), promises, written_too=True)
    return storage


def test_without_a_fault_every_record_is_there(tmp_path: Path) -> None:
    storage = run(tmp_path, {})
    kinds = {line.split(" ", 1)[1].rsplit(" ", 1)[0] for line in storage.trace}
    assert {"write through", "write", "sync", "sync all", "create", "rename", "sync folder"} <= kinds
    assert storage.points > 60


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["fail", "short", "nospace", "crash", "crashed"])
def test_a_fault_at_every_write_point(tmp_path: Path, fault: str) -> None:
    for point in itertools.count(1):
        storage = run(tmp_path / str(point), {point: fault})
        if storage.points < point:
            break


@pytest.mark.parametrize("fault", ["fail", "short", "nospace", "crash", "crashed"])
def test_a_fault_at_some_write_points(tmp_path: Path, fault: str) -> None:
    for point in range(3, 60, 14):
        run(tmp_path / str(point), {point: fault}, rounds=2)
