"""Who writes: the first, then whoever is left; and what the proxies notice of it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backend.completion import Completion
from backend.file_log.lock import DirectoryLock
from backend.file_log.sessions import election as election_module
from backend.file_log.sessions.election import BOUND, ElectedBackend, ElectedLog, Election
from backend.file_log.sessions.server import SOCKET_FILE, listen
from backend.port import Backend, Join, Sharing
from backend.records import AppendResult, AppendStatus, CommitBatch, ProgressDelta, TopicInfo
from ddmq_common.errors import BoundReachedError, RemoteError, StorageError
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from tests.played_memory import PlayedMemory
from tests.support.recording_listener import RecordingListener
from tests.support.waits import PATIENCE_S, done, soon, until
from tests.unit.sessions.session_kit import CLOCK, RawServer, SessionsRig, house, queue, record


def test_the_first_process_writes_and_the_others_are_members(tmp_path: Path) -> None:
    home = house(tmp_path / "new" / "directory")
    first, writer = home.enter()
    second, member = home.enter()
    tool, reader = home.enter(may_write=False)
    assert (first.is_writer, second.is_writer, tool.is_writer) == (True, False, False)
    done(writer.put_topic(TopicInfo("orders", 0, 1), soon()))
    until(lambda: reader.topic("orders"), "it is told")
    assert [done(face.append([record()], soon()))[0].offset for face in (writer, member, reader)] == [
        0,
        1,
        2,
    ]
    assert member.capabilities == writer.capabilities
    assert abs(member.clock_ms() - CLOCK.wall_ms()) < 60_000
    assert member.health().ready


def test_a_process_that_joins_another_logs_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = house(tmp_path)
    with caplog.at_level(logging.INFO):
        home.enter()
        home.enter(may_write=False)
        assert "already uses" not in caplog.text, "the first server, and a tool"
        home.enter()
    assert (
        f"another server process already uses {tmp_path} and writes it (pid {os.getpid()} on" in caplog.text
    )


def test_the_face_leads_straight_to_the_backend_of_the_moment() -> None:
    own = {"join", "watch_settings", "drain", "close"}
    with_default = {"clean_log", "count_owned_sends", "read_log_state"}  # of an engine without a log
    assert set(BOUND) == Backend.__abstractmethods__ - own | with_default
    first, second = PlayedMemory(), PlayedMemory()
    face = ElectedBackend(first, lambda: None, lambda: None)
    assert all(getattr(face, name) == getattr(first, name) for name in BOUND)
    face.switch_backend(second, [])
    assert all(getattr(face, name) == getattr(second, name) for name in BOUND)
    first.close()
    second.close()


def test_a_takeover_disturbs_only_pending_requests(home: SessionsRig) -> None:
    metrics = Registry()
    first, _ = home.enter()
    second, face = home.enter(metrics=metrics)
    third, other = home.enter()
    home.make()
    until(lambda: face.topic("orders") and other.topic("orders"), "the topic is told")
    listener, changed_keys = RecordingListener(), []
    face.join(Join("g", "orders"), listener)
    face.watch_settings(changed_keys.append)
    until(lambda: listener.epochs, "the assignment")
    wait = face.wait(queue(), 0, soon())
    home.engine.pause_writes()
    unknown = face.append([record()], soon())
    finish = ProgressDelta("g", queue(), listener.epochs[0], 0, [(0, 1)])
    finished = face.commit(CommitBatch(progress=[finish]), soon())
    until(lambda: home.engine.appends and home.engine.commits, "both are at the engine")
    first.close()
    assert done(unknown)[0].status is AppendStatus.UNKNOWN
    pending_append = face.append([record()], soon())
    home.engine.resume_writes()
    until(lambda: second.is_writer or third.is_writer, "one of the two takes over")
    assert done(finished) == []
    assert done(pending_append)[0].status is AppendStatus.STORED
    assert done(wait) is True
    until(lambda: len(listener.epochs) == 2, "the membership is assigned anew")
    assert listener.names == ["assigned", "lost", "assigned"]
    assert listener.epochs[1] > listener.epochs[0]
    done(other.commit(CommitBatch(settings={"k": b"1"}), soon()))
    until(lambda: changed_keys, "watchers are told after the change too")
    assert changed_keys == ["k"]
    if second.is_writer:
        assert metrics.cell(catalogue.TAKEOVERS).value == 1


def test_listeners_of_takeovers_are_called_before_the_first(home: SessionsRig) -> None:
    """Else whoever watches sees a series that begins with 1, not a rise."""
    metrics = Registry()
    home.enter()
    home.enter(metrics=metrics)
    assert b"ddmq_takeovers_total 0.0\n" in metrics.exposition()


def test_a_membership_is_carried_over_with_all_its_fields(home: SessionsRig) -> None:
    first, writer = home.enter()
    second, face = home.enter()
    home.make()
    done(writer.put_topic(TopicInfo("orders", 1, 3), soon()))
    listener = RecordingListener()
    face.join(Join("g", "orders", Sharing.BY_CIRCLE, frozenset({1}), "host:9713", "me"), listener)
    until(lambda: listener.epochs, "the assignment")
    first.close()
    until(lambda: second.is_writer and len(listener.epochs) == 2, "assigned anew")
    assert [event for event in listener.events if event[0] == "assigned"] == [("assigned", [1])] * 2
    assert done(face.holders("g", "orders", soon())) == {queue(queue_id=1): "host:9713"}


def test_takeovers_one_after_the_other(home: SessionsRig) -> None:
    home.make()
    elections, faces = zip(*(home.enter() for _ in range(4)), strict=True)
    living = dict(zip(elections, faces, strict=True))
    offsets = []
    while True:
        for face in living.values():
            offsets.append(done(face.append([record()], soon()))[0].offset)
        writer = next(election for election in living if election.is_writer)
        writer.close()
        del living[writer]
        if not living:
            break
        until(lambda: any(election.is_writer for election in living), "somebody takes over")
    assert offsets == list(range(4 + 3 + 2 + 1))


def test_waits_and_watchers_stay_at_their_process(home: SessionsRig) -> None:
    home.make()
    first, _ = home.enter()
    second, face = home.enter()
    waits = [face.wait(queue(), 0, soon()) for _ in range(20)]
    first.close()
    until(lambda: second.is_writer, "the member takes over")
    assert not any(wait.done for wait in waits)
    done(face.append([record()], soon()))
    assert all(done(wait) for wait in waits)


def test_a_failed_takeover_is_retried(home: SessionsRig) -> None:
    home.make()
    first, _ = home.enter()
    second, face = home.enter()
    failures = [StorageError("the disk is not back yet"), StorageError("nor now")]

    def open_writer(directory: Path, lock: DirectoryLock) -> ElectedLog:
        if failures:
            raise failures.pop()
        return ElectedLog(home.engine)

    second._open_writer = open_writer
    first.close()
    until(lambda: second.is_writer, "the third try works")
    assert done(face.append([record()], soon()))[0].status is AppendStatus.STORED


def test_an_engine_that_does_not_open_gives_the_lock_back(tmp_path: Path) -> None:
    def open_writer(directory: Path, lock: DirectoryLock) -> ElectedLog:
        raise StorageError("the log is damaged beyond use")

    with pytest.raises(StorageError, match="beyond use"):
        Election(tmp_path, open_writer, CLOCK, Registry()).start()
    DirectoryLock.acquire(tmp_path, 0).release()


def test_a_tool_without_a_server_fails_at_once(home: SessionsRig, tmp_path: Path) -> None:
    began = CLOCK.monotonic()
    with pytest.raises(RemoteError, match=f"no server is running on {tmp_path}; start one with: ddmq serve"):
        home.enter(may_write=False)
    assert CLOCK.monotonic() - began < PATIENCE_S / 2
    assert list(tmp_path.iterdir()) == []


def test_a_tool_waits_for_a_takeover_that_is_under_way(home: SessionsRig, tmp_path: Path) -> None:
    listen(tmp_path).close()  # what a killed writer leaves
    home.engine.pause_writes()
    checks = 0

    def nobody_there() -> bool:
        nonlocal checks
        checks += 1
        if checks == 3:
            home.enter()
        return False

    tool = Election(tmp_path, home.open_writer, CLOCK, Registry(), home.limits, may_write=False)
    tool._has_no_server = nobody_there  # type: ignore[method-assign]
    face = tool.start()
    assert face.health().ready
    tool.close()


def test_the_owner_of_a_lock_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election_module, "START_S", 0.05)
    lock = DirectoryLock.acquire(tmp_path, 0)
    home = house(tmp_path)
    with pytest.raises(RemoteError, match=r"written by pid \d+ on host .* not answer"):
        home.enter()
    lock.release()


def test_a_full_writer_rejects_a_process_by_name(tmp_path: Path) -> None:
    home = house(tmp_path, sessions_max=1)
    home.enter()
    home.enter()
    with pytest.raises(BoundReachedError, match="allowed: 1"):
        home.enter(may_write=False)


def test_paths_longer_than_a_socket_takes(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 100) / ("e" * 100)
    home = house(directory)
    home.enter()
    _, member = home.enter()
    done(member.put_topic(TopicInfo("orders", 0, 1), soon()))
    assert (directory / SOCKET_FILE).is_socket()


def test_a_clean_stop_leaves_only_the_lock_file(home: SessionsRig, tmp_path: Path) -> None:
    election, face = home.enter()
    done(face.drain(soon()))
    face.close()
    face.close()
    election.close()
    assert [path.name for path in tmp_path.iterdir()] == ["writer.lock"]


def test_members_of_a_draining_writer_queue_new_requests(home: SessionsRig) -> None:
    home.make()
    _, writer = home.enter()
    second, member = home.enter()
    home.engine.pause_writes()
    under_way = member.append([record()], soon())
    until(lambda: home.engine.appends, "it is at the engine")
    drained: Completion[None] = writer.drain(soon())
    until(lambda: second._member is not None and second._member.link.is_writer_leaving, "members know")
    pending_append: Completion[list[AppendResult]] = member.append([record()], soon())
    home.engine.resume_writes()
    assert done(under_way)[0].status is AppendStatus.STORED
    done(drained)
    assert not pending_append.done
    home.engine, old = PlayedMemory(CLOCK), home.engine  # type: ignore[assignment]
    done(home.engine.put_topic(TopicInfo("orders", 0, 1), soon()))
    writer.close()
    assert done(pending_append)[0].status is AppendStatus.STORED
    old.end()
    home.engine.end = home.engine.close  # type: ignore[method-assign]


@pytest.mark.slow
def test_the_lock_of_another_process_makes_this_one_a_member(tmp_path: Path) -> None:
    """A real second process; what crosses is the real socket."""
    script = Path(__file__).with_name("writer_process.py")
    writer = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        home = house(tmp_path)
        election, face = home.enter(may_write=False)
        assert not election.is_writer
        done(face.put_topic(TopicInfo("orders", 0, 1), soon()))
        assert done(face.append([record()], soon()))[0].offset == 0
    finally:
        writer.kill()
        writer.communicate()


def test_a_server_that_never_welcomes_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election_module, "HANDSHAKE_S", 0.05)
    monkeypatch.setattr(election_module, "TOOL_START_S", 0.1)
    server = RawServer(tmp_path)
    home = house(tmp_path)
    with pytest.raises(RemoteError, match="no server is running"):
        home.enter(may_write=False)
    server.close()
