"""The lock file or the writer's socket deleted by hand: never two writers, and the socket comes back."""

from __future__ import annotations

from backend.file_log.lock import LOCK_FILE
from backend.file_log.sessions.member import MemberBackend
from backend.file_log.sessions.server import SOCKET_FILE
from backend.records import AppendStatus
from ddmq_client.idl.codes import Code
from ddmq_common.errors import NotWriterError
from proxy_producer.core.rejections import failure_of
from tests.support.waits import done, soon, until
from tests.unit.sessions.pair import Pair
from tests.unit.sessions.session_kit import record


def test_a_deleted_lock_file_makes_no_second_writer(pair: Pair) -> None:
    pair.make()
    (pair.directory / LOCK_FILE).unlink()
    third = pair.enter()
    assert isinstance(third.current, MemberBackend), "the writer's socket answers"
    assert len(pair.logs) == 1


def test_a_writer_whose_lock_file_was_deleted_stops_writing(pair: Pair) -> None:
    pair.make()
    [log] = pair.logs
    assert done(log.append([record()], soon()))[0].status is AppendStatus.STORED
    (pair.directory / LOCK_FILE).unlink()
    (pair.directory / LOCK_FILE).touch()
    assert log._retention.run_once() == []
    result = done(log.append([record()], soon()))[0]
    assert result.status is AppendStatus.REFUSED
    assert isinstance(result.error, NotWriterError)
    assert "lock file" in str(result.error)
    assert failure_of(result).code == Code.NO_SERVICE, "clients know that it is not stored"
    sent = done(pair.enter().append([record()], soon()))[0]
    assert (sent.status, type(sent.error)) == (AppendStatus.REFUSED, NotWriterError), "members hear the same"
    assert not log.health().ready
    assert "lock file" in log.health().reason


def test_a_deleted_socket_is_recreated(pair: Pair) -> None:
    queue = pair.make()
    (pair.directory / SOCKET_FILE).unlink()
    server = pair.elections[0]._server
    assert server is not None
    server.end_silent_sessions()
    third = pair.enter()
    assert isinstance(third.current, MemberBackend)
    until(lambda: third.topic("orders") is not None, "the topic")
    assert done(third.append([record()], soon()))[0].status is AppendStatus.STORED
    assert len(pair.bodies(queue)) == 1, "sessions from before go on"
