"""A delay store whose storage fails at some of its calls, in every way (R2); all of them: store_faults.py."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ddmq_common.rocks.damage import files_after_gap, read_sequence_range
from ddmq_common.rocks.database import Rocks, lacks_only_log_ends
from delay_service.store.opening import open_store
from tests.crash.delay_store.store_faults import Stage, run
from tests.crash.delay_store.store_images import SHARD, SMALL
from tests.crash.delay_store.store_load import Load, assert_same, model_of, written
from tests.crash.delay_store.store_scenes import SCENES
from tests.crash.storage_calls import KINDS

SEED = 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "faults").mkdir()
    return tmp_path / "faults"


@pytest.mark.slow
def test_faults_at_random_calls(folder: Path) -> None:
    broken, met = run(folder, seed=SEED, count=2 * len(SCENES) * len(KINDS))
    assert not broken, broken
    assert {what.split()[0] for what in met} == set(KINDS)


def test_a_scene_without_a_fault_changes_storage_in_every_way(folder: Path) -> None:
    stage = Stage(folder)
    assert stage.points("work", SEED) > 100
    assert stage.points("salvage", SEED) > 100


def copied(live: Path, copy: Path) -> bool:
    """False where RocksDB removed a file meanwhile; nothing is left then."""
    copy.mkdir(parents=True)
    try:
        for file in live.iterdir():
            os.link(file, copy / file.name) if file.suffix == ".sst" else (copy / file.name).write_bytes(
                file.read_bytes()
            )
    except FileNotFoundError:
        shutil.rmtree(copy)
        return False
    return True


def test_what_comes_behind_a_gap_in_the_log_is_left_out(tmp_path: Path) -> None:
    """A power loss took the end of one file, at a batch's edge, and left the next file."""
    load = Load(SEED)
    store = open_store(tmp_path / "live", SHARD, 1, SMALL)
    copy = tmp_path / "delay" / store.folder.name
    while True:
        while len(logs := sorted(store.folder.glob("*.log"))) < 2 or not read_sequence_range(logs[-1]):
            store.write(load.next())
        if copied(store.folder, copy):
            logs = sorted(copy.glob("*.log"))
            if len(logs) > 1 and read_sequence_range(
                logs[-1]
            ):  # a flush may have removed the first one meanwhile
                break
            shutil.rmtree(copy)
    store.close()
    assert files_after_gap(copy) == []
    os.truncate(logs[-2], 0)
    assert files_after_gap(copy) == logs[-1:]
    store = open_store(tmp_path / "delay", SHARD, 2, SMALL)
    assert written(store) < load.number
    assert_same(store, model_of(SEED, written(store)))
    assert [file.name for file in store.folder.glob("damaged-log-1/*")] == [logs[-1].name]
    store.close()


def test_a_partial_last_write_is_not_taken_for_damage(tmp_path: Path) -> None:
    store = open_store(tmp_path, SHARD, 1, SMALL)
    load = Load(SEED)
    for _ in range(3):
        store.write(load.next())
    store.flush()
    [log] = store.folder.glob("*.log")
    intact, names = log.read_bytes(), list(store.folder.iterdir())
    images = {}
    for what, content in (("partial", intact[:-5]), ("flipped", intact[:40] + b"\xff" + intact[41:])):
        images[what] = tmp_path / what
        images[what].mkdir()
        for file in names:
            (images[what] / file.name).write_bytes(content if file == log else file.read_bytes())
        with pytest.raises(Exception, match="damaged"):
            Rocks(images[what], SMALL)
    store.close()
    assert lacks_only_log_ends(images["partial"], SMALL)
    assert not lacks_only_log_ends(images["flipped"], SMALL)
