"""Members that read the log's files: what they read there, and when they ask the writer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backend.file_log.sessions.member import MemberBackend
from backend.file_log.sessions.reads import LocalReads
from backend.records import QueueRef, ReadStatus, StoredRecord, tag_hash
from tests.support.waits import done, soon, until
from tests.unit.sessions.pair import Pair
from tests.unit.sessions.session_kit import record


def in_the_files(pair: Pair, queue: QueueRef, last: int) -> bool:
    """A commit while entries are being written leaves its own to the next turn."""
    reads_before = pair.writer_reads
    batch = done(pair.member.read(queue, last, 10, 1 << 20))
    return len(batch.offsets) == 1 and pair.writer_reads == reads_before


def test_records_in_the_files_are_read_from_them(pair: Pair) -> None:
    queue, sent = pair.make(), [record(body=b"%d" % n) for n in range(50)]
    offsets = [done(pair.writer.append([one], soon()))[0].offset for one in sent]
    until(lambda: in_the_files(pair, queue, offsets[-1]))
    writer_reads = pair.writer_reads
    for one, offset in zip(sent, offsets, strict=True):
        batch = done(pair.member.read(queue, offset, 1, 1 << 20))
        assert [bytes(delivery) for delivery in batch.deliveries] == [one.delivery]
        assert batch.record(0).message_id == one.message_id
    assert pair.writer_reads == writer_reads


def test_only_the_end_of_a_queue_is_read_from_the_writer(pair: Pair) -> None:
    queue = pair.make()
    assert done(pair.member.read(queue, 0, 10, 1 << 20)).status is ReadStatus.NONE
    assert done(pair.member.read(queue, 5, 10, 1 << 20)).status is ReadStatus.OUT_OF_RANGE
    assert pair.writer_reads == 2


@pytest.mark.slow
def test_reading_continues_from_segment_to_segment(pair: Pair) -> None:
    queue = pair.make()
    sent = []
    for _ in range(40):
        batch = [record(body=bytes(9000)) for _ in range(3)]
        done(pair.member.append(batch, soon()))
        sent += [one.delivery for one in batch]
        assert pair.bodies(queue, len(sent) - 3) == sent[-3:]
    assert len(list((pair.directory / "commitlog").glob("[0-9]*"))) > 10
    assert pair.bodies(queue) == sent


def test_a_deleted_topic_is_not_read_from_its_files(pair: Pair) -> None:
    queue = pair.make()
    done(pair.member.append([record()], soon()))
    assert len(pair.bodies(queue)) == 1
    done(pair.member.delete_topic("orders", soon()))
    assert done(pair.member.read(queue, 0, 10, 1 << 20)).status is ReadStatus.UNKNOWN_QUEUE
    recreated = pair.make()
    assert pair.bodies(recreated) == []


def test_a_damaged_entry_is_the_writer_s_to_judge(pair: Pair) -> None:
    queue = pair.make()
    sent = [record(body=b"%d" % n) for n in range(5)]
    done(pair.member.append(sent, soon()))
    folder = pair.directory / "consumequeue" / "orders" / "0"
    until(
        lambda: any(len(path.read_bytes()) >= 5 * 32 for path in folder.glob("*")), "the entries are written"
    )
    (path,) = folder.iterdir()
    data = bytearray(path.read_bytes())
    data[2 * 32 + 10] ^= 0xFF
    path.write_bytes(data)
    before = pair.writer_reads
    assert pair.bodies(queue) == [one.delivery for one in sent]
    assert pair.writer_reads > before


def test_the_files_of_a_new_writer_are_reopened(pair: Pair) -> None:
    queue = pair.make()
    third = pair.enter()
    sent = [record(body=b"%d" % n) for n in range(3)]
    done(pair.member.append(sent[:1], soon()))
    pair.elections[0].close()
    until(lambda: len(pair.logs) == 2, "one of the members writes")
    done(third.append(sent[1:2], soon()))
    done(pair.member.append(sent[2:], soon()))
    assert pair.bodies(queue) == [one.delivery for one in sent]


def test_members_that_read_make_the_writer_publish_at_once(pair: Pair) -> None:
    tails = pair.logs[0]._opened.tails
    until(lambda: tails.at_once, "the member has said that it reads")
    pair.elections[1].close()
    until(lambda: not tails.at_once, "nobody reads any more")


def test_a_read_by_tag_hash_skips_other_records_in_the_files(pair: Pair) -> None:
    queue = pair.make()
    sent = [record(body=b"%d" % n, tags=b"red" if n % 10 == 9 else b"blue") for n in range(100)]
    for start in range(0, 100, 25):
        done(pair.writer.append(sent[start : start + 25], soon()))
    until(lambda: in_the_files(pair, queue, 99))
    writer_reads = pair.writer_reads
    red, never = frozenset([tag_hash(b"red")]), frozenset([tag_hash(b"never")])
    offsets, offset = [], 0
    while offset < 100:
        batch = done(pair.member.read(queue, offset, 3, 1 << 20, tags=red))
        assert batch.next_offset > offset
        offsets += batch.offsets
        offset = batch.next_offset
    assert offsets == list(range(9, 100, 10))
    batch = done(pair.member.read(queue, 5, 100, 1 << 20, tags=never))
    assert (batch.status, list(batch.offsets), batch.next_offset) == (ReadStatus.DATA, [], 100)
    assert pair.writer_reads == writer_reads
    batch = done(pair.member.read(queue, 100, 100, 1 << 20, tags=never))
    assert (batch.status, batch.next_offset, pair.writer_reads) == (ReadStatus.NONE, 100, writer_reads + 1)


def test_an_entry_with_a_damaged_tag_is_read_by_its_record(pair: Pair) -> None:
    queue = pair.make()
    sent = [record(body=b"%d" % n, tags=b"red" if n == 2 else b"blue") for n in range(5)]
    done(pair.member.append(sent, soon()))
    folder = pair.directory / "consumequeue" / "orders" / "0"
    until(lambda: sum(file.stat().st_size for file in folder.glob("*")) == 5 * 32, "all entries are written")
    (path,) = folder.iterdir()
    data = bytearray(path.read_bytes())
    data[2 * 32 + 12] ^= 0xFF
    path.write_bytes(data)
    batch = done(pair.member.read(queue, 0, 10, 1 << 20, tags=frozenset([tag_hash(b"red")])))
    assert list(batch.offsets) == [2]


def deleted_and_open(directory: Path) -> list[str]:
    """Files of the directory that are deleted and still open in this process, maps included."""
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith(str(directory)) and target.endswith("(deleted)"):
            targets.append(target)
    return targets


def test_an_idle_member_closes_files_that_the_writer_deleted(pair: Pair) -> None:
    queue = pair.make()
    for _ in range(40):
        done(pair.member.append([record(body=bytes(9000)) for _ in range(3)], soon()))
    assert len(pair.bodies(queue)) == 120, "now the member has all segments open"
    [log] = pair.logs
    opened, member = log._opened, pair.member.current
    assert isinstance(member, MemberBackend)
    for old in opened._old_segments()[:4]:
        opened._release(old)()
    size = opened._close_unfreed()
    assert size >= 4 * (50 << 10), "deleted, and not free yet: retention counts it"
    assert deleted_and_open(pair.directory)
    member.on_ping()
    assert opened._close_unfreed() == 0
    until(lambda: not deleted_and_open(pair.directory), "what the index has merged is closed, too")
    bounds = done(pair.member.bounds([queue]))[0]
    assert bounds is not None
    assert len(pair.bodies(queue, bounds.min)) == 120 - bounds.min > 0


@pytest.mark.parametrize("open_before", [True, False])
def test_dead_letters_in_retained_segments_are_read_from_the_files(pair: Pair, open_before: bool) -> None:
    queue, letters = pair.make(), pair.make("%DLQ%g")
    for number in range(40):
        sent = record("%DLQ%g" if number in (10, 30) else "orders", body=b"%d".ljust(30_000) % number)
        done(pair.member.append([sent], soon()))
    if open_before:
        assert len(pair.bodies(queue)) == 38
    opened, member = pair.logs[0]._opened, pair.member.current
    assert isinstance(member, MemberBackend)
    for old in opened._old_segments()[:-2]:
        lettered = any(one.position in range(old.start, old.end) for one in letters_of(pair))
        if lettered:
            opened.segments.keep_for_dead_letters(old.start)()()
        else:
            opened._release(old)()
    member.on_ping()
    assert opened._close_unfreed() == 0
    bounds = done(pair.member.bounds([queue]))[0]
    assert bounds is not None
    assert bounds.min > 30
    pair.writer_reads = 0
    assert [body[-30_000:].split()[0] for body in pair.bodies(letters)] == [b"10", b"30"]
    assert len(pair.bodies(queue, bounds.min)) == 38 - bounds.min > 0
    assert pair.writer_reads == 2, "for the ends of both"


def letters_of(pair: Pair) -> list[StoredRecord]:
    letters = QueueRef("%DLQ%g", pair.logs[0].topics()["%DLQ%g"].incarnation, 0)
    batch = done(pair.logs[0].read(letters, 0, 10, 1 << 20))
    return [batch.record(at) for at in range(len(batch.offsets))]


def test_a_recreated_segment_of_the_same_name_is_reopened(pair: Pair) -> None:
    queue = pair.make()
    done(pair.member.append([record(body=b"one")], soon()))
    assert pair.bodies(queue) == [record(body=b"one").delivery]
    path = next((pair.directory / "commitlog").glob("[0-9]*"))
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)
    member = pair.member.current
    assert isinstance(member, MemberBackend)
    member.on_ping()
    reads = member._reads
    assert isinstance(reads, LocalReads)
    assert not any(one.file.is_deleted() for one in reads._segments.segments)
    assert pair.bodies(queue) == [record(body=b"one").delivery]


def test_unreadable_pages_kill_no_process(pair: Pair) -> None:
    """The first segment is cut off under both mappings; touching what is gone would end the process."""
    queue = pair.make()
    sent = []
    for number in range(12):
        batch = [record(body=b"%d" % number + bytes(9_000)) for _ in range(2)]
        done(pair.member.append(batch, soon()))
        sent += [one.delivery for one in batch]
    assert pair.bodies(queue) == sent
    first = min((pair.directory / "commitlog").glob("[0-9]*"))
    os.truncate(first, 20_480)
    readable = pair.bodies(queue)
    assert readable == sent[:2] + sent[-len(readable) + 2 :]
    assert 10 < len(readable) < len(sent)
    assert pair.logs[0].damaged_ranges == len(sent) - len(readable)
