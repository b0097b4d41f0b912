"""Single flipped bits in every kind of file (R3): what cannot be read is listed, never served."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ddmq_common.errors import DamagedError
from ddmq_common.rocks.database import Rocks
from delay_service.store.copies import MARK_FILE, copy_name
from delay_service.store.opening import open_store
from delay_service.store.port import DueKey, IdKind, Pending, Scan
from delay_service.store.rocks_store import RocksStore
from tests.crash.delay_store.store_images import SHARD, SMALL, Image, flip, lost_ids, unlocked
from tests.crash.delay_store.store_load import FOREVER, TOPICS, UUIDS, model_of, written

PATTERNS = ("*.sst", "*.log", "MANIFEST-*", "CURRENT", "OPTIONS-*", "IDENTITY", "rocksdict-config.json")
UUID_LIST = [b"%016d" % offset for offset in range(1, UUIDS)]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return Image(tmp_path_factory.mktemp("whole") / "image", 9, 38, 45, 50)


def everything(store: RocksStore) -> dict[DueKey, Pending]:
    """All messages, read in every way."""
    messages = {message.key: message for message in store.scan(Scan(None, 0, FOREVER, 1 << 30))}
    aside = [message for topic in TOPICS for message in store.read_deferred(topic, 1 << 30)]
    due = store.due(FOREVER, 1 << 30, FOREVER)
    assert messages == {message.key: message for message in (*due, *aside)}
    store.ids(UUID_LIST)
    return messages


def read_through(image: Image) -> tuple[RocksStore, dict[DueKey, Pending], bool]:
    """As a service would: a store that meets damage is closed and opened again."""
    store = open_store(image.folder, SHARD, 2, SMALL)
    try:
        return store, everything(store), store.damage is not None
    except DamagedError:
        copy = store.folder
        assert (copy / MARK_FILE).exists()
        with pytest.raises(Exception, match="close and open"):
            store.due(1, 1, 1)
        store.close()
    store = open_store(image.folder, SHARD, 2, SMALL)
    assert store.damage is not None
    assert copy.with_name(copy.name + ".damaged").is_dir()
    return store, everything(store), True


def check(image: Image) -> tuple[int, int, bool]:
    """Messages, those listed as lost, and whether it was reported."""
    store, messages, reported = read_through(image)
    if store.damage is None or store.damage.log_truncated:
        assert store.damage is not None or written(store) >= image.flushed
        assert messages == messages_of(image, written(store))
    else:
        assert written(store) == 0, "orders are to be taken in again"
        check_loss(image, messages, lost_ids(store.damage.lost_file))
    assert sum(store.counts().values()) == len(messages)
    check_ids(store, messages)
    path, lost = store.folder, store.damage.lost if store.damage else 0
    store.close()
    assert unlocked(path)
    return len(messages), lost, reported


def messages_of(image: Image, number: int) -> dict[DueKey, Pending]:
    return {one.key: one for one in model_of(image.seed, number).scan(Scan(None, 0, FOREVER, 1 << 30))}


def check_loss(image: Image, messages: dict[DueKey, Pending], lost: set[tuple[bytes, int, int]]) -> None:
    """Some number of batches explains what was found and what is listed, but for what one table held."""
    unexplained = []
    for number in range(image.written, 0, -1):
        model = messages_of(image, number)
        changed = [key for key, one in messages.items() if model.get(key) != one]
        missing = {(one.uuid, *key) for key, one in model.items() if key not in messages}
        unexplained.append(len(changed) + len(missing ^ lost))
        if not unexplained[-1]:
            return
    assert not lost, f"at best {min(unexplained)} messages are not explained"
    everything = {
        one for number in range(1, image.written + 1) for one in messages_of(image, number).values()
    }
    assert set(messages.values()) <= everything, "a message that is not one of them was served"


def check_ids(store: RocksStore, messages: dict[DueKey, Pending]) -> None:
    states = dict(zip(UUID_LIST, store.ids(UUID_LIST), strict=True))
    for key, message in messages.items():
        state = states[message.uuid]
        assert state is not None
        assert (state.kind, state.at_ms, state.offset) == (IdKind.PENDING, *key)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_flipped_bit(intact: Image, pattern: str, tmp_path: Path) -> None:
    random = Random(pattern)
    outcomes = []
    for number in range(12):
        image = intact.reopen(tmp_path / f"flip-{number}")
        path = random.choice(sorted(image.copy.glob(pattern)))
        flip(path, random.randrange(path.stat().st_size), random.randrange(8))
        outcomes.append(check(image))
    if pattern in ("*.sst", "*.log", "MANIFEST-*"):
        assert any(reported for _, _, reported in outcomes)


def test_a_damaged_block_costs_no_more_than_itself(intact: Image, tmp_path: Path) -> None:
    """Blocks here have some ten messages."""
    image = intact.reopen(tmp_path / "block")
    path = min(image.copy.glob("*.sst"))  # the first keys: messages
    flip(path, path.stat().st_size * 7 // 10, 3)
    messages, lost, reported = check(image)
    assert reported
    assert 0 < lost <= 20 < messages, (messages, lost)


@pytest.mark.parametrize("pattern", ["MANIFEST-*", "CURRENT"])
def test_a_missing_list_of_tables(intact: Image, pattern: str, tmp_path: Path) -> None:
    image = intact.reopen(tmp_path / "missing")
    image.newest(pattern).unlink()
    _, _, reported = check(image)
    assert reported


def test_an_interrupted_salvage_keeps_the_damaged_copy(intact: Image, tmp_path: Path) -> None:
    """The new revision has its name already, the old one still has its own."""
    image = intact.reopen(tmp_path / "cut")
    (image.copy / MARK_FILE).write_text("a test says so")
    store = open_store(image.folder, SHARD, 2, SMALL)
    store.close()
    old = image.folder / copy_name(SHARD, 2)
    old.with_name(old.name + ".damaged").rename(old)
    store = open_store(image.folder, SHARD, 2, SMALL)
    assert store.folder.name == copy_name(SHARD, 2, 1)
    assert len(everything(store)) > 0
    assert not old.exists()
    assert old.with_name(old.name + ".damaged").is_dir()
    store.close()


def test_damage_that_reappears_when_the_old_files_are_closed(
    intact: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB may meet it in the background. The salvage is complete by then, and no file stays open: the
    shard could not be opened in this process otherwise."""
    image = intact.reopen(tmp_path / "image")
    for file in image.copy.glob("MANIFEST-*"):
        file.write_bytes(bytes(file.stat().st_size))
    close = Rocks.close

    def closed(self: Rocks) -> None:
        close(self)
        if self.folder.name == "work":
            raise DamagedError("a block does not match its checksum")

    monkeypatch.setattr(Rocks, "close", closed)
    for _ in range(2):
        store = open_store(image.folder, SHARD, 2, SMALL)
        assert everything(store) == messages_of(image, image.written)
        store.close()
