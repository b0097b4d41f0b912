"""What the writer does with each kind of request: decode, hand to the engine, encode what it answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from backend.completion import Completion, relay
from backend.file_log.sessions import codec
from backend.file_log.sessions.mirror import TOPIC_KEY, change
from backend.file_log.sessions.pipe import FrameKind, ProtocolError, deadline_of
from backend.file_log.sessions.session import RemoteListener, RequestAnswer, Session, WaitAnswer
from backend.records import AppendResult, ProgressView, QueueRef, TopicInfo
from ddmq_common.errors import BoundReachedError, DdmqError

log = logging.getLogger(__name__)


class _Read(msgspec.Struct, array_like=True):
    queue: QueueRef
    offset: int
    count_max: int
    bytes_max: int
    tags: list[int] | None = None  # added later: absent from older members


_hello: Callable[[bytes], tuple[str, int, str]] = codec.decoder(tuple[str, int, str])
_put_topic: Callable[[bytes], tuple[int, codec.TopicRow, int | None]] = codec.decoder(
    tuple[int, codec.TopicRow, int | None]
)
_delete_topic: Callable[[bytes], tuple[int, str]] = codec.decoder(tuple[int, str])
_read: Callable[[bytes], _Read] = codec.decoder(_Read)
_wait: Callable[[bytes], tuple[QueueRef, int, int]] = codec.decoder(tuple[QueueRef, int, int])
_time: Callable[[bytes], tuple[QueueRef, int]] = codec.decoder(tuple[QueueRef, int])
_find: Callable[[bytes], tuple[str, bytes | None, bytes | None, int]] = codec.decoder(
    tuple[str, bytes | None, bytes | None, int]
)
_progress: Callable[[bytes], tuple[str, list[QueueRef]]] = codec.decoder(tuple[str, list[QueueRef]])
_holders: Callable[[bytes], tuple[str, str]] = codec.decoder(tuple[str, str])


def serve(session: Session, kind: int, ident: int, body: bytes) -> None:
    """Serve one request. Raises msgspec.MsgspecError or ProtocolError when it is malformed."""
    handler = _HANDLERS.get(kind)
    if handler is None:
        raise ProtocolError("no such request")
    handler(session, ident, body)


def _taken(session: Session, ident: int, body: bytes, encode: Callable[[Any], bytes]) -> RequestAnswer:
    session.admit(len(body))
    return RequestAnswer(session, ident, len(body), encode)


def _ask(answer: RequestAnswer | WaitAnswer, call: Callable[[], object]) -> None:
    """Call the engine; what it raises at once becomes the answer, so that nothing stays accounted."""
    try:
        call()
    except Exception as error:
        if not isinstance(error, (DdmqError, ValueError)):
            log.exception("a call into the engine failed")
        if not answer.done:
            answer.fail(error)


def _relay(answer: RequestAnswer, call: Callable[[], Completion[Any]]) -> None:
    """The same for calls of the port that take no `into`."""
    _ask(answer, lambda: relay(call(), answer))


def _deadline(session: Session, left_ms: int) -> float:
    return deadline_of(left_ms, session.host.clock.monotonic())


def _on_hello(session: Session, ident: int, body: bytes) -> None:
    if session.welcomed:
        raise ProtocolError("a second HELLO")
    magic, version, name = _hello(body)
    session.welcome(name, magic, version)


def _on_ping(session: Session, ident: int, body: bytes) -> None:
    session.pong()


def _on_reads_files(session: Session, ident: int, body: bytes) -> None:
    session.reads_files = True
    session.host.readers_changed()


def _on_append(session: Session, ident: int, body: bytes) -> None:
    left_ms, records = codec.decode_append(body)
    host = session.host
    answer = _taken(
        session, ident, body, lambda results: codec.encode_results(host.backend.clock_ms(), results)
    )
    deadline = _deadline(session, left_ms)
    _ask(answer, lambda: host.backend.append(records, deadline, answer))


def _on_commit(session: Session, ident: int, body: bytes) -> None:
    left_ms, batch = codec.decode_commit(body)
    host = session.host

    def encode(results: list[AppendResult]) -> bytes:
        for key in batch.settings:  # a member reads its own writes
            session.pipe.send_frame(change(host.backend, key))
        return codec.encode_results(host.backend.clock_ms(), results)

    answer = _taken(session, ident, body, encode)
    _ask(answer, lambda: host.backend.commit(batch, _deadline(session, left_ms), answer))


def _on_put_topic(session: Session, ident: int, body: bytes) -> None:
    left_ms, row, topics_max = _put_topic(body)
    info, backend = TopicInfo(*row), session.host.backend

    def encode(stored: TopicInfo) -> bytes:
        session.pipe.send_frame(change(backend, TOPIC_KEY + stored.name))
        return codec.encode(codec.topic_row(stored))

    answer = _taken(session, ident, body, encode)
    _ask(answer, lambda: backend.put_topic(info, _deadline(session, left_ms), answer, topics_max))


def _on_delete_topic(session: Session, ident: int, body: bytes) -> None:
    left_ms, name = _delete_topic(body)
    backend = session.host.backend

    def encode(_: None) -> bytes:
        session.pipe.send_frame(change(backend, TOPIC_KEY + name))
        return codec.encode(None)

    answer = _taken(session, ident, body, encode)
    _relay(answer, lambda: backend.delete_topic(name, _deadline(session, left_ms)))


def _on_read(session: Session, ident: int, body: bytes) -> None:
    ask = _read(body)
    tags = None if ask.tags is None else frozenset(ask.tags)
    bytes_max = min(ask.bytes_max, session.host.limits.frame_bytes_max // 2)
    answer = _taken(session, ident, body, codec.encode_read)
    _ask(
        answer,
        lambda: session.host.backend.read(ask.queue, ask.offset, ask.count_max, bytes_max, answer, tags),
    )


def _on_wait(session: Session, ident: int, body: bytes) -> None:
    queue, offset, left_ms = _wait(body)
    if ident in session.waits:
        raise ProtocolError(f"wait {ident} is parked already")
    session.admit(0)
    wait = session.waits[ident] = WaitAnswer(session, ident)
    _ask(wait, lambda: session.host.backend.wait(queue, offset, _deadline(session, left_ms), wait))


def _on_unwait(session: Session, ident: int, body: bytes) -> None:
    wait = session.waits.pop(ident, None)
    if wait is not None:
        wait.cancel()
        session.settle(0)


def _on_bounds(session: Session, ident: int, body: bytes) -> None:
    queues = codec.decode_queues(body)
    _relay(_taken(session, ident, body, codec.encode), lambda: session.host.backend.bounds(queues))


def _on_offset_for_time(session: Session, ident: int, body: bytes) -> None:
    queue, wall_ms = _time(body)
    answer = _taken(session, ident, body, codec.encode)
    _relay(answer, lambda: session.host.backend.offset_for_time(queue, wall_ms))


def _on_find(session: Session, ident: int, body: bytes) -> None:
    topic, key, message_id, count = _find(body)
    answer, backend = _taken(session, ident, body, codec.encode), session.host.backend
    _relay(answer, lambda: backend.find(topic, key=key, message_id=message_id, count_max=count))


def _on_progress(session: Session, ident: int, body: bytes) -> None:
    group, queues = _progress(body)

    def encode(views: list[ProgressView]) -> bytes:
        return codec.encode([codec.view_row(view) for view in views])

    answer = _taken(session, ident, body, encode)
    _relay(answer, lambda: session.host.backend.progress(group, queues))


def _on_join(session: Session, ident: int, body: bytes) -> None:
    join = codec.decode_join(body)
    if ident in session.memberships:
        raise ProtocolError(f"membership {ident} exists already")
    limit = session.host.limits.memberships_max
    if len(session.memberships) >= limit:
        session.host.refused("memberships")
        raise BoundReachedError(f"the session has {limit} memberships; allowed: {limit}")
    listener = RemoteListener(session, ident)
    whose = f"{session.number:08d}/{join.member}"  # a session is a process: never ours, never another's
    session.memberships[ident] = session.host.backend.join(join._replace(member=whose), listener)


def _on_holders(session: Session, ident: int, body: bytes) -> None:
    group, topic = _holders(body)
    host = session.host
    answer = _taken(session, ident, body, codec.encode_holders)
    deadline = host.clock.monotonic() + host.limits.request_timeout_s
    _relay(answer, lambda: host.backend.holders(group, topic, deadline))


def _on_release(session: Session, ident: int, body: bytes) -> None:
    queues: Sequence[QueueRef] = codec.decode_queues(body)
    if ident in session.memberships:
        session.memberships[ident].release(queues)


def _on_leave(session: Session, ident: int, body: bytes) -> None:
    membership = session.memberships.pop(ident, None)
    if membership is not None:
        membership.leave()


_HANDLERS: dict[int, Callable[[Session, int, bytes], None]] = {
    FrameKind.HELLO: _on_hello,
    FrameKind.PING: _on_ping,
    FrameKind.APPEND: _on_append,
    FrameKind.COMMIT: _on_commit,
    FrameKind.PUT_TOPIC: _on_put_topic,
    FrameKind.DELETE_TOPIC: _on_delete_topic,
    FrameKind.READ: _on_read,
    FrameKind.WAIT: _on_wait,
    FrameKind.UNWAIT: _on_unwait,
    FrameKind.BOUNDS: _on_bounds,
    FrameKind.OFFSET_FOR_TIME: _on_offset_for_time,
    FrameKind.FIND: _on_find,
    FrameKind.PROGRESS: _on_progress,
    FrameKind.JOIN: _on_join,
    FrameKind.RELEASE: _on_release,
    FrameKind.LEAVE: _on_leave,
    FrameKind.READS_FILES: _on_reads_files,
    FrameKind.HOLDERS: _on_holders,
}
