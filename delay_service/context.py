"""One shard in the hands of its owner: its store and what the log says of it.

`ShardContext.write` is the only way into the store, so that the due scans hear of all that waits anew. What
cannot go on by itself is told once through `doubt`: the shard is opened anew, or our claim to it had anew.
All that runs on the hub for a shard runs under `safely`: whatever it raises, a read of the store that failed
or a mistake of ours, ends in `doubt` too, so that no shard ever stops without a word.
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
from delay_service.due.service import Alarm
from delay_service.store.port import DelayStore, StoreChanges
from delay_service.waiting.rows import record_of

log = logging.getLogger("ddmq.delay")
ROOM_S = 0.01  # between two looks whether a store has room
CRAMPED_S = 5.0  # it has none for so long: the log says so
UNRECORDED = "unrecorded"  # meta: these offsets, in decimal, with commas
_ID_END = 1 << 128
GONE_MAX = 10_000  # topics remembered as closed for a while; past it all are tried again


@dataclass(slots=True)
class DelayServiceContext:
    """What the shards of one service share. `flights`: commits of due messages under way; more of them only
    make a message wait longer behind others. `waiting`: shards that want one, in turn. `fires` False:
    commands are taken in, and what waits stays in the stores."""

    backend: Backend
    config: DelayConfig
    clock: Clock
    counts: DelayCounts
    fires: bool = True
    traces: TraceWriter | None = None
    flights: int = 0
    waiting: deque[Callable[[], None]] = field(default_factory=deque)

    def landed(self) -> None:
        """A commit has ended: the next shard has its turn."""
        self.flights -= 1
        self.pass_on()

    def pass_on(self) -> None:
        """The next shard in turn may fire."""
        if self.waiting:
            self.waiting.popleft()()

    def deadline(self) -> float:
        """Of one commit; monotonic seconds."""
        return self.clock.monotonic() + self.config.commit_timeout_ms / 1e3

    def outcome_records(self, replies: Sequence[OutcomeReply], wall_ms: int) -> list[NewRecord]:
        """What tells these to the producer proxies that asked, as far as somebody waits in their queues."""
        info = self.backend.topic(OUTCOME_TOPIC)
        known = [reply for reply in replies if info is not None and reply.queue_id < info.queues]
        if len(known) < len(replies):
            self.counts.replies_dropped["nobody waits"].value += len(replies) - len(known)
        return [_outcome_record(reply, wall_ms) for reply in known]


def _outcome_record(reply: OutcomeReply, wall_ms: int) -> NewRecord:
    message_id = (reply.outcome.reply_id % _ID_END).to_bytes(16, "big")
    delivery = encode(b"", encode_outcome(reply.outcome), b"", None)
    return NewRecord(OUTCOME_TOPIC, reply.queue_id, message_id, wall_ms, delivery)


class Generations(NamedTuple):
    """Of the two groups whose progress a shard's owner keeps."""

    taken: int
    fired: int


class Unrecorded:
    """Offsets that are over in the store before the log has it on record.

    Most of them the next owner finds again: it reads a command that was not committed once more, and the
    states of the ids say what it ended. What no command names are the earlier move of a message that a cancel
    or the next move ended, and a message that was passed over to its end. They are noted in the store, in the
    write that ends them, until the commit that finishes them; who opens the store finishes those that are
    still noted. To finish an offset twice changes nothing.
    """

    def __init__(self, store: DelayStore) -> None:
        text = store.meta(UNRECORDED) or b""
        self._offsets = {int(offset) for offset in text.split(b",") if offset.isdigit()}
        self._noted = bool(text)

    @property
    def offsets(self) -> list[int]:
        """Over, and not on record as far as is known here."""
        return sorted(self._offsets)

    def note(self, offsets: Collection[int], changes: StoreChanges) -> None:
        """These end with `changes`; to be called for every write, which also takes an old note away."""
        self._offsets.update(offsets)
        if offsets:
            changes.meta[UNRECORDED] = b",".join(b"%d" % offset for offset in sorted(self._offsets))
            self._noted = True
        elif self._noted and not self._offsets:
            changes.meta[UNRECORDED] = None
            self._noted = False

    def recorded(self, offsets: Iterable[int]) -> None:
        """The log has these as finished, durably."""
        if self._offsets:
            self._offsets.difference_update(offsets)


class UncommittedRows:
    """Rows by id that commands in the store have changed, until a commit has them."""

    def __init__(self) -> None:
        self._gathered: dict[bytes, bytes] = {}
        self._committing: dict[bytes, bytes] = {}
        self.gathered_bytes = 0

    def __contains__(self, uuid: bytes) -> bool:
        return uuid in self._gathered or uuid in self._committing

    def add(self, rows: dict[bytes, bytes]) -> None:
        """Gather these rows for the next commit; a later row of an id replaces an earlier one."""
        self._gathered |= rows
        self.gathered_bytes += sum(map(len, rows.values()))

    def begin_commit(self) -> dict[bytes, bytes]:
        """Return the gathered rows: they are in a commit from now on."""
        self._committing, self._gathered, self.gathered_bytes = self._gathered, {}, 0
        return self._committing

    def end_commit(self) -> None:
        """Drop the rows of the commit: it is durable."""
        self._committing = {}


class ShardContext:
    """See the module's text. `doubt(error)` is called at most once; `claim_doubt`: what came later and leaves
    our claim in doubt too. `on_commit_end()`: a commit has ended. `reread_to`: as DecisionContext's."""

    def __init__(
        self,
        service: DelayServiceContext,
        queue: QueueRef,
        epoch: int,
        generations: Generations,
        store: DelayStore,
        acks: AckMap,
        doubt: Callable[[Exception], None],
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
        self.claim_doubt: Exception | None = None
        self.has_rows = service.backend.compacts  # of the topic WAITING_TOPIC, that the store is a cache of
        self.uncommitted_rows = UncommittedRows()
        self.on_commit_end = on_commit_end
        self._doubt = doubt
        self._closed_until: dict[str, float] = {}
        self._cramped_from = math.inf  # monotonic; when it was seen without room first, or told so
        config = service.config
        limits = SliceLimits(config.slice_count, config.fire_bytes_max, config.kept_ms, config.catch_up_max)
        self.due_scans = DueScans(store, acks, self.look, limits)
        self.unrecorded = Unrecorded(store)
        lost_place = store.meta(INGESTED) is None
        self.decisions = DecisionContext(
            store, acks, self.due_scans.busy, config.kept_ms, reread_to, lost_place, config.catch_up_max
        )

    # --- topics

    def look(self, topic: str) -> TargetTopic | None:
        """What is known of a topic now."""
        known = target_topic(self.service.backend, topic)
        if known is not None and self._is_left_alone(topic):
            return known._replace(writable=False)
        return known

    def _is_left_alone(self, topic: str) -> bool:
        until = self._closed_until.get(topic)
        if until is None:
            return False
        if self.service.clock.monotonic() < until:
            return True
        del self._closed_until[topic]
        return False

    def close_for(self, topic: str, seconds: float) -> None:
        """Do not try this topic for a while."""
        if len(self._closed_until) >= GONE_MAX:
            self._closed_until.clear()
        self._closed_until[topic] = self.service.clock.monotonic() + seconds

    def reopen(self, topic: str) -> None:
        """It has changed: try it again."""
        self._closed_until.pop(topic, None)

    # --- changes

    def awaits_room(self, growing: bool, alarm: Alarm, go: Callable[[], None]) -> bool:
        """Whether the store has no room for new work (see its port): then nothing of it is begun, and `go` is
        called for another look. Raises StorageError."""
        has_room = self.store.has_room(growing)
        if growing:
            self._note_room(has_room)
        if not has_room:
            alarm.once(ROOM_S, go)
        return not has_room

    def _note_room(self, has_room: bool) -> None:
        """Whether there is room to take in what is there."""
        now = self.service.clock.monotonic()
        self._cramped_from = math.inf if has_room else min(self._cramped_from, now)
        if now - self._cramped_from >= CRAMPED_S:
            self._cramped_from = now
            log.warning(
                "delay shard %d takes nothing in: its store has waited for the disk for %.0f s",
                self.queue.queue_id, CRAMPED_S,
            )  # fmt: skip

    def write(self, changes: StoreChanges, ended: Collection[int] = ()) -> bool:
        """Apply them; False when the store would not have them, and the shard is given up. `ended`: offsets
        that are over with them, and nothing but the store says so until they are committed."""
        self.due_scans.added(changes.added)
        self.unrecorded.note(ended, changes)
        return self.safely("store", self.store.write, changes)

    def safely(self, what: str, call: Callable[..., object], *arguments: object) -> bool:
        """Run it; False when it raised, and the shard is given up."""
        try:
            call(*arguments)
        except Exception as error:
            if not isinstance(error, DdmqError):
                log.error("delay shard %d: %s failed", self.queue.queue_id, what, exc_info=error)
            self.doubt(what, error)
            return False
        return True

    def doubt(self, what: str, error: Exception) -> None:
        """Our claim, our store, or what we know of it, is in doubt."""
        self.service.counts.failed(what, error)
        if self.running:
            self.running = False
            self._doubt(error)
        elif isinstance(error, CLAIM_ERRORS):
            self.claim_doubt = error

    def finished(self, offsets: list[int]) -> None:
        """Nothing waits under these any more, and that is durable in the log."""
        self.acks.finish(ranges_of(offsets))
        self.unrecorded.recorded(offsets)

    def taken(self, start: int, end: int) -> ProgressDelta:
        """Commands in [start, end) are in the store, durably."""
        return ProgressDelta(DELAY_GROUP, self.queue, self.epoch, self.generations.taken, ((start, end),))

    def rows(self, values: Mapping[bytes, bytes], wall_ms: int) -> list[NewRecord]:
        """Records of rows; `values` by id."""
        shard = self.queue.queue_id
        return [record_of(shard, uuid, value, wall_ms) for uuid, value in values.items()]

    def done(self, offsets: list[int], attempts: list[tuple[int, int]]) -> ProgressDelta:
        """Nothing waits under these offsets any more; of those in `attempts` so many occurrences fired.

        Where there are rows these say so, and the progress does nothing but keep older owners out.
        """
        if self.has_rows:
            return ProgressDelta(FIRED_GROUP, self.queue, self.epoch, self.generations.fired)
        return ProgressDelta(
            FIRED_GROUP, self.queue, self.epoch, self.generations.fired, ranges_of(offsets), attempts
        )


def ranges_of(offsets: list[int]) -> list[tuple[int, int]]:
    """Whole numbers as ascending ranges `[start, end)` that do not touch."""
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
