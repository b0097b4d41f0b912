"""A member's requests: each knows its bytes, its answer, and what to say when none comes.

Rules:
* A request that may be repeated without harm (`resend`) is sent again to the next writer; so is a commit
  that holds nothing but finished ranges and attempts. Everything else that was sent and not answered is
  settled as unknown.
* A request never sent is certainly not stored and says so. What a draining writer refuses counts as
  never sent: the next writer is asked.
* `reissue` asks another Backend instead (this process has become the writer).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from backend.completion import Completion, guarded, relay
from backend.file_log.sessions import codec
from backend.file_log.sessions.pipe import FrameKind, timeout_ms
from backend.port import Backend, Wait
from backend.records import (
    AppendResult,
    AppendStatus,
    CommitBatch,
    Durability,
    NewRecord,
    QueueRef,
)
from ddmq_common.errors import DrainingError, RemoteError, TryLaterError

Tell = Callable[[int], None]  # the store's clock, ms
RECORD_BYTES = 96  # what a record weighs besides its delivery bytes


def gone(what: str) -> RemoteError:
    """The error of a request whose outcome nobody can tell."""
    return RemoteError(f"the writer was gone or late before it answered {what}; the outcome is unknown")


def unsent(what: str) -> TryLaterError:
    """The error of a request that never left this process."""
    return TryLaterError(
        f"{what} was not sent: no writer was reachable before its deadline; nothing is stored"
    )


class SessionRequest(ABC):
    """One request on its way. `size` is its weight in flight, in bytes."""

    __slots__ = ("deadline", "ident", "kind", "number", "resend", "sent", "size")

    def __init__(self, kind: FrameKind, deadline: float, size: int = 64, resend: bool = True) -> None:
        self.kind = kind
        self.resend = resend
        self.deadline = deadline
        self.size = size
        self.ident = 0
        self.number = 0  # in the order of the calls
        self.sent = False

    @property
    @abstractmethod
    def done(self) -> bool:
        """Nobody waits for it any more."""

    @abstractmethod
    def body(self, now: float) -> bytes:
        """Its bytes, deadlines as time left from `now`."""

    @abstractmethod
    def answered(self, body: bytes, tell: Tell) -> bool:
        """Settle with the answer, after telling the store's clock, if the answer has it.

        False when it is not settled: the writer was draining, the next one has to be asked.
        """

    @abstractmethod
    def faulted(self, error: Exception) -> None:
        """Settle with an error."""

    def fail(self, error: Exception) -> None:
        """Settle with `error` as it is (closing)."""
        self.faulted(error)

    @abstractmethod
    def reissue(self, backend: Backend) -> Completion[Any] | None:
        """Ask `backend` instead. For commits: what tells when it is answered."""

    def expire(self, now: float) -> float | None:
        """Its deadline has come. Returns the next one, or None when it is settled."""
        self.unknown()
        return None

    def unknown(self) -> None:
        """No answer will come, or it would come too late."""
        if not self.done:
            what = self.kind.name.lower()
            self.faulted(gone(what) if self.sent else unsent(what))


def append_bytes(records: Sequence[NewRecord]) -> int:
    """What records weigh in flight."""
    size = RECORD_BYTES * len(records)
    for record in records:
        size += len(record.delivery)
    return size


class AppendCall:
    """One call of `append`; several travel in one frame."""

    __slots__ = ("completion", "deadline", "records")

    def __init__(
        self, records: Sequence[NewRecord], deadline: float, completion: Completion[list[AppendResult]]
    ) -> None:
        self.records = records
        self.deadline = deadline
        self.completion = completion

    def settle(self, status: AppendStatus, error: Exception) -> None:
        """The same result for each of its records."""
        result = AppendResult(status, -1, Durability.WRITTEN, error)
        self.completion.succeed([result] * len(self.records))


class AppendFrame(SessionRequest):
    """Calls of `append` of one hub turn, in their order."""

    __slots__ = ("calls",)

    def __init__(self, calls: list[AppendCall], size: int) -> None:
        super().__init__(FrameKind.APPEND, min(call.deadline for call in calls), size, resend=False)
        self.calls = calls

    @property
    def done(self) -> bool:
        return all(call.completion.done for call in self.calls)

    def body(self, now: float) -> bytes:
        self.calls = [call for call in self.calls if not call.completion.done]
        left = timeout_ms(max([call.deadline for call in self.calls], default=now), now)
        return codec.encode((left, [record for call in self.calls for record in call.records]))

    def answered(self, body: bytes, tell: Tell) -> bool:
        clock_ms, results = codec.decode_results(body)
        tell(clock_ms)
        if results and all(isinstance(result.error, DrainingError) for result in results):
            return False
        at = 0
        for call in self.calls:
            end = at + len(call.records)
            if not call.completion.done:
                guarded(call.completion.succeed, results[at:end])
            at = end
        return True

    def faulted(self, error: Exception) -> None:
        unknown = isinstance(error, RemoteError)
        self._settle(AppendStatus.UNKNOWN if unknown else AppendStatus.REFUSED, error)

    def unknown(self) -> None:
        if self.sent:
            self._settle(AppendStatus.UNKNOWN, gone("append"))
        else:
            self._settle(AppendStatus.NOT_STORED, unsent("append"))

    def _settle(self, status: AppendStatus, error: Exception) -> None:
        for call in self.calls:
            if not call.completion.done:
                guarded(call.settle, status, error)

    def fail(self, error: Exception) -> None:
        for call in self.calls:
            if not call.completion.done:
                guarded(call.completion.fail, error)

    def expire(self, now: float) -> float | None:
        next_deadline: float | None = None
        status = AppendStatus.UNKNOWN if self.sent else AppendStatus.NOT_STORED
        for call in self.calls:
            if call.completion.done:
                continue
            if call.deadline <= now:
                guarded(call.settle, status, gone("append") if self.sent else unsent("append"))
            elif next_deadline is None or call.deadline < next_deadline:
                next_deadline = call.deadline
        return next_deadline

    def split(self) -> list[AppendFrame]:
        """One frame per call: bad arguments of one call are not to refuse the others."""
        weigh = append_bytes
        return [AppendFrame([call], weigh(call.records)) for call in self.calls if not call.completion.done]

    def reissue(self, backend: Backend) -> None:
        for call in self.calls:
            if not call.completion.done:
                backend.append(call.records, call.deadline, call.completion)


class SessionCommit(SessionRequest):
    """One commit."""

    __slots__ = ("batch", "completion")

    def __init__(
        self, batch: CommitBatch, deadline: float, completion: Completion[list[AppendResult]]
    ) -> None:
        size = sum(len(record.delivery) + RECORD_BYTES for record in batch.records)
        size += sum(64 + 16 * (len(delta.finished) + len(delta.attempts)) for delta in batch.progress)
        size += sum(len(key) + len(value or b"") for key, value in batch.settings.items())
        resets = any(delta.reset_to is not None for delta in batch.progress)
        resend = not (batch.records or batch.settings or resets)
        super().__init__(FrameKind.COMMIT, deadline, size, resend)
        self.batch = batch
        self.completion = completion

    @property
    def done(self) -> bool:
        return self.completion.done

    def body(self, now: float) -> bytes:
        return codec.encode(codec.commit_row(self.batch, timeout_ms(self.deadline, now)))

    def answered(self, body: bytes, tell: Tell) -> bool:
        clock_ms, results = codec.decode_results(body)
        tell(clock_ms)
        self.completion.succeed(results)
        return True

    def faulted(self, error: Exception) -> None:
        self.completion.fail(error)

    def reissue(self, backend: Backend) -> Completion[Any]:
        answered = backend.commit(self.batch, self.deadline)
        relay(answered, self.completion)
        return answered


class PlainRequest(SessionRequest):
    """A request with a body that does not change and an answer decoded by `decode`."""

    __slots__ = ("_again", "_body", "_decode", "completion")

    def __init__(
        self,
        kind: FrameKind,
        body: Any,
        decode: Callable[[bytes], Any],
        completion: Completion[Any],
        again: Callable[[Backend], Completion[Any]],
        deadline: float,
        resend: bool = True,
    ) -> None:
        self._body = codec.encode(body)
        super().__init__(kind, deadline, len(self._body) + 64, resend)
        self.completion = completion
        self._decode = decode
        self._again = again

    @property
    def done(self) -> bool:
        return self.completion.done

    def body(self, now: float) -> bytes:
        return self._body

    def answered(self, body: bytes, tell: Tell) -> bool:
        self.completion.succeed(self._decode(body))
        return True

    def faulted(self, error: Exception) -> None:
        self.completion.fail(error)

    def reissue(self, backend: Backend) -> None:
        relay(self._again(backend), self.completion)


class WaitRequest(SessionRequest):
    """A wait parked at the writer; False at the deadline."""

    __slots__ = ("_offset", "_queue", "wait")

    def __init__(self, queue: QueueRef, offset: int, deadline: float, wait: Wait) -> None:
        super().__init__(FrameKind.WAIT, deadline)
        self._queue, self._offset, self.wait = queue, offset, wait

    @property
    def done(self) -> bool:
        return self.wait.done or self.wait.cancelled

    def body(self, now: float) -> bytes:
        return codec.encode((self._queue, self._offset, timeout_ms(self.deadline, now)))

    def answered(self, body: bytes, tell: Tell) -> bool:
        self.wait.succeed(codec.decode_flag(body))
        return True

    def faulted(self, error: Exception) -> None:
        self.wait.fail(error)

    def unknown(self) -> None:
        if not self.done:
            self.wait.succeed(False)

    def reissue(self, backend: Backend) -> None:
        backend.wait(self._queue, self._offset, self.deadline, self.wait)
