"""A failed write or sync: never answered as stored, refused until all is durable elsewhere, then on."""

from __future__ import annotations

import itertools
from pathlib import Path

from backend.completion import Completion
from backend.file_log import FileLog
from backend.records import AppendResult, AppendStatus, TopicInfo
from ddmq_common.errors import NotWriterError, RefusedUntilRecoveredError, RemoteError
from tests.crash.faulty_storage import FaultyStorage
from tests.crash.log.log_story import Promises, Story, check, new_record, open_story, read_all, soon, wait
from tests.support.waits import until


class Failing(FaultyStorage):
    """Fails what `broken` names, as long as it is set."""

    broken: tuple[str, ...] = ()

    def point(self, what: str, path: str):  # type: ignore[no-untyped-def]
        if what in self.broken and "commitlog" in path:
            self.plan[self.points + 1] = "fail"
        return super().point(what, path)


def until_ready(log) -> None:  # type: ignore[no-untyped-def]
    until(lambda: log.health().ready)


def failing_story(folder: Path) -> tuple[Failing, Promises, FileLog, Story]:
    """A log in `live` on a storage that fails as told, and who appends to it."""
    (folder / "live").mkdir()
    storage, promises = Failing(folder / "live"), Promises()
    log = open_story(folder / "live", storage)
    return storage, promises, log, Story(log, promises)


def test_a_failed_sync_moves_the_log_on_and_the_answer_is_true(tmp_path: Path) -> None:
    storage, promises, log, story = failing_story(tmp_path)
    story.make("orders", 2)
    story.append([("orders", 0, 100)])
    storage.plan[storage.points + 1] = "fail"  # the next write through
    story.append([("orders", 0, 200)])
    assert (("orders", 0, 1)) in promises.stored, "it was written once more, elsewhere, and is durable"
    assert len(list((tmp_path / "live" / "commitlog").glob("[0-9]*"))) == 2
    log.close()
    for image in (storage.image(tmp_path / "dark"), storage.cache(tmp_path / "killed")):
        reopened = open_story(image)
        check(reopened, promises, written_too=True)
        reopened.close()


def test_appends_are_rejected_until_the_log_can_write_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    storage = Failing(tmp_path / "live")
    log = open_story(tmp_path / "live", storage)
    wait(log.put_topic(TopicInfo("orders", 0, 1), soon()))
    storage.broken = ("write through", "create", "sync all")
    first = wait(log.append([new_record("orders", 0, b"000001:unknown")], soon()))[0]
    assert first.status is AppendStatus.UNKNOWN
    assert isinstance(first.error, RemoteError)
    assert not log.health().ready
    second = wait(log.append([new_record("orders", 0, b"000002:refused")], soon()))[0]
    assert second.status is AppendStatus.REFUSED
    assert isinstance(second.error, RefusedUntilRecoveredError)
    assert read_all(log, "orders") == {}, "what is not durable is not read"
    storage.broken = ()
    until_ready(log)
    third = wait(log.append([new_record("orders", 0, b"000003:stored")], soon()))[0]
    assert (third.status, third.offset) == (AppendStatus.STORED, 1)
    bodies = [record.delivery for record in read_all(log, "orders").values()]
    assert bodies == [b"000001:unknown", b"000003:stored"]
    log.close()
    reopened = open_story(storage.image(tmp_path / "dark"))
    assert [record.delivery for record in read_all(reopened, "orders").values()] == bodies
    reopened.close()


def test_a_writer_replaced_during_its_recovery_stays_closed(tmp_path: Path) -> None:
    """Another process may write it now."""
    (tmp_path / "live").mkdir()
    storage = Failing(tmp_path / "live")
    log = open_story(tmp_path / "live", storage)
    wait(log.put_topic(TopicInfo("orders", 0, 1), soon()))
    storage.broken = ("write through", "create", "sync all")
    wait(log.append([new_record("orders", 0, b"000001:unknown")], soon()))
    log._writer.give_up(NotWriterError("the lock file is gone"))
    storage.broken = ()
    log._writer._retry_rescue()  # as its timer does
    assert log._writer._job is None
    result = wait(log.append([new_record("orders", 0, b"000002:refused")], soon()))[0]
    assert (result.status, type(result.error)) == (AppendStatus.REFUSED, NotWriterError)
    assert not log.health().ready
    log.close()


def test_a_disk_that_keeps_failing_costs_one_segment_a_period(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    storage = Failing(tmp_path / "live")
    log = open_story(tmp_path / "live", storage, recover_retry_ms=3_600_000)
    wait(log.put_topic(TopicInfo("orders", 0, 1), soon()))

    def append() -> Completion[list[AppendResult]]:
        return log.append([new_record("orders", 0, b"000009:again")], soon())

    def segments() -> int:
        return len(list((tmp_path / "live" / "commitlog").glob("[0-9]*")))

    storage.broken = ("write through",)  # a new segment is written otherwise
    assert wait(append())[0].status is AppendStatus.STORED
    assert segments() == 2
    second = append()
    until(lambda: not log.health().ready)
    refused = wait(append())[0]
    assert isinstance(refused.error, RefusedUntilRecoveredError)
    assert not second.done
    assert segments() == 2, "it waits for its turn"
    log._writer._rest_timer.once(0, log._writer._retry_rescue)
    assert wait(second)[0].status is AppendStatus.STORED
    assert segments() == 3
    log.close()


def test_written_records_survive_a_failed_sync_of_them(tmp_path: Path) -> None:
    storage, promises, log, story = failing_story(tmp_path)
    story.play(1)
    story.append([("events", 0, 150)])
    storage.broken = ("sync",)
    story.append([("orders", 0, 150)])  # shares a sync with what was only written
    storage.broken = ()
    until_ready(log)
    story.append([("orders", 1, 150)])
    check(log, promises, written_too=True)
    log.close()
    reopened = open_story(storage.image(tmp_path / "dark"))
    check(reopened, promises, written_too=True)
    reopened.close()


def test_an_append_to_a_full_disk_is_rejected_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    storage, promises = FaultyStorage(tmp_path / "live"), Promises()
    log = open_story(tmp_path / "live", storage)
    story = Story(log, promises)
    story.make("orders", 2)
    for number in itertools.count():
        before = len(promises.absent)
        storage.plan.clear()
        if number == 3:
            storage.plan.update(dict.fromkeys(range(storage.points + 1, storage.points + 40), "nospace"))
        story.append([("orders", 0, 6000)])
        if number == 3:
            assert len(promises.absent) == before + 1
            assert "planned fault" in log.health().reason
            assert not log.health().ready
        if number == 4:
            assert log.health().ready, "a full disk is no damage"
        if number == 6:
            break
    check(log, promises, written_too=True)
    log.close()
    reopened = open_story(storage.image(tmp_path / "dark"))
    check(reopened, promises, written_too=True)
    reopened.close()


def test_a_failed_sync_truncates_no_bytes_that_readers_may_map(tmp_path: Path) -> None:
    storage, promises, log, story = failing_story(tmp_path)
    story.play(1)
    story.append([("events", 0, 9_000)])
    (first,) = (tmp_path / "live" / "commitlog").glob("[0-9]*")
    readable_end = log._writer.written
    storage.broken = ("sync",)
    story.append([("orders", 0, 150)])
    storage.broken = ()
    until_ready(log)
    assert len(list((tmp_path / "live" / "commitlog").glob("[0-9]*"))) == 2
    assert first.stat().st_size >= readable_end, "what was written and seen stays"
    log.close()
    reopened = open_story(tmp_path / "live")
    check(reopened, promises, written_too=True)
    assert (reopened.recovered.tail_bytes, reopened.damaged_ranges) == (0, 0)
    reopened.close()


def test_records_moved_by_a_failed_sync_keep_their_age(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    storage, promises = Failing(tmp_path / "live"), Promises()
    log = open_story(tmp_path / "live", storage, written_sync_ms=1)
    story = Story(log, promises)
    story.play(1)
    storage.broken = ("sync",)
    story.append([("events", 0, 150)])  # its sync comes by itself
    until(lambda: len(list((tmp_path / "live" / "commitlog").glob("[0-9]*"))) >= 2, "something is moved")
    storage.broken = ()
    until_ready(log)
    segments = log._opened.segments.segments
    assert len(segments) == 2
    assert segments[1].last_ms >= segments[0].last_ms > 0
    log.close()
