"""One shard in the hands of its owner: its store, and what the log says of its messages.

`ShardContext.write` is the only way into the store, so the due scans hear of every message that is added.
A failure that the shard cannot repair is reported once through `give_up`: the shard is opened again, or its
claim is acquired again. Everything that runs on the hub for a shard runs under `run_safely`: whatever it
raises, a failed read of the store or an error of ours, ends in `give_up` too. So no shard stops silently.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from backend.port import Backend
from backend.progress.ack_map import AckMap
from backend.records import NewRecord, ProgressDelta, QueueRef
from backend.traces import TraceWriter
from ddmq_common.clock import Clock
from ddmq_common.delays.command import encode_outcome
from ddmq_common.delivery import encode
from ddmq_common.errors import DdmqError
from ddmq_common.names import DELAY_GROUP, FIRED_GROUP, OUTCOME_TOPIC
from delay_service.config import DelayConfig
from delay_service.core.commands import DecisionContext, OutcomeReply
from delay_service.core.decider import INGESTED
from delay_service.core.due_scans import DueScans, SliceLimits
from delay_service.due.backend import CLAIM_ERRORS, TargetTopic, target_topic
from delay_service.due.counts import DelayCounts
from delay_service.due.holds import is_held
from delay_service.due.service import Alarm
from delay_service.store.port import DelayStore, StoreChanges
from delay_service.waiting.rows import record_of

log = logging.getLogger("ddmq.delay")
CAPACITY_POLL_S = 0.01  # between two looks whether a store has room
STALLED_S = 5.0  # it has none for so long: the log says so
UNRECORDED = "unrecorded"  # meta: these offsets, in decimal, with commas
_ID_END = 1 << 128
CLOSED_TOPICS_MAX = 10_000  # topics remembered as closed for a while; past it all are tried again


@dataclass(slots=True)
class DelayServiceContext:
    """The objects and limits that all shards of one service share.

    `commits_in_flight`: commits of due messages under way; they are limited, because more would only make
    messages wait longer. `waiting_shards`: the shards that wait for a free commit slot, in order. `fires`
    False: commands are ingested into the stores, but no message fires.
    """

    backend: Backend
    config: DelayConfig
    clock: Clock
    counts: DelayCounts
    fires: bool = True
    traces: TraceWriter | None = None
    commits_in_flight: int = 0
    waiting_shards: deque[Callable[[], None]] = field(default_factory=deque)

    def on_commit_done(self) -> None:
        """Count down a finished commit and let the next waiting shard fire."""
        self.commits_in_flight -= 1
        self.wake_next_shard()

    def wake_next_shard(self) -> None:
        """Let the shard fire that has waited longest for a commit slot."""
        if self.waiting_shards:
            self.waiting_shards.popleft()()

    def deadline(self) -> float:
        """Return the deadline of a commit that starts now, in monotonic seconds."""
        return self.clock.monotonic() + self.config.commit_timeout_ms / 1e3

    def outcome_records(self, replies: Sequence[OutcomeReply], wall_ms: int) -> list[NewRecord]:
        """Build the records that report these outcomes to the producer proxies that requested them."""
        info = self.backend.topic(OUTCOME_TOPIC)
        answerable = [reply for reply in replies if info is not None and reply.queue_id < info.queues]
        if len(answerable) < len(replies):
            self.counts.replies_dropped["nobody waits"].value += len(replies) - len(answerable)
        return [_outcome_record(reply, wall_ms) for reply in answerable]


def _outcome_record(reply: OutcomeReply, wall_ms: int) -> NewRecord:
    message_id = (reply.outcome.reply_id % _ID_END).to_bytes(16, "big")
    delivery = encode(b"", encode_outcome(reply.outcome), b"", None)
    return NewRecord(OUTCOME_TOPIC, reply.queue_id, message_id, wall_ms, delivery)


class Generations(NamedTuple):
    """The generations of the shard's progress in its two groups: ingested commands and fired messages."""

    ingest_progress: int
    fired: int


class UnrecordedOffsets:
    """Offsets that are finished in the store but not yet in the log.

    Most of them need no record: the next owner reads uncommitted commands again, and the states of the ids
    say which messages those commands ended. Two kinds are named by no command: the earlier move of a message
    that a cancel or a later move ended, and a message that was skipped to its end. These offsets are recorded
    in the store, in the same write that ends them, until a commit finishes them. Whoever opens the store
    finishes the offsets that are still recorded. Finishing an offset twice changes nothing.
    """

    def __init__(self, store: DelayStore) -> None:
        text = store.meta(UNRECORDED) or b""
        self._offsets = {int(offset) for offset in text.split(b",") if offset.isdigit()}
        self._stored = bool(text)

    @property
    def offsets(self) -> list[int]:
        """Return the offsets that are finished in the store and perhaps not in the log."""
        return sorted(self._offsets)

    def add_offsets(self, offsets: Collection[int], changes: StoreChanges) -> None:
        """Add to `changes` a record of `offsets`, because these changes finish them.

        Call it for every write: it also clears an old record.
        """
        self._offsets.update(offsets)
        if offsets:
            changes.meta[UNRECORDED] = b",".join(b"%d" % offset for offset in sorted(self._offsets))
            self._stored = True
        elif self._stored and not self._offsets:
            changes.meta[UNRECORDED] = None
            self._stored = False

    def on_recorded(self, offsets: Iterable[int]) -> None:
        """Remove offsets that are durably finished in the log."""
        if self._offsets:
            self._offsets.difference_update(offsets)


class UncommittedRows:
    """Rows of ids that commands have changed in the store, waiting for a commit."""

    def __init__(self) -> None:
        self._gathered: dict[bytes, bytes] = {}
        self._committing: dict[bytes, bytes] = {}
        self.gathered_bytes = 0

    def __contains__(self, uuid: bytes) -> bool:
        return uuid in self._gathered or uuid in self._committing

    def add(self, row_records: dict[bytes, bytes]) -> None:
        """Add rows for the next commit. A later row of an id replaces an earlier one."""
        self._gathered |= row_records
        self.gathered_bytes += sum(map(len, row_records.values()))

    def begin_commit(self) -> dict[bytes, bytes]:
        """Move the waiting rows into a commit and return them."""
        self._committing, self._gathered, self.gathered_bytes = self._gathered, {}, 0
        return self._committing

    def end_commit(self) -> None:
        """Drop the rows of the commit, because it is durable now."""
        self._committing = {}


class SetAsideTopics:
    """The topics whose due messages are deferred because the engine cannot commit to them now.

    When the engine says that one may be available again, its messages are tried by themselves, one topic at a
    time (`trial`), so that they do not hold up those of other topics.
    """

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self.trial = ""

    def __contains__(self, topic: str) -> bool:
        return topic in self.reasons

    def add(self, topic: str, reason: str) -> None:
        """Set a topic aside. The engine has logged that."""
        if self.reasons.get(topic) == reason:
            return
        if topic not in self.reasons:
            log.debug("topic %s: its due delay messages are set aside: %s", topic, reason)
            if len(self.reasons) >= CLOSED_TOPICS_MAX:
                del self.reasons[next(iter(self.reasons))]
        self.reasons[topic] = reason

    def remove(self, topic: str) -> None:
        """Remove a topic to which a message was committed."""
        if self.reasons.pop(topic, None) is not None:
            log.debug("topic %s: its delay messages fire again", topic)

    def must_wait(self, topic: str) -> bool:
        """Return whether the topic's messages must wait for the trial in flight."""
        return bool(self.trial) and topic in self.reasons


class ShardContext:
    """The state of an open delay shard, shared by its ingest and its fire loop.

    `give_up(error)` is called at most once, when the shard must be closed. `claim_error`: a later error that
    means that the claim has ended. `on_commit_end()` is called after each commit. `reread_to`: see
    DecisionContext.
    """

    def __init__(
        self,
        service: DelayServiceContext,
        queue: QueueRef,
        epoch: int,
        generations: Generations,
        store: DelayStore,
        acks: AckMap,
        give_up: Callable[[Exception], None],
        on_commit_end: Callable[[], None],
        reread_to: int,
    ) -> None:
        self.service = service
        self.queue = queue
        self.epoch = epoch
        self.generations = generations
        self.store = store
        self.acks = acks
        self.running = True
        self.claim_error: Exception | None = None
        self.has_rows = service.backend.compacts  # of the topic WAITING_TOPIC, that the store is a cache of
        self.uncommitted_rows = UncommittedRows()
        self.on_commit_end = on_commit_end
        self._on_failed = give_up
        self._closed_until: dict[str, float] = {}
        self.set_aside = SetAsideTopics()
        self._stalled_since = math.inf  # monotonic; when it first had no capacity, or last logged that
        config = service.config
        limits = SliceLimits(config.slice_count, config.fire_bytes_max, config.kept_ms, config.catch_up_max)
        self.due_scans = DueScans(store, acks, self.find_target_topic, limits)
        self.unrecorded = UnrecordedOffsets(store)
        lost_position = store.meta(INGESTED) is None
        self.decisions = DecisionContext(
            store, acks, self.due_scans.busy, config.kept_ms, reread_to, lost_position, config.catch_up_max
        )

    # --- topics

    def find_target_topic(self, topic: str) -> TargetTopic | None:
        """Return the target topic, or None if it is unknown.

        A topic in `close_topic_for` counts as not writable, and so does one that is set aside or held.
        """
        target = target_topic(self.service.backend, topic)
        if target is None:
            return None
        if target.unavailable:
            self.set_aside.add(topic, target.unavailable)
            return target._replace(writable=False)
        must_wait = self.set_aside.must_wait(topic) or is_held(self.service.backend, topic)
        if must_wait or self._is_closed_for_now(topic):
            return target._replace(writable=False)
        return target

    def _is_closed_for_now(self, topic: str) -> bool:
        until = self._closed_until.get(topic)
        if until is None:
            return False
        if self.service.clock.monotonic() < until:
            return True
        del self._closed_until[topic]
        return False

    def close_topic_for(self, topic: str, seconds: float) -> None:
        """Treat this topic as not writable for `seconds`."""
        if len(self._closed_until) >= CLOSED_TOPICS_MAX:
            self._closed_until.clear()
        self._closed_until[topic] = self.service.clock.monotonic() + seconds

    def reopen_topic(self, topic: str) -> None:
        """Treat this topic as writable again, because its settings have changed."""
        self._closed_until.pop(topic, None)

    # --- changes

    def awaits_capacity(self, growing: bool, alarm: Alarm, go: Callable[[], None]) -> bool:
        """Return whether the store has no capacity for new work. If so, `go` is called when it has. Raises
        StorageError.

        `growing`: the work makes the store larger.
        """
        has_capacity = self.store.has_capacity(growing)
        if growing:
            self._watch_capacity(has_capacity)
        if not has_capacity:
            alarm.once(CAPACITY_POLL_S, go)
        return not has_capacity

    def _watch_capacity(self, has_capacity: bool) -> None:
        """Log a warning when the store has had no capacity for commands for STALLED_S."""
        now = self.service.clock.monotonic()
        self._stalled_since = math.inf if has_capacity else min(self._stalled_since, now)
        if now - self._stalled_since >= STALLED_S:
            self._stalled_since = now
            log.warning(
                "delay shard %d takes nothing in: its store has waited for the disk for %.0f s",
                self.queue.queue_id, STALLED_S,
            )  # fmt: skip

    def write(self, changes: StoreChanges, unrecorded_offsets: Collection[int] = ()) -> bool:
        """Apply changes to the store; return False if that failed and the shard was given up.

        `unrecorded_offsets`: offsets that end with these changes and are not finished in the log yet.
        """
        self.due_scans.on_added(changes.added)
        self.unrecorded.add_offsets(unrecorded_offsets, changes)
        return self.run_safely("store", self.store.write, changes)

    def run_safely(self, what: str, call: Callable[..., object], *arguments: object) -> bool:
        """Call `call`; return False if it raised an error and the shard was given up.

        `what`: the step's name.
        """
        try:
            call(*arguments)
        except Exception as error:
            if not isinstance(error, DdmqError):
                log.error("delay shard %d: %s failed", self.queue.queue_id, what, exc_info=error)
            self.give_up(what, error)
            return False
        return True

    def give_up(self, what: str, error: Exception) -> None:
        """Stop the shard and report the error: its claim, its store or its state in memory is uncertain."""
        self.service.counts.count_failure(what, error)
        if self.running:
            self.running = False
            self._on_failed(error)
        elif isinstance(error, CLAIM_ERRORS):
            self.claim_error = error

    def finish_offsets(self, offsets: list[int]) -> None:
        """Record in memory that the log has these offsets as finished."""
        self.acks.finish(ranges_of(offsets))
        self.unrecorded.on_recorded(offsets)

    def ingest_progress(self, start: int, end: int) -> ProgressDelta:
        """Return the progress delta for commands in [start, end), because they are durable in the store."""
        return ProgressDelta(
            DELAY_GROUP, self.queue, self.epoch, self.generations.ingest_progress, ((start, end),)
        )

    def row_records(self, values: Mapping[bytes, bytes], wall_ms: int) -> list[NewRecord]:
        """Build the records of the rows in `values` (id → value)."""
        shard = self.queue.queue_id
        return [record_of(shard, uuid, value, wall_ms) for uuid, value in values.items()]

    def fired_progress(self, offsets: list[int], attempts: list[tuple[int, int]]) -> ProgressDelta:
        """Return the progress delta that finishes `offsets` and sets the fire counts of repeating messages.

        On an engine with rows, the rows have these facts, and the delta only fences older owners.
        """
        if self.has_rows:
            return ProgressDelta(FIRED_GROUP, self.queue, self.epoch, self.generations.fired)
        return ProgressDelta(
            FIRED_GROUP, self.queue, self.epoch, self.generations.fired, ranges_of(offsets), attempts
        )


def ranges_of(offsets: list[int]) -> list[tuple[int, int]]:
    """Convert offsets to ascending ranges `[start, end)` that do not touch."""
    ranges: list[tuple[int, int]] = []
    start = end = -1
    for offset in sorted(offsets):
        if offset > end:
            if end > start:
                ranges.append((start, end))
            start = offset
        end = offset + 1
    if end > start:
        ranges.append((start, end))
    return ranges
