"""Calls of `append` with identities, and the form in which processes exchange them.

An IdentifiedCall is answered when each of its records has a result, or at its deadline. A record without a
result is then NOT_STORED if it still waits for an owner, and else UNKNOWN: it may be stored later.

A peer call is the token of the process that it is for, and records; the answer is a row for each record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from backend.completion import Completion
from backend.kafka.errors import to_failed_result
from backend.records import AppendResult, AppendStatus, Durability, FirstStored, NewRecord
from ddmq_common.errors import (
    BoundReachedError,
    CallerError,
    DamagedError,
    DrainingError,
    RemoteError,
    StorageError,
    TryLaterError,
    UnknownTopicError,
)


class NotOwnerError(TryLaterError):
    """The process does not own the shard of a send that was passed on to it; nothing is stored."""


_LATE = to_failed_result(
    RemoteError("no answer by the deadline; the message may be stored or not"), AppendStatus.UNKNOWN
)
_NOT_SENT = to_failed_result(
    TryLaterError("no process could take over the shard of this send by the deadline; it was not stored"),
    AppendStatus.NOT_STORED,
)
MOVED = to_failed_result(
    NotOwnerError("the shard of this send is not here; it was not stored"), AppendStatus.NOT_STORED
)
Later = Callable[..., object]
Stage = tuple[list[int], Callable[[], None]]  # the indexes of its records, and what starts it


class IdentifiedCall:
    """A call of `append` that has not been answered. `is_forwarded`: another process passed it on.

    `on_answered` is called before the completion is settled, which may be of a class without callbacks.
    """

    __slots__ = (
        "_on_answered", "completion", "deadline", "is_forwarded", "later", "results", "stages", "unanswered",
        "waiting",
    )  # fmt: skip

    def __init__(
        self,
        completion: Completion[list[AppendResult]],
        size: int,
        deadline: float,
        later: Later,
        on_answered: Callable[[IdentifiedCall], object],
        is_forwarded: bool = False,
    ) -> None:
        self.completion = completion
        self._on_answered = on_answered
        self.deadline = deadline
        self.later = later
        self.is_forwarded = is_forwarded
        self.results: list[AppendResult | None] = [None] * size
        self.unanswered = size
        self.waiting: set[int] = set()  # records that no process was asked to store yet
        self.stages: list[Stage] = []  # that have not ended; the first of them has started

    @property
    def is_done(self) -> bool:
        """Whether every record has a result, or the deadline has passed."""
        return not self.unanswered

    def answer_record(self, index: int, result: AppendResult) -> None:
        """Set the result of a record, unless the deadline has; the last one answers the call."""
        if self.results[index] is None:
            self.results[index] = result
            self.unanswered -= 1
            if not self.unanswered:
                self.later(self._complete_call)
            elif self.stages:
                self._end_stage()

    def start_stages(self, stages: list[Stage]) -> None:
        """Start groups of records one after the other, each when all of the one before have results."""
        self.stages = stages
        stages[0][1]()

    def _end_stage(self) -> None:
        while self.stages and all(self.results[index] is not None for index in self.stages[0][0]):
            del self.stages[0]
            if self.stages:
                self.later(self.stages[0][1])
                return

    def expire(self) -> None:
        """Answer the call at its deadline."""
        self.stages = []
        for index, result in enumerate(self.results):
            if result is None:
                self.answer_record(index, _NOT_SENT if index in self.waiting else _LATE)

    def close(self, error: Exception) -> None:
        """Answer the call at once, because the engine is closed."""
        self.stages = []
        if self.unanswered:
            for index, result in enumerate(self.results):
                if result is None:
                    status = AppendStatus.NOT_STORED if index in self.waiting else AppendStatus.UNKNOWN
                    self.results[index] = to_failed_result(error, status)
            self.unanswered = 0
            self._complete_call()

    def _complete_call(self) -> None:
        if not self.completion.done:
            self._on_answered(self)
            self.completion.succeed([result or _LATE for result in self.results])


class IdentifiedSend:
    """One record with an identity, and the call that it belongs to."""

    __slots__ = ("call", "identity", "index", "record")

    def __init__(self, call: IdentifiedCall, index: int, record: NewRecord, identity: str) -> None:
        self.call = call
        self.index = index
        self.record = record
        self.identity = identity

    def answer(self, result: AppendResult) -> None:
        """Set the result of this record."""
        self.call.answer_record(self.index, result)


# --- between processes

PeerCall = tuple[str, list[NewRecord]]
_ResultRow = tuple[int, int, int, str, str, FirstStored | None]
_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        BoundReachedError, CallerError, DrainingError, NotOwnerError, RemoteError, StorageError,
        TryLaterError, UnknownTopicError,
    )
}  # fmt: skip
_encode: Any = msgspec.msgpack.Encoder().encode
_decode_call: Any = msgspec.msgpack.Decoder(PeerCall).decode
_decode_rows: Any = msgspec.msgpack.Decoder(list[_ResultRow]).decode


def encode_call(token: str, records: Sequence[NewRecord]) -> bytes:
    """Encode records for the process that published `token`."""
    data: bytes = _encode((token, records))
    return data


def decode_call(data: bytes) -> PeerCall:
    """Decode (token, records). Raises CallerError."""
    try:
        call: PeerCall = _decode_call(data)
    except msgspec.MsgspecError as error:
        raise CallerError(f"a call of another process cannot be read: {error}") from error
    return call


def encode_results(results: Sequence[AppendResult]) -> bytes:
    """Encode the results of a peer call."""
    data: bytes = _encode([_to_row(result) for result in results])
    return data


def _to_row(result: AppendResult) -> _ResultRow:
    error = result.error
    kind = "" if error is None else _name_of(error)
    return result.status, result.offset, result.durability, kind, str(error or ""), result.first


def _name_of(error: Exception) -> str:
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((name for name in names if name in _ERRORS), RemoteError.__name__)


def decode_results(data: bytes) -> list[AppendResult]:
    """Decode the results of a peer call. Raises DamagedError."""
    try:
        rows: list[_ResultRow] = _decode_rows(data)
        return [
            AppendResult(AppendStatus(status), offset, Durability(durability), _to_error(kind, text), first)
            for status, offset, durability, kind, text, first in rows
        ]
    except (msgspec.MsgspecError, ValueError) as error:
        raise DamagedError(f"the answer of another process cannot be read: {error}") from error


def _to_error(kind: str, text: str) -> Exception | None:
    return _ERRORS.get(kind, RemoteError)(text) if kind else None
