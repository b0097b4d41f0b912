"""Power loss: of the write-ahead log everything behind the last sync is cut, or is garbage (R2)."""

from __future__ import annotations

from pathlib import Path
from random import Random

from delay_service.store.opening import open_store
from tests.crash.delay_store.store_images import SHARD, SMALL, Image
from tests.crash.delay_store.store_load import assert_same, model_of, written


def check(image: Image) -> None:
    store = open_store(image.folder, SHARD, 2, SMALL)
    number = written(store)
    assert number >= image.flushed
    assert store.damage is None or store.damage.log_truncated
    assert_same(store, model_of(image.seed, number))
    store.close()


def test_the_end_of_the_log_is_missing(tmp_path: Path) -> None:
    original = Image(tmp_path / "image", 5, 4, 12, 18)
    log = original.newest("*.log")
    synced, size = original.synced[log.name], log.stat().st_size
    assert synced < size
    random = Random(5)
    for number, length in enumerate(
        [synced, synced + 1, *(random.randrange(synced, size) for _ in range(12))]
    ):
        image = original.reopen(tmp_path / f"cut-{number}")
        with open(image.newest("*.log"), "r+b") as file:
            file.truncate(length)
        check(image)


def test_the_end_of_the_log_was_never_written(tmp_path: Path) -> None:
    """The file has its length, and zeros where nothing was written."""
    original = Image(tmp_path / "image", 6, 4, 12, 18)
    log = original.newest("*.log")
    synced, size = original.synced[log.name], log.stat().st_size
    random = Random(6)
    for number in range(6):
        image = original.reopen(tmp_path / f"zeros-{number}")
        synced_end = random.randrange(synced, size)
        with open(image.newest("*.log"), "r+b") as file:
            file.seek(synced_end)
            file.write(bytes(size - synced_end))
        check(image)
