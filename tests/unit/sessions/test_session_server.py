"""The writer's socket against a client that speaks bytes: bounds, bad input, silence, pushes."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import gevent
import pytest

from backend.file_log.sessions import codec
from backend.file_log.sessions.pipe import HEAD, MAGIC, VERSION, FrameKind
from backend.file_log.sessions.server import SOCKET_FILE
from backend.records import Capabilities, TopicInfo
from ddmq_common.errors import BoundReachedError, RemoteError, UnknownTopicError
from ddmq_common.metrics import catalogue
from tests.support.waits import done, soon, until
from tests.unit.sessions.session_kit import RawClient, SessionsRig, house, queue, record


class FailingListener:
    """Has no descriptors left for the first few tries."""

    def __init__(self, failures: int) -> None:
        self.listener: socket.socket
        self.failures = failures
        self.tried = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.tried += 1
        if self.tried <= self.failures:
            raise OSError(errno.EMFILE, "Too many open files")
        return self.listener.accept()


def append_body(*bodies: bytes, topic: str = "orders") -> bytes:
    return codec.encode((5000, [record(topic, 0, body) for body in bodies]))


def wait_body(offset: int, remaining_ms: int = 20_000) -> bytes:
    return codec.encode((queue(), offset, remaining_ms))


def test_a_welcome_brings_the_complete_state(home: SessionsRig, tmp_path: Path) -> None:
    home.make("orders", 3)
    server = home.serve()
    client = RawClient(tmp_path, greet=False)
    client.send(FrameKind.HELLO, 0, codec.encode((MAGIC, VERSION, "test")))
    welcome = client.next(FrameKind.WELCOME)
    version, silence_ms, _, capabilities, cluster, broker = codec.decode_welcome(welcome[2])
    assert (version, silence_ms, cluster, broker) == (VERSION, 10_000, "R_default", "a")
    assert Capabilities(*capabilities) == home.engine.capabilities
    rows, deleted = codec.decode_topics(client.next(FrameKind.TOPICS, FrameKind.READY)[2])
    assert [row[:3] for row in rows] == [("orders", 1, 3)]
    assert deleted == []
    client.next(FrameKind.READY)
    assert server.session_count == 1


def test_only_the_owner_may_connect(home: SessionsRig, tmp_path: Path) -> None:
    home.serve()
    assert stat.S_IMODE((tmp_path / SOCKET_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize(("uid", "accepted"), [(os.geteuid(), True), (0, True), (os.geteuid() + 1, False)])
def test_a_member_of_another_user_is_rejected(
    home: SessionsRig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    uid: int,
    accepted: bool,
) -> None:
    """Root's are taken: it reads the directory anyway."""
    server = home.serve()
    client = RawClient(tmp_path, greet=False)
    monkeypatch.setattr(
        "backend.file_log.sessions.server.peer_uid", lambda _: uid
    )  # asked when the writer accepts
    client.send(FrameKind.HELLO, 0, codec.encode((MAGIC, VERSION, "test")))
    if accepted:
        client.next(FrameKind.READY)
    else:
        client.wait_closed()
    assert server.session_count == accepted
    assert home.metrics.cell(catalogue.SESSION_REFUSED, "user").value == (not accepted)
    assert ("of another user is refused" in caplog.text) is not accepted


@pytest.mark.parametrize(
    "data",
    [
        HEAD.pack(0xFFFF_FFFF, FrameKind.APPEND, 1),
        HEAD.pack(4, 60, 1) + b"\x00" * 4,
        HEAD.pack(1, FrameKind.APPEND, 1) + b"\xc1",
        HEAD.pack(0, FrameKind.COMMIT, 1),
        HEAD.pack(2, FrameKind.HELLO, 0) + b"\x91\x01",
        HEAD.pack(5, FrameKind.READ, 1) + b"\xdd\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
@pytest.mark.parametrize("greet", [True, False])
def test_a_malformed_frame_ends_only_its_session(
    home: SessionsRig, tmp_path: Path, data: bytes, greet: bool
) -> None:
    server = home.serve()
    other = RawClient(tmp_path)
    bad = RawClient(tmp_path, greet)
    bad.raw(data)
    bad.wait_closed()
    other.send(FrameKind.PING, 0, b"")
    other.next(FrameKind.PONG)
    assert server.session_count == 1
    assert home.metrics.cell(catalogue.SESSIONS_ENDED, "malformed").value == 1


def test_another_version_is_rejected_by_name(home: SessionsRig, tmp_path: Path) -> None:
    home.serve()
    client = RawClient(tmp_path, greet=False)
    client.send(FrameKind.HELLO, 0, codec.encode((MAGIC, 9, "newer")))
    error = codec.error_from(codec.decode_error(client.next(FrameKind.ERROR)[2]))
    assert isinstance(error, RemoteError)
    assert "speaks session protocol 5, not ddmq-session 9" in str(error)
    client.wait_closed()


def test_sessions_are_bounded(tmp_path: Path) -> None:
    home = house(tmp_path, sessions_max=2)
    server = home.serve()
    first = RawClient(tmp_path)
    RawClient(tmp_path)
    third = RawClient(tmp_path, greet=False)
    error = codec.error_from(codec.decode_error(third.next(FrameKind.ERROR)[2]))
    assert isinstance(error, BoundReachedError)
    third.wait_closed()
    assert home.metrics.cell(catalogue.SESSION_REFUSED, "sessions").value == 1
    first.close()
    until(lambda: server.session_count == 1, "the first session's end is seen")
    RawClient(tmp_path)


def test_without_descriptors_sessions_are_accepted_only_once_some_are_free(tmp_path: Path) -> None:
    home = house(tmp_path, silence_s=0.4)
    server = home.serve()
    listener, failing = server._listener, FailingListener(2)
    server._listener = failing  # type: ignore[assignment]
    failing.listener = listener
    client = RawClient(tmp_path)
    client.send(FrameKind.PING, 0, b"")
    client.next(FrameKind.PONG)
    assert failing.tried == 4, "two failures, one connection, nobody more"
    assert home.metrics.cell(catalogue.SESSION_REFUSED, "descriptors").value == 2
    server._listener = listener


def test_requests_are_bounded_and_the_others_continue(tmp_path: Path) -> None:
    home = house(tmp_path, requests_max=3)
    home.make()
    home.serve()
    client = RawClient(tmp_path)
    for ident in range(1, 5):
        client.send(FrameKind.WAIT, ident, wait_body(0))
    _, ident, body = client.next(FrameKind.ERROR)
    assert ident == 4
    assert isinstance(codec.error_from(codec.decode_error(body)), BoundReachedError)
    client.send(FrameKind.UNWAIT, 2, b"")
    client.send(FrameKind.APPEND, 9, append_body(b"x"))
    answered = {client.next(FrameKind.ANSWER)[1] for _ in range(3)}
    assert answered == {1, 3, 9}


def test_bytes_in_flight_stop_the_reading_until_answers_leave(tmp_path: Path) -> None:
    home = house(tmp_path, in_flight_bytes_max=4000, silence_s=0.4)
    home.make()
    server = home.serve()
    client = RawClient(tmp_path)
    home.engine.pause_writes()
    for ident in range(1, 11):
        client.send(FrameKind.APPEND, ident, append_body(b"x" * 1000))
    until(lambda: home.engine.appends, "the first is taken")
    client.send(FrameKind.PING, 0, b"")
    for _ in range(3):
        server.end_silent_sessions()
    assert home.engine.appends == 4
    home.engine.resume_writes()
    assert [client.next(FrameKind.ANSWER)[1] for _ in range(10)] == list(range(1, 11))
    client.next(FrameKind.PONG)


def test_a_session_that_reads_no_answers_is_closed(tmp_path: Path) -> None:
    home = house(tmp_path, out_bytes_max=1 << 20)
    home.make()
    server = home.serve()
    client = RawClient(tmp_path)
    done(home.engine.append([record(body=b"x" * 400_000)], soon()))
    for ident in range(1, 40):
        client.send(FrameKind.READ, ident, codec.encode((queue(), 0, 1, 1 << 20)))
    until(lambda: server.session_count == 0, "the session is ended")
    assert home.metrics.cell(catalogue.SESSIONS_ENDED, "untaken").value == 1


@pytest.mark.slow
def test_silence_ends_a_session_and_frees_its_queues(tmp_path: Path) -> None:
    home = house(tmp_path, silence_s=1.5)
    home.make()
    server = home.serve()
    silent, living = RawClient(tmp_path), RawClient(tmp_path)
    silent.send(FrameKind.JOIN, 1, codec.encode(("g", "orders", "whole topic", None, "", "")))
    first = codec.decode_assigned(silent.next(FrameKind.ASSIGNED)[2])
    living.send(FrameKind.JOIN, 1, codec.encode(("g", "orders", "whole topic", None, "", "")))

    def is_silent_closed() -> bool:
        living.send(FrameKind.PING, 0, b"")
        gevent.sleep(0.001)  # so that the server reads what is sent
        return server.session_count == 1

    until(is_silent_closed, "the silent session is ended")
    assert home.metrics.cell(catalogue.SESSIONS_ENDED, "silent").value == 1
    second = codec.decode_assigned(living.next(FrameKind.ASSIGNED)[2])
    assert second[0] == first[0]
    assert second[1] > first[1]


def test_the_end_of_the_socket_frees_its_queues(home: SessionsRig, tmp_path: Path) -> None:
    home.make()
    home.serve()
    first, second = RawClient(tmp_path), RawClient(tmp_path)
    first.send(FrameKind.JOIN, 1, codec.encode(("g", "orders", "whole topic", None, "", "")))
    first.next(FrameKind.ASSIGNED)
    second.send(FrameKind.JOIN, 1, codec.encode(("g", "orders", "whole topic", None, "", "")))
    first.close()
    second.next(FrameKind.ASSIGNED)


def test_the_engine_learns_whether_its_files_have_readers(home: SessionsRig, tmp_path: Path) -> None:
    home.serve()
    first, second = RawClient(tmp_path), RawClient(tmp_path)
    for client in (first, second):
        client.send(FrameKind.READS_FILES, 0, b"")
    until(lambda: home.readers == [True], "the engine is told once")
    first.close()
    second.close()
    until(lambda: home.readers == [True, False], "and of the end")


@pytest.mark.slow
def test_a_commit_wakes_only_its_sessions_with_one_write_each(home: SessionsRig, tmp_path: Path) -> None:
    home.make("orders", 4)
    home.serve()
    waiting, other = RawClient(tmp_path), RawClient(tmp_path)
    for number in range(4):
        waiting.send(FrameKind.WAIT, number + 1, codec.encode((queue("orders", number), 0, 20_000)))
    waiting.send(FrameKind.PING, 0, b"")
    waiting.next(FrameKind.PONG)
    done(home.engine.append([record("orders", number) for number in range(4)], soon()))
    until(lambda: waiting.unread, "the wake-up")
    assert waiting.unread == [FrameKind.ANSWER] * 4
    assert other.unread == []


def test_changes_are_pushed_to_everyone(home: SessionsRig, tmp_path: Path) -> None:
    home.serve()
    client = RawClient(tmp_path)
    done(home.engine.put_topic(TopicInfo("bills", 0, 2), soon()))
    assert codec.decode_topics(client.next(FrameKind.TOPICS)[2])[0][0][:3] == ("bills", 1, 2)
    done(home.engine.delete_topic("bills", soon()))
    assert codec.decode_topics(client.next(FrameKind.TOPICS)[2]) == ([], ["bills"])


def test_errors_of_the_engine_close_the_session(home: SessionsRig, tmp_path: Path) -> None:
    home.serve()
    client = RawClient(tmp_path)
    client.send(FrameKind.DELETE_TOPIC, 1, codec.encode((1000, "nowhere")))
    error = codec.error_from(codec.decode_error(client.next(FrameKind.ERROR)[2]))
    assert isinstance(error, UnknownTopicError)
    client.send(FrameKind.READ, 2, codec.encode((queue(), -1, 1, 1)))
    _, ident, body = client.next(FrameKind.ERROR)
    assert ident == 2
    assert isinstance(codec.error_from(codec.decode_error(body)), ValueError)


def test_frames_may_arrive_in_any_fragments(home: SessionsRig, tmp_path: Path) -> None:
    home.make()
    home.serve()
    client = RawClient(tmp_path)
    body = append_body(b"x" * 300)
    stream = b"".join(HEAD.pack(len(body), FrameKind.APPEND, ident) + body for ident in range(1, 4))
    for at in range(0, len(stream), 97):
        client.raw(stream[at : at + 97])
        gevent.sleep(0)
    assert [client.next(FrameKind.ANSWER)[1] for _ in range(3)] == [1, 2, 3]
