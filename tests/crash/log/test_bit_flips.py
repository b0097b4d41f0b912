"""One flipped bit anywhere: found, counted, never served; only the record that it hit is lost."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from backend.file_log.core.layout import FRAME_BYTES, UNSALTED, Frame, Record, RecordKind
from backend.file_log.core.scan import scan_items
from backend.file_log.start.format_file import read_format
from backend.file_log.storage import Storage
from tests.crash.log.log_story import Promises, Story, check, open_story, read_all, soon, wait
from tests.support.waits import until

SEED = 20_261_121
HEALED_BYTES = 8  # magic and first CRC: the second one vouches for the record


class Built(NamedTuple):
    """A closed log, and what it had answered."""

    folder: Path
    promises: Promises
    proven: int  # log position below which frame headers or the checkpoint prove durability


def build(folder: Path, *, drained: bool) -> Built:
    log, promises = open_story(folder), Promises()
    Story(log, promises).play(3)
    if drained:
        wait(log.drain(soon()))
    log.close()
    items = list(all_items(folder))
    end = max(item.end for item in items)
    proven = end if drained else max(item.durable for item in items if isinstance(item, Frame))
    return Built(folder, promises, proven)


def all_items(folder: Path) -> Iterator[Frame | Record]:
    salting = read_format(Storage(), str(folder)) or UNSALTED
    paths = sorted((folder / "commitlog").glob("[0-9]*"))
    starts = [int(path.name) for path in paths]
    for path, after in zip(paths, [*starts[1:], None], strict=True):
        data, start = path.read_bytes(), int(path.name)
        end = start + len(data) if after is None else after
        for item in scan_items(data, start, start, end, salting.of_segment(start)):
            if isinstance(item, (Frame, Record)):
                yield item


@pytest.fixture(scope="module", params=[True, False], ids=["after a checkpoint", "in the tail"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("flips") / "log", drained=request.param)


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def one_flip(built: Built, target: Path, file: str, at: int, bit: int, lost: int) -> bool:
    """Flip, open, check; whether anything was reported."""
    shutil.copytree(built.folder, target)
    flip(target / file, at, bit)
    log = open_story(target)
    try:
        check(log, built.promises, written_too=not lost, lost=lost)
        return bool(log.damaged_ranges or log.recovered.tail_bytes)
    finally:
        log.close()
        shutil.rmtree(target)


class TargetByte(NamedTuple):
    """A byte to hit. `in_record`: what is lost is that record, at most."""

    file: str
    at: int
    position: int  # log position of the frame header or record that it is in
    in_record: bool
    to_be_noticed: bool  # in a message, all of which are read, where the second CRC does not vouch for it


def target_bytes(built: Built) -> list[TargetByte]:
    """One byte per region of every frame header and record."""
    chance = random.Random(SEED)
    items = list(all_items(built.folder))
    starts = sorted(int(path.name) for path in (built.folder / "commitlog").glob("[0-9]*"))
    targets = []
    for item in items:
        segment = max(start for start in starts if start <= item.position)
        if isinstance(item, Frame):
            regions = [(0, 8), (8, 24), (24, 40), (40, FRAME_BYTES)]
        else:
            meta = item.meta_bytes
            regions = [(0, 8), (8, 24), (24, 64), (64, 104), (104, meta), (meta, item.size)]
        for low, high in regions:
            if low < high:
                at = item.position - segment + chance.randrange(low, high)
                in_record = isinstance(item, Record)
                noticed = isinstance(item, Record) and item.kind == RecordKind.MESSAGE and low >= HEALED_BYTES
                targets.append(TargetByte(f"commitlog/{segment:020d}", at, item.position, in_record, noticed))
    return targets


@pytest.mark.slow
def test_a_bit_of_the_commit_log(built: Built, tmp_path: Path) -> None:
    chance = random.Random(SEED + 1)
    for number, byte in enumerate(target_bytes(built)):
        lost = 1 if byte.in_record else 0
        if byte.position + FRAME_BYTES > built.proven:
            lost = 1_000  # nothing proves the rest: it is cut there
        target = tmp_path / str(number)
        noticed = one_flip(built, target, byte.file, byte.at, chance.randrange(8), lost)
        assert noticed or not byte.to_be_noticed, f"{byte}: nothing was reported"


def test_every_bit_of_one_record_header(built: Built, tmp_path: Path) -> None:
    record = [item for item in all_items(built.folder) if isinstance(item, Record) and item.kind == 1][3]
    for byte in range(0, record.meta_bytes, 3):
        lost = 1 if byte >= HEALED_BYTES else 0
        file, at = f"commitlog/{0:020d}", record.position + byte
        noticed = one_flip(built, tmp_path / str(byte), file, at, byte % 8, lost)
        assert noticed or not lost, f"byte {byte} of a record header: nothing was reported"


def test_a_bit_of_a_consume_queue_loses_nothing(built: Built, tmp_path: Path) -> None:
    chance = random.Random(SEED + 2)
    names = [path.relative_to(built.folder) for path in (built.folder / "consumequeue").rglob("*-*")]
    clean = open_story(built.folder)
    expected = {topic: read_all(clean, topic) for topic in ("orders", "events")}
    clean.close()
    for name in names:
        for at in range(0, (built.folder / name).stat().st_size, 5):
            target = tmp_path / f"{name.parts[1]}{name.parts[2]}-{at}"
            shutil.copytree(built.folder, target)
            flip(target / name, at, chance.randrange(8))
            log = open_story(target)
            assert {topic: read_all(log, topic) for topic in expected} == expected
            log.close()
            shutil.rmtree(target)


def test_a_bit_of_a_checkpoint_loses_nothing(built: Built, tmp_path: Path) -> None:
    for name in ("checkpoint", "checkpoint.old"):
        path = built.folder / name
        if not path.exists():
            continue
        for at in range(0, path.stat().st_size, 11):
            target = tmp_path / f"{name}{at}"
            shutil.copytree(built.folder, target)
            flip(target / name, at, at % 8)
            log = open_story(target)
            check(log, built.promises, written_too=True)
            assert name != "checkpoint" or log.damaged_ranges
            log.close()
            shutil.rmtree(target)


def test_a_bit_of_the_idempotency_keys_loses_nothing(built: Built, tmp_path: Path) -> None:
    paths = list((built.folder / "sends").glob("*"))
    assert paths
    for path in paths:
        for at in range(0, path.stat().st_size, 11):
            target = tmp_path / f"{path.name}-{at}"
            shutil.copytree(built.folder, target)
            flip(target / "sends" / path.name, at, at % 8)
            log = open_story(target)
            check(log, built.promises, written_too=True)
            log.close()
            shutil.rmtree(target)


@pytest.mark.parametrize("name", ["consumequeue", "index", "checkpoint", "checkpoint.old", "sends"])
def test_a_deleted_view_is_rebuilt(built: Built, tmp_path: Path, name: str) -> None:
    target = tmp_path / "log"
    shutil.copytree(built.folder, target)
    path = target / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    log = open_story(target)
    check(log, built.promises, written_too=True)
    body = next(iter(built.promises.stored.values()))

    def find_bodies() -> list[bytes]:
        return [record.delivery for record in wait(log.find("orders", message_id=body[:16]))]

    until(lambda: find_bodies() == [body], "the index is made again")
    log.close()


def test_damage_is_copied_aside_and_counted_once(built: Built, tmp_path: Path) -> None:
    target = tmp_path / "log"
    shutil.copytree(built.folder, target)
    record = [item for item in all_items(built.folder) if isinstance(item, Record) and item.kind == 1][2]
    flip(target / "commitlog" / f"{0:020d}", record.position + record.meta_bytes + 20, 1)
    log = open_story(target)
    for _ in range(3):
        assert len(read_all(log, "orders")) + len(read_all(log, "events")) > 5
    assert log.damaged_ranges == 1
    copies = list((target / "damaged").iterdir())
    assert len(copies) == 1
    assert copies[0].stat().st_size == record.size
    assert log.health().reason != ""
    log.close()
