"""SendRouter: brings each send with an identity to the process that owns its shard.

    append ──▶ its shard is here and ready ──▶ SendShard.append
       │       it is with another process ──▶ peer calls, one at a time for each shard, in the sends' order
       └─────▶ neither, now: it waits, at most until its deadline

The process joins the group of the shards with its first send, or when others can reach it (`serve_peers`).
A send that was passed on to this process is never passed on again: if the shard is not here, it goes back.

The address that a process joins with is `HOST:PORT/TOKEN`. The token is random, and only processes that read
the coordination topic know it; a peer call without it is rejected.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hmac import compare_digest

from backend.completion import Completion, failed
from backend.kafka.errors import to_failed_result
from backend.kafka.sends.calls import (
    MOVED,
    IdentifiedCall,
    IdentifiedSend,
    Later,
    NotOwnerError,
    decode_call,
    decode_results,
    encode_call,
    encode_results,
)
from backend.kafka.sends.open_calls import OpenCalls
from backend.kafka.sends.shard import RETRY_S, Commit, SendShard, SendShardContext
from backend.kafka.sends.window import QUEUES, WINDOW_MS, queue_of_identity
from backend.kafka.topic_info import TopicRegistry
from backend.ownership.owner import QueueOwner
from backend.port import Backend, Join, PeerCalls
from backend.records import AppendResult, AppendStatus, Bounds, NewRecord, ProgressView, QueueRef, TopicInfo
from ddmq_common.clock import NEVER, Clock
from ddmq_common.errors import (
    CallerError,
    DamagedError,
    DdmqError,
    DrainingError,
    RemoteError,
    TryLaterError,
)
from ddmq_common.hub_timer import HubTimer
from ddmq_common.names import SENDS_GROUP, SENDS_TOPIC
from ddmq_common.security.quotas import SenderQuota
from ddmq_common.send_identity import IDENTITY, is_key

log = logging.getLogger(__name__)
TICK_S = 0.05  # while sends wait
CREATE_S, LOG_INTERVAL_S = 10.0, 10.0
CALL_BYTES_MAX = 2 << 20  # of records in one peer call; one record more may follow
CALL_RECORDS_MAX = 5_000
PLAIN = -1  # in place of a shard: records that are not to be stored once
RETENTION_MS = 2 * WINDOW_MS  # of the entries
_CLOSED = DrainingError("the Kafka engine was closed")

Queue = tuple[str, int]  # topic, queue_id
# Looks for topics of records that are not known yet, and calls back with the error, if that failed.
ConfirmTopics = Callable[[Sequence[NewRecord], Callable[[DdmqError | None], None]], None]
AppendPlain = Callable[[Sequence[NewRecord], float, Completion[list[AppendResult]]], None]


class SendRouter(QueueOwner[SendShard]):
    """The sends with an identity of one process. All methods must be called on the hub.

    `append_plain` appends records without an identity. `addresses()`: the address of the owner of each
    shard. `records_max`, `bytes_max`: of sends that are not answered; more are rejected. `numbers`: whether
    records with a number are stored once; if not, they are appended like those without an identity.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        topics: TopicRegistry,
        later: Later,
        commit: Commit,
        append_plain: AppendPlain,
        addresses: Callable[[], Mapping[QueueRef, str]],
        records_max: int,
        bytes_max: int,
        numbers: bool,
        confirm_topics: ConfirmTopics,
    ) -> None:
        super().__init__(backend, clock.monotonic)
        self._backend = backend
        self._clock = clock
        self._topics = topics
        self._append_plain = append_plain
        self._addresses = addresses
        self._open_calls = OpenCalls(clock, later, records_max, bytes_max)
        self._numbers = numbers
        self._confirm_topics = confirm_topics
        self._context = SendShardContext(
            backend, clock, commit, self._rejection_of, self._incarnation_of, topics.durability_of,
            self._next_commit, self._on_shard_changed, self._on_uncertain,
        )  # fmt: skip
        self._commit_numbers: dict[QueueRef, int] = {}
        self._by_number: dict[int, SendShard] = {}
        self._waiting: dict[int, deque[IdentifiedSend]] = {}  # by shard
        self._forwarding: set[int] = set()  # shards of which a peer call is in flight
        self._token = secrets.token_hex(16)
        self._address = ""
        self._peers: PeerCalls | None = None
        self._is_begun = self._is_creating = False
        self._log_at = self._create_at = 0.0  # when the next failure is logged, or the topic created again
        self._tick_timer = HubTimer(ref=False)

    # --- calls

    def serve_peers(self, address: str, peers: PeerCalls) -> None:
        """Join the shards' group under `address` (HOST:PORT), where other processes reach this one."""
        self._address, self._peers = f"{address}/{self._token}", peers
        if self._is_begun:
            self.reacquire()
        self._begin()

    def are_concerned(self, records: Iterable[NewRecord]) -> bool:
        """Return whether one of the records is to be stored once."""
        return any(self._identity_of(record) is not None for record in records)

    def _identity_of(self, record: NewRecord, is_forwarded: bool = False) -> str | None:
        """Return the identity by which a resend of a record is recognised, if any.

        The process that forwarded a record has decided that it is to be stored once.
        """
        identity = record.system.get(IDENTITY) if record.system else None
        if identity is None or self._numbers or is_forwarded or is_key(identity):
            return identity
        return None

    def append(
        self, records: Sequence[NewRecord], deadline: float, completion: Completion[list[AppendResult]]
    ) -> None:
        """Append records, some of which have an identity; see Backend.append."""
        self._append(self._open_calls.create_call(completion, len(records), deadline), records)

    def take_peer_call(self, data: bytes, deadline: float) -> Completion[bytes]:
        """Store records that another process passed on; return their encoded results.

        Fails with CallerError if the call cannot be read. Without this process's token nothing is stored.
        """
        try:
            token, records = decode_call(data)
        except CallerError as error:
            return failed(error)
        answer: Completion[bytes] = Completion()
        results: Completion[list[AppendResult]] = Completion()
        results.then(lambda results: answer.succeed(encode_results(results.value)))

        def on_confirmed(error: DdmqError | None) -> None:
            if error is not None:
                results.succeed([to_failed_result(error, AppendStatus.NOT_STORED)] * len(records))
            elif self._stopping:
                results.succeed([MOVED] * len(records))
            else:
                self._append(
                    self._open_calls.create_call(results, len(records), deadline, is_forwarded=True), records
                )

        if self._stopping or not compare_digest(token.encode(), self._token.encode()):
            results.succeed([MOVED] * len(records))
        else:
            self._confirm_topics(records, on_confirmed)
        return answer

    def when_answered(self, then: Callable[[], None]) -> None:
        """Call `then` once all sends are answered; other processes' sends are not taken any more."""
        self._stopping = True
        self._open_calls.when_answered(then)

    def count_owned(self) -> dict[str, SenderQuota]:
        """Return how many keys and producers of each owner the shards of this process remember."""
        totals: dict[str, SenderQuota] = {}
        for shard in self._owned.values():
            for owner, owned in shard.count_owned().items():
                before = totals.get(owner, SenderQuota(0, 0))
                totals[owner] = SenderQuota(
                    before.idempotency_keys + owned.idempotency_keys, before.producers + owned.producers
                )
        return totals

    def close(self) -> None:
        """Answer all sends, and stop. The process leaves all its groups when it ends, not before."""
        self._stopping = True
        for shard in list(self._owned.values()):
            shard.abandon()
        self._tick_timer.stop()
        self._open_calls.close(_CLOSED)
        self._waiting.clear()

    def _append(self, call: IdentifiedCall, records: Sequence[NewRecord]) -> None:
        """Bring the records of a call on their ways: those of each shard, and those without an identity.

        If records of one queue go different ways, they go one after the other, so that the order of the call
        is kept.
        """
        ways: dict[int, list[IdentifiedSend]] = {}
        runs: list[tuple[int, list[IdentifiedSend]]] = []  # of successive records that go the same way
        way_of_queue: dict[Queue, int] = {}
        is_mixed = False
        for index, record in enumerate(records):
            way = self._find_way(call, index, record)
            if way is None:
                continue
            identity = record.system[IDENTITY] if way != PLAIN and record.system else ""
            send = IdentifiedSend(call, index, record, identity)
            call.waiting.add(index)
            ways.setdefault(way, []).append(send)
            if not runs or runs[-1][0] != way:
                runs.append((way, []))
            runs[-1][1].append(send)
            is_mixed |= way_of_queue.setdefault((record.topic, record.queue_id), way) != way
        if call.is_done:
            return
        self._open_calls.add_call(call, records)
        if is_mixed:
            call.start_stages([
                ([send.index for send in sends], partial(self._start_sends, way, sends))
                for way, sends in runs
            ])  # fmt: skip
        else:
            for way, sends in ways.items():
                self._start_sends(way, sends)

    def _find_way(self, call: IdentifiedCall, index: int, record: NewRecord) -> int | None:
        """Return the shard of a record, or PLAIN; None if it is rejected, and answered."""
        identity = self._identity_of(record, call.is_forwarded)
        if identity is None:
            return PLAIN
        try:
            number = queue_of_identity(identity, record.topic)
        except ValueError as error:
            text = f"identity {identity[:100]!r} of a send: {error}"
            call.answer_record(index, to_failed_result(CallerError(text)))
            return None
        rejection = self._open_calls.check_bounds(record)
        if rejection is not None:
            call.answer_record(index, rejection)
            return None
        return number

    def _start_sends(self, way: int, sends: list[IdentifiedSend]) -> None:
        sends = [send for send in sends if send.call.results[send.index] is None]
        if not sends:
            return
        if way == PLAIN:
            self._append_others(sends)
        else:
            self._waiting.setdefault(way, deque()).extend(sends)
            self._begin()
            self._route_sends(way)

    def _append_others(self, sends: list[IdentifiedSend]) -> None:
        """Append records of one call that have no identity."""
        call = sends[0].call
        results: Completion[list[AppendResult]] = Completion()

        def on_results(results: Completion[list[AppendResult]]) -> None:
            for send, result in zip(sends, results.value, strict=True):
                send.answer(result)

        results.then(on_results)
        for send in sends:
            call.waiting.discard(send.index)
        self._append_plain([send.record for send in sends], call.deadline, results)

    # --- where a send goes

    def _route_sends(self, number: int) -> None:
        """Bring the waiting sends of a shard to its owner, if that is known now."""
        waiting = self._waiting.get(number)
        if not waiting or number in self._forwarding:
            return
        shard = self._by_number.get(number)
        if shard is not None and shard.is_ready:
            sends = self._take_waiting(number, len(waiting), NEVER)
            if sends:
                shard.append(sends)
            return
        if not self._is_claimed(number):
            self._return_forwarded(number)
            self._forward_sends(number)
        if self._waiting.get(number):
            self._start_ticks()

    def _take_waiting(self, number: int, records_max: int, bytes_max: float) -> list[IdentifiedSend]:
        """Remove sends of a shard from those that wait, up to the limits; skip those that are answered."""
        waiting, sends, size = self._waiting[number], list[IdentifiedSend](), 0
        while waiting and len(sends) < records_max and size < bytes_max:
            send = waiting.popleft()
            if send.call.results[send.index] is None:
                send.call.waiting.discard(send.index)
                sends.append(send)
                size += len(send.record.delivery)
        if not waiting:
            del self._waiting[number]
        return sends

    def _is_claimed(self, number: int) -> bool:
        """Return whether this process owns a shard, whose window it may still rebuild."""
        queue = self._queue_of(number)
        return queue in self._claims.owned_queues or queue in self._claims.loading

    def _queue_of(self, number: int) -> QueueRef | None:
        info = self._backend.topic(SENDS_TOPIC)
        return None if info is None else QueueRef(SENDS_TOPIC, info.incarnation, number)

    def _return_forwarded(self, number: int) -> None:
        """Send back the sends that another process passed on for a shard that is not here."""
        waiting = self._waiting.pop(number, deque[IdentifiedSend]())
        remaining = deque[IdentifiedSend]()
        for send in waiting:
            if send.call.is_forwarded:
                send.answer(MOVED)
            else:
                remaining.append(send)
        if remaining:
            self._waiting[number] = remaining

    def _forward_sends(self, number: int) -> None:
        """Pass the waiting sends of a shard on to its owner, if there is one that can be reached."""
        queue, peers = self._queue_of(number), self._peers
        if queue is None or peers is None or not self._waiting.get(number):
            return
        address, _, token = self._addresses().get(queue, "").rpartition("/")
        if not address or token == self._token:
            return
        sends = self._take_waiting(number, CALL_RECORDS_MAX, CALL_BYTES_MAX)
        if not sends:
            return
        self._forwarding.add(number)
        data = encode_call(token, [send.record for send in sends])
        deadline = max(send.call.deadline for send in sends)
        peers(address, data, deadline).then(lambda answer: self._on_forwarded(number, sends, answer))

    def _on_forwarded(self, number: int, sends: list[IdentifiedSend], answer: Completion[bytes]) -> None:
        self._forwarding.discard(number)
        results, error, is_moved = None, answer.error, False
        if error is None:
            try:
                results = decode_results(answer.value)
            except DamagedError as damage:
                error = damage
        if results is not None and len(results) == len(sends):
            moved = []
            for send, result in zip(sends, results, strict=True):
                if isinstance(result.error, NotOwnerError):
                    moved.append(send)
                else:
                    send.answer(result)
            is_moved = bool(moved)
            self._put_back(number, moved)
        elif isinstance(error, TryLaterError):  # it was not sent
            self._log_failure(f"passing sends of shard {number} on to its owner", error)
            self._put_back(number, sends)
        else:
            failure = to_failed_result(
                RemoteError(f"the owner of the send's shard did not answer: {error}"), AppendStatus.UNKNOWN
            )
            for send in sends:
                send.answer(failure)
        if self._waiting.get(number):
            if results is None or is_moved:
                self._start_ticks()
            else:
                self._route_sends(number)

    def _log_failure(self, doing: str, error: Exception) -> None:
        """Log a failure of something that is retried, unless another one was logged a moment ago."""
        now = self._clock.monotonic()
        if now >= self._log_at:
            self._log_at = now + LOG_INTERVAL_S
            log.warning("%s: it has failed and is retried: %s", doing, error)

    def _put_back(self, number: int, sends: list[IdentifiedSend]) -> None:
        for send in sends:
            send.call.waiting.add(send.index)
        if sends:
            self._waiting.setdefault(number, deque()).extendleft(reversed(sends))

    # --- periodic work, while something waits

    def _start_ticks(self) -> None:
        if not self._tick_timer.active and not self._stopping:
            self._tick_timer.every(TICK_S, self.on_tick)

    def on_tick(self) -> None:
        """Join, load, and route what waits; called by a timer while there is something to do."""
        self._begin()
        self.acquire()
        now = self._clock.monotonic()
        for shard in list(self._owned.values()):
            if shard.is_stuck and now >= shard.retry_at:
                shard.start()
        for number in list(self._waiting):
            self._route_sends(number)
        is_stuck = any(shard.is_stuck for shard in self._owned.values())
        if not self._waiting and not is_stuck and self._claims.joined and self._claims.retry_at is None:
            self._tick_timer.stop()

    # --- ownership

    def _begin(self) -> None:
        """Create the topic of the entries if necessary, and join the group."""
        if self._claims.joined or self._is_creating or self._stopping:
            return
        self._is_begun = True
        if self._backend.topic(SENDS_TOPIC) is not None:
            self.acquire()
            self._start_ticks()
            return
        if self._clock.monotonic() < self._create_at:
            self._start_ticks()
            return
        self._is_creating = True
        info = TopicInfo(SENDS_TOPIC, 0, QUEUES, retention_ms=RETENTION_MS)
        try:
            self._backend.put_topic(info, self._clock.monotonic() + CREATE_S).then(self._on_created)
        except DdmqError as error:
            self._on_created(failed(error))

    def _on_created(self, topic: Completion[TopicInfo]) -> None:
        self._is_creating = False
        if topic.error is not None:
            self._create_at = self._clock.monotonic() + RETRY_S
            self._log_failure("creating the topic of the entries of sends", topic.error)
        elif topic.value.queues < QUEUES:
            log.error(
                "topic %s has %d queues; %d are needed: delete it", SENDS_TOPIC, topic.value.queues, QUEUES
            )
        self._start_ticks()

    def _join_request(self) -> Join | None:
        info = self._backend.topic(SENDS_TOPIC)
        if info is None or info.queues < QUEUES:
            return None
        return Join(SENDS_GROUP, SENDS_TOPIC, address=self._address)

    def loaded(self, queue: QueueRef, epoch: int, view: ProgressView, bounds: Bounds) -> None:
        """Take over a granted shard."""
        before = self._commit_numbers.get(queue, 0)
        self._commit_numbers[queue] = max(before, view.committed or 0)
        shard = SendShard(self._context, queue, epoch, view.generation)
        self._begin_work(shard)
        shard.start()

    def on_failed(self, doing: str, error: Exception) -> None:
        self._log_failure(f"the shards of sends ({doing})", error)
        self._start_ticks()

    def _on_owned_changed(self, queue: QueueRef) -> None:
        shard = self._owned.get(queue)
        if shard is None:
            self._by_number.pop(queue.queue_id, None)
            if queue.queue_id in self._waiting:
                self._start_ticks()
        else:
            self._by_number[queue.queue_id] = shard

    def _on_shard_changed(self, shard: SendShard) -> None:
        if shard.is_ready:
            self._route_sends(shard.queue.queue_id)
        elif shard.is_stuck:
            self._start_ticks()

    def _on_uncertain(self, shard: SendShard) -> None:
        """Rebuild the window of a shard, unless it was lost meanwhile."""
        if self._owned.get(shard.queue) is shard and not self._stopping:
            log.warning("shard %d of sends is read again: an outcome is unknown", shard.queue.queue_id)
            self._end_work(shard.queue, abandon=True)
            self._claims.reload(shard.queue)

    def _next_commit(self, queue: QueueRef) -> int:
        number = self._commit_numbers[queue] = self._commit_numbers.get(queue, 0) + 1
        return number

    # --- topics

    def _rejection_of(self, record: NewRecord) -> Exception | None:
        return self._topics.rejection_of(record)

    def _incarnation_of(self, topic: str) -> int:
        return self._topics.topics[topic].info.incarnation
