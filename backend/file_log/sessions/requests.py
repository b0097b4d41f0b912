"""The requests of a session: one table of their kinds, and a member's unsettled requests.

REQUEST_KINDS states for each kind how the request is encoded, which call of the port it makes, how the answer
is encoded, and whether it may be resent. The member creates requests by this table, the writer serves them by
it.

Rules for a member's requests:
* A request that may be repeated without harm (`can_resend`) is resent to the next writer; so is a commit of
  only finished ranges and attempts. Any other request that was sent and not answered is settled with an
  unknown outcome.
* A request that was never sent is certainly not stored, and its error says so. A request that a draining
  writer rejects counts as never sent: it goes to the next writer.
* `reissue_on` makes the call on another Backend instead (this process has become the writer).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from backend.completion import Completion, guarded, relay
from backend.file_log.sessions import codec
from backend.file_log.sessions.pipe import FrameKind, timeout_ms
from backend.port import Backend, FindCall, Wait
from backend.records import (
    AppendResult,
    AppendStatus,
    CommitBatch,
    Durability,
    NewRecord,
    QueueRef,
    TopicInfo,
)
from ddmq_common.errors import DrainingError, RemoteError, TryLaterError

OnClock = Callable[[int], None]  # the store's clock, ms
RECORD_BYTES = 96  # what a record weighs besides its delivery bytes
TOPIC_KEY = "topic/"  # how Backend.watch_settings names a changed topic


class SessionRequestKind(NamedTuple):
    """One kind of request: the encoding of its body and the backend method that it calls.

    docs/formats-sessions.md describes the bytes.

    * `encode(arguments, remaining_ms)` makes the body of a request, `decode` reads it back as (remaining_ms,
      arguments); remaining_ms is None for a call without a deadline of its own.
    * `call(backend, arguments, deadline, into)` makes the call of the port; `into` is settled with its
      result.
    * `encode_answer(backend, result)` makes the body of the answer, `decode_answer(arguments, body)` reads
      it.
    * `can_resend`: it may be sent again after a lost session.
    * `changed_keys(arguments)`: the changed topics and settings, as watchers name them; the member gets that
      before its answer, so that it reads its own writes.
    """

    encode: Callable[[Any, int], Any]
    decode: Callable[[codec.Body], tuple[int | None, Any]]
    call: Callable[[Backend, Any, float, Completion[Any]], object]
    encode_answer: Callable[[Backend, Any], bytes]
    decode_answer: Callable[[Any, bytes], Any]
    can_resend: bool = True
    changed_keys: Callable[[Any], Iterable[str]] = lambda arguments: ()


_TopicBody = tuple[int, codec.TopicRow, int | None]
_decode_put_topic: Callable[[codec.Body], _TopicBody] = codec.make_decoder(_TopicBody)
_decode_delete_topic: Callable[[codec.Body], tuple[int, str]] = codec.make_decoder(tuple[int, str])
_decode_time: Callable[[codec.Body], tuple[QueueRef, int]] = codec.make_decoder(tuple[QueueRef, int])
_FindBody = tuple[str, bytes | None, bytes | None, int]
_decode_find: Callable[[codec.Body], _FindBody] = codec.make_decoder(_FindBody)
_GroupBody = tuple[str, list[QueueRef]]
_decode_progress: Callable[[codec.Body], _GroupBody] = codec.make_decoder(_GroupBody)
_decode_group: Callable[[codec.Body], tuple[str, str]] = codec.make_decoder(tuple[str, str])


def _put_topic_arguments(body: codec.Body) -> tuple[int, tuple[TopicInfo, int | None]]:
    remaining_ms, row, topics_max = _decode_put_topic(body)
    return remaining_ms, (TopicInfo(*row), topics_max)


def _encode_results(backend: Backend, results: Sequence[AppendResult]) -> bytes:
    return codec.encode_results(backend.clock_ms(), results)


def _call_find(backend: Backend, call: FindCall, into: Completion[Any]) -> None:
    records = backend.find(call.topic, key=call.key, message_id=call.message_id, count_max=call.count_max)
    relay(records, into)


REQUEST_KINDS: dict[int, SessionRequestKind] = {
    FrameKind.APPEND: SessionRequestKind(
        lambda records, remaining_ms: (remaining_ms, records),
        codec.decode_append,
        lambda backend, records, deadline, into: backend.append(records, deadline, into),
        _encode_results,
        lambda _, body: codec.decode_results(body),
        can_resend=False,
    ),
    FrameKind.COMMIT: SessionRequestKind(  # sent again if it only finishes offsets: SessionCommit
        codec.commit_row,
        codec.decode_commit,
        lambda backend, batch, deadline, into: backend.commit(batch, deadline, into),
        _encode_results,
        lambda _, body: codec.decode_results(body),
        can_resend=False,
        changed_keys=lambda batch: batch.settings,
    ),
    FrameKind.PUT_TOPIC: SessionRequestKind(
        lambda arguments, remaining_ms: (remaining_ms, codec.topic_row(arguments[0]), arguments[1]),
        _put_topic_arguments,
        lambda backend, arguments, deadline, into: backend.put_topic(
            arguments[0], deadline, into, arguments[1]
        ),
        lambda _, info: codec.encode(codec.topic_row(info)),
        lambda _, body: TopicInfo(*codec.decode_topic(body)),
        changed_keys=lambda arguments: (TOPIC_KEY + arguments[0].name,),
    ),
    FrameKind.DELETE_TOPIC: SessionRequestKind(
        lambda name, remaining_ms: (remaining_ms, name),
        _decode_delete_topic,
        lambda backend, name, deadline, into: relay(backend.delete_topic(name, deadline), into),
        lambda _, nothing: codec.encode(None),
        lambda _, body: None,
        can_resend=False,
        changed_keys=lambda name: (TOPIC_KEY + name,),
    ),
    FrameKind.READ: SessionRequestKind(
        lambda call, _: call,
        lambda body: (None, codec.decode_read_call(body)),
        lambda backend, call, _, into: backend.read(
            call.queue, call.offset, call.count_max, call.bytes_max, into, call.tags
        ),
        lambda _, batch: codec.encode_read(batch),
        lambda call, body: codec.decode_read(call.queue, body),
    ),
    FrameKind.BOUNDS: SessionRequestKind(
        lambda queues, _: queues,
        lambda body: (None, codec.decode_queues(body)),
        lambda backend, queues, _, into: relay(backend.bounds(queues), into),
        lambda _, bounds: codec.encode(bounds),
        lambda _, body: codec.decode_bounds(body),
    ),
    FrameKind.OFFSET_FOR_TIME: SessionRequestKind(
        lambda arguments, _: arguments,
        lambda body: (None, _decode_time(body)),
        lambda backend, arguments, _, into: relay(backend.offset_for_time(*arguments), into),
        lambda _, offset: codec.encode(offset),
        lambda _, body: codec.decode_number(body),
    ),
    FrameKind.FIND: SessionRequestKind(
        lambda call, _: call,
        lambda body: (None, FindCall(*_decode_find(body))),
        lambda backend, call, _, into: _call_find(backend, call, into),
        lambda _, records: codec.encode(records),
        lambda _, body: codec.decode_stored(body),
    ),
    FrameKind.PROGRESS: SessionRequestKind(
        lambda arguments, _: arguments,
        lambda body: (None, _decode_progress(body)),
        lambda backend, arguments, _, into: relay(backend.progress(*arguments), into),
        lambda _, views: codec.encode([codec.view_row(view) for view in views]),
        lambda _, body: codec.decode_views(body),
    ),
    FrameKind.HOLDERS: SessionRequestKind(
        lambda arguments, _: arguments,
        lambda body: (None, _decode_group(body)),
        lambda backend, arguments, deadline, into: relay(
            backend.holders(arguments[0], arguments[1], deadline), into
        ),
        lambda _, holders: codec.encode_holders(holders),
        lambda _, body: codec.decode_holders(body),
    ),
}


def unknown_outcome(request: str) -> RemoteError:
    """Return the error for a request that was sent but not answered, so that its outcome is unknown."""
    return RemoteError(f"the writer was gone or late before it answered {request}; the outcome is unknown")


def not_sent(request: str) -> TryLaterError:
    """Return the error for a request that was never sent."""
    return TryLaterError(
        f"{request} was not sent: no writer was reachable before its deadline; nothing is stored"
    )


class SessionRequest(ABC):
    """One request of a member to the writer.

    `size`: the bytes that it counts against the bound of the session.
    """

    __slots__ = ("can_resend", "deadline", "ident", "is_sent", "kind", "number", "size")

    def __init__(self, kind: FrameKind, deadline: float, size: int = 64, can_resend: bool = True) -> None:
        self.kind = kind
        self.can_resend = can_resend
        self.deadline = deadline
        self.size = size
        self.ident = 0
        self.number = 0  # in the order of the calls
        self.is_sent = False

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether every caller has been answered."""

    @abstractmethod
    def encode_body(self, now: float) -> bytes:
        """Encode the request body; deadlines become the time left from `now`."""

    @abstractmethod
    def on_answer(self, body: bytes, on_clock: OnClock) -> bool:
        """Settle with the answer; if the answer contains the store's clock, pass that to `on_clock` first.

        Return False when it is not settled: the writer was draining, the request must go to the next one.
        """

    @abstractmethod
    def on_error(self, error: Exception) -> None:
        """Settle with an error that the writer returned."""

    def fail(self, error: Exception) -> None:
        """Settle with `error` unchanged; used when the session is closed."""
        self.on_error(error)

    @abstractmethod
    def reissue_on(self, backend: Backend) -> Completion[Any] | None:
        """Make the call on `backend` instead of the session.

        Returns the completion if the call is a commit.
        """

    def settle_expired(self, now: float) -> float | None:
        """Settle the calls past their deadline.

        Return the next deadline, or None if every call is settled.
        """
        self.settle_unknown()
        return None

    def settle_unknown(self) -> None:
        """Settle with an unknown outcome: no answer will come, or only after the deadline."""
        if not self.is_done:
            name = self.kind.name.lower()
            self.on_error(unknown_outcome(name) if self.is_sent else not_sent(name))


def append_bytes(records: Sequence[NewRecord]) -> int:
    """Return how many bytes these records count against the bound of outstanding requests."""
    size = RECORD_BYTES * len(records)
    for record in records:
        size += len(record.delivery)
    return size


class AppendCall:
    """One call of `append`; several calls travel in one AppendFrame."""

    __slots__ = ("completion", "deadline", "records")

    def __init__(
        self, records: Sequence[NewRecord], deadline: float, completion: Completion[list[AppendResult]]
    ) -> None:
        self.records = records
        self.deadline = deadline
        self.completion = completion

    def settle_all(self, status: AppendStatus, error: Exception) -> None:
        """Settle the call with the same result for each of its records."""
        result = AppendResult(status, -1, Durability.WRITTEN, error)
        self.completion.succeed([result] * len(self.records))


class AppendFrame(SessionRequest):
    """The `append` calls of one turn of the hub, sent as one frame in their order."""

    __slots__ = ("calls",)

    def __init__(self, calls: list[AppendCall], size: int) -> None:
        super().__init__(FrameKind.APPEND, min(call.deadline for call in calls), size, can_resend=False)
        self.calls = calls

    @property
    def is_done(self) -> bool:
        return all(call.completion.done for call in self.calls)

    def encode_body(self, now: float) -> bytes:
        self.calls = [call for call in self.calls if not call.completion.done]
        remaining_ms = timeout_ms(max([call.deadline for call in self.calls], default=now), now)
        return codec.encode((remaining_ms, [record for call in self.calls for record in call.records]))

    def on_answer(self, body: bytes, on_clock: OnClock) -> bool:
        clock_ms, results = codec.decode_results(body)
        on_clock(clock_ms)
        if results and all(isinstance(result.error, DrainingError) for result in results):
            return False
        start = 0
        for call in self.calls:
            end = start + len(call.records)
            if not call.completion.done:
                guarded(call.completion.succeed, results[start:end])
            start = end
        return True

    def on_error(self, error: Exception) -> None:
        is_unknown = isinstance(error, RemoteError)
        self._settle_all(AppendStatus.UNKNOWN if is_unknown else AppendStatus.REFUSED, error)

    def settle_unknown(self) -> None:
        if self.is_sent:
            self._settle_all(AppendStatus.UNKNOWN, unknown_outcome("append"))
        else:
            self._settle_all(AppendStatus.NOT_STORED, not_sent("append"))

    def _settle_all(self, status: AppendStatus, error: Exception) -> None:
        for call in self.calls:
            if not call.completion.done:
                guarded(call.settle_all, status, error)

    def fail(self, error: Exception) -> None:
        for call in self.calls:
            if not call.completion.done:
                guarded(call.completion.fail, error)

    def settle_expired(self, now: float) -> float | None:
        next_deadline: float | None = None
        status = AppendStatus.UNKNOWN if self.is_sent else AppendStatus.NOT_STORED
        for call in self.calls:
            if call.completion.done:
                continue
            if call.deadline <= now:
                error = unknown_outcome("append") if self.is_sent else not_sent("append")
                guarded(call.settle_all, status, error)
            elif next_deadline is None or call.deadline < next_deadline:
                next_deadline = call.deadline
        return next_deadline

    def split_calls(self) -> list[AppendFrame]:
        """Return one frame per call, so that an invalid call does not reject the others."""
        return [
            AppendFrame([call], append_bytes(call.records)) for call in self.calls if not call.completion.done
        ]

    def reissue_on(self, backend: Backend) -> None:
        for call in self.calls:
            if not call.completion.done:
                backend.append(call.records, call.deadline, call.completion)


class SessionCommit(SessionRequest):
    """A commit request to the writer."""

    __slots__ = ("batch", "completion")

    def __init__(
        self, batch: CommitBatch, deadline: float, completion: Completion[list[AppendResult]]
    ) -> None:
        size = sum(len(record.delivery) + RECORD_BYTES for record in batch.records)
        size += sum(64 + 16 * (len(delta.finished) + len(delta.attempts)) for delta in batch.progress)
        size += sum(len(key) + len(value or b"") for key, value in batch.settings.items())
        has_reset = any(delta.reset_to is not None for delta in batch.progress)
        can_resend = not (batch.records or batch.settings or has_reset)
        super().__init__(FrameKind.COMMIT, deadline, size, can_resend)
        self.batch = batch
        self.completion = completion

    @property
    def is_done(self) -> bool:
        return self.completion.done

    def encode_body(self, now: float) -> bytes:
        return codec.encode(codec.commit_row(self.batch, timeout_ms(self.deadline, now)))

    def on_answer(self, body: bytes, on_clock: OnClock) -> bool:
        clock_ms, results = codec.decode_results(body)
        on_clock(clock_ms)
        self.completion.succeed(results)
        return True

    def on_error(self, error: Exception) -> None:
        self.completion.fail(error)

    def reissue_on(self, backend: Backend) -> Completion[Any]:
        answer = backend.commit(self.batch, self.deadline)
        relay(answer, self.completion)
        return answer


class PlainRequest(SessionRequest):
    """A request whose body is encoded once; a time left in it counts from the moment of sending."""

    __slots__ = ("_arguments", "_body", "completion")

    def __init__(
        self, kind: FrameKind, arguments: Any, completion: Completion[Any], deadline: float, now: float
    ) -> None:
        description = REQUEST_KINDS[kind]
        self._arguments = arguments
        self._body = codec.encode(description.encode(arguments, timeout_ms(deadline, now)))
        super().__init__(kind, deadline, len(self._body) + 64, description.can_resend)
        self.completion = completion

    @property
    def is_done(self) -> bool:
        return self.completion.done

    def encode_body(self, now: float) -> bytes:
        return self._body

    def on_answer(self, body: bytes, on_clock: OnClock) -> bool:
        self.completion.succeed(REQUEST_KINDS[self.kind].decode_answer(self._arguments, body))
        return True

    def on_error(self, error: Exception) -> None:
        self.completion.fail(error)

    def reissue_on(self, backend: Backend) -> None:
        REQUEST_KINDS[self.kind].call(backend, self._arguments, self.deadline, self.completion)


class WaitRequest(SessionRequest):
    """A wait parked at the writer; at its deadline it succeeds with False."""

    __slots__ = ("_offset", "_queue", "wait")

    def __init__(self, queue: QueueRef, offset: int, deadline: float, wait: Wait) -> None:
        super().__init__(FrameKind.WAIT, deadline)
        self._queue, self._offset, self.wait = queue, offset, wait

    @property
    def is_done(self) -> bool:
        return self.wait.done or self.wait.cancelled

    def encode_body(self, now: float) -> bytes:
        return codec.encode((self._queue, self._offset, timeout_ms(self.deadline, now)))

    def on_answer(self, body: bytes, on_clock: OnClock) -> bool:
        self.wait.succeed(codec.decode_flag(body))
        return True

    def on_error(self, error: Exception) -> None:
        self.wait.fail(error)

    def settle_unknown(self) -> None:
        if not self.is_done:
            self.wait.succeed(False)

    def reissue_on(self, backend: Backend) -> None:
        backend.wait(self._queue, self._offset, self.deadline, self.wait)
