"""Gathers the facts about one message: its copies in the log, its trace events, and each group's progress.

Nothing here changes anything. Where the engine finds nothing by an id, a message is what its topic, queue and
offset say: no copy of it is found, and its trace events are looked for by time, in the one queue they can
be in, up to a bound; the caveats of the story state this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic
from typing import Any, NamedTuple

from backend.port import Backend
from backend.records import ONE_GROUP, QueueRef, ReadStatus, StoredRecord
from backend.traces import queue_of
from ddmq.server.admin.messages import READ_S_PER_BYTE, Live, MessageStates
from ddmq.server.admin.offsets import last_reset_ms
from ddmq.server.admin.topics import WAIT_S
from ddmq.server.delays.queries import CANCELLED, PENDING
from ddmq.server.http.pace import paced, yield_if_long
from ddmq.server.http.routing import NoSuchGroupError
from ddmq.server.story.copies import copies_of, copy_of, first_id, is_at, main_of, topic_of, transaction_of
from ddmq.server.story.core.facts import CopyKind, GroupStanding, MessageCopy, RecordedEvent, StoryFacts
from ddmq_client.idl.codes import TransactionOutcome
from ddmq_common import delivery, names
from ddmq_common.errors import ConfigError, DamagedError, DdmqError
from ddmq_common.trace.events import Wait, decode_batch
from proxy_consumer.core.queue_feed import FILTERED
from proxy_consumer.filters.message_filters import filter_for
from proxy_consumer.groups.group import SUBSCRIPTION_PREFIX, stored_subscription, subscription_key
from proxy_consumer.groups.stats import DONE, LEFT
from proxy_consumer.tracing.messages import MessageWaits
from proxy_producer.transactions.codec import read_op

GROUPS_MAX = 100  # in one story
COPIES_MAX = 64  # of one message in one topic
TRACE_RECORDS_MAX = 1_000  # of one message
SCANNED_MAX = 100_000  # trace records that are read where the engine cannot find them by id
SCAN_COUNT, SCAN_BYTES = 1_000, 4 << 20
SINCE_MS = 5_000  # trace events of a message may have been stored so much before its own clock says
OWNERS_WAIT_S = 1.0  # for the owner of a queue
Waits = Callable[[str, str, QueueRef, int], MessageWaits | None]
Delayed = Callable[[str], Mapping[str, Any]]
"""What the delay service says of a uuid, wherever it runs. Raises DdmqError."""


class GatheredStory(NamedTuple):
    """The facts about one message. `topic`: its topic; "" if no record names it. `main`: the message's newest
    record in that topic."""

    topic: str
    main: StoredRecord | None
    facts: StoryFacts
    caveats: list[str]


def _newest_for(group: str, mains: Iterable[StoredRecord]) -> StoredRecord | None:
    """Return the newest of the topic's records `mains` that is delivered to the group; None if there is
    none."""
    return next((one for one in mains if one.system.get(ONE_GROUP, group) == group), None)


class StoryGatherer:
    """Gathers the facts about a message for one request. `live`, `waits`: the state at the consumer proxy of
    this process; None if no proxy runs here."""

    def __init__(self, backend: Backend, live: Live | None, waits: Waits | None, delayed: Delayed) -> None:
        self._backend = backend
        self._delayed = delayed
        self._live = live
        self._waits = waits
        self._caveats: list[str] = []

    def gather_story(self, message: StoredRecord, only: str | None) -> GatheredStory:
        """Gather the facts about the message of the record `message`. `only`: the only group to include; None
        means all groups."""
        message_id = message.message_id
        levels = () if topic_of(message) else self._find_records(names.SCHEDULE_TOPIC, message_id)
        topic = next(filter(None, map(topic_of, (message, *levels))), "")
        mains = self._find_records(topic, message_id) if topic else []
        if not mains and message.topic == topic:
            mains = [message]
        events = list(self._trace_events(message))
        groups = [only] if only is not None else self._list_groups(topic, events)
        copies = [main_of(record) for record in mains]
        copies += self._find_copies(topic, message_id, groups)
        if not any(is_at(copy, message) for copy in copies):
            copies += copies_of(message, topic)
        main = mains[0] if mains else None
        copies = copies if main is not None else list(self._as_delayed(copies))
        standings = [self._group_standing(group, topic, _newest_for(group, mains)) for group in paced(groups)]
        facts = StoryFacts(copies, events, standings, self._backend.clock_ms())
        return GatheredStory(topic, main, facts, self._caveats)

    def _add_caveat(self, text: str) -> None:
        if text not in self._caveats:
            self._caveats.append(text)

    # --- records

    def _find_records(self, topic: str, message_id: bytes, count_max: int = COPIES_MAX) -> list[StoredRecord]:
        can = self._backend.capabilities
        if not can.find_by_key:
            self._add_caveat(
                f"{can.engine} finds nothing by a message's id: of delays, retries and dead letters "
                "only what was traced is known"
            )
        if not can.find_by_key or self._backend.topic(topic) is None:
            return []
        return self._backend.find(topic, message_id=message_id, count_max=count_max).wait(WAIT_S)

    def _find_copies(self, topic: str, message_id: bytes, groups: Iterable[str]) -> Iterator[MessageCopy]:
        """Yield the copies of the message that are stored in other topics than its own."""
        for name in (
            names.SCHEDULE_TOPIC,
            names.DELAY_DLQ_TOPIC,
            names.DELAY_TOPIC,
            names.TRANSACTION_DEAD_TOPIC,
        ):
            for record in self._find_records(name, message_id):
                yield from copies_of(record, topic)
        yield from self._transaction_copies(topic, message_id)
        first = first_id(message_id)
        if first != message_id:  # a later delivery of a message that repeats
            for record in self._find_records(names.DELAY_TOPIC, first):
                yield from (copy._replace(due_ms=0) for copy in copies_of(record, topic))
        for group in paced(list(groups)):
            for name in (names.retry_topic(group), names.dlq_topic(group)):
                for record in self._find_records(name, message_id):
                    yield from copies_of(record, topic)

    def _transaction_copies(self, topic: str, message_id: bytes) -> Iterator[MessageCopy]:
        """Yield the copy of the message's half message and, if it never became visible, of how its
        transaction ended. A second half message, of a send that was repeated, counts as the same message."""
        halves = [one for one in self._find_records(names.HALF_TOPIC, message_id) if topic_of(one) == topic]
        if not halves:
            return
        half = min(halves, key=lambda one: one.offset)
        yield from copies_of(half, topic)
        for record in self._find_records(names.OP_TOPIC, transaction_of(half), 1):
            try:
                op = read_op(bytes(record.delivery))
            except DamagedError:
                self._add_caveat("how its transaction ended cannot be read")
                continue
            if op.outcome == TransactionOutcome.ROLLED_BACK:
                yield copy_of(record, CopyKind.ROLLED_BACK)

    def _as_delayed(self, copies: Iterable[MessageCopy]) -> Iterator[MessageCopy]:
        """Yield the copies, updated by the delay service's state, because a delayed message may have been
        rescheduled or cancelled."""
        for copy in copies:
            if copy.kind is not CopyKind.COMMAND or not copy.reason:
                yield copy
                continue
            try:
                delay_state = self._delayed(copy.reason)
            except (DdmqError, TimeoutError) as error:
                self._add_caveat(
                    f"it is delayed as it was sent; whether that was changed is not known: {error}"
                )
                delay_state = {"state": PENDING}
            state = str(delay_state["state"])
            if delay_state.get("held"):
                self._add_caveat(
                    "an operator holds it: it fires when it is released (`ddmq delay release ID`)"
                )
            yield copy._replace(due_ms=delay_state.get("due_ms", copy.due_ms))
            if state.startswith(CANCELLED):
                at_ms = max(delay_state.get("at_ms", 0), copy.stored_ms)
                yield copy._replace(kind=CopyKind.CANCELLED, stored_ms=at_ms)
            elif state != PENDING:
                self._add_caveat(f"the delay service says of it: {state}")

    # --- trace events

    def _trace_events(self, message: StoredRecord) -> Iterator[RecordedEvent]:
        damaged = 0
        for record in self._trace_records(message):
            try:
                batch = decode_batch(delivery.decode(record.delivery).value)
            except DamagedError:
                damaged += 1
                continue
            for event in batch.events:
                yield RecordedEvent(batch.process, batch.instance, event)
        if damaged:
            self._add_caveat(f"{damaged} trace records cannot be read and are left out")

    def _trace_records(self, message: StoredRecord) -> list[StoredRecord]:
        info = self._backend.topic(names.TRACE_TOPIC)
        if info is None:
            return []
        if self._backend.capabilities.find_by_key:
            records = self._find_records(names.TRACE_TOPIC, message.message_id, TRACE_RECORDS_MAX)
            if len(records) == TRACE_RECORDS_MAX:
                self._add_caveat(
                    f"there are more than {TRACE_RECORDS_MAX} trace records: the newest are told of"
                )
            return records
        queue = QueueRef(info.name, info.incarnation, queue_of(message.message_id, info.queues))
        return self._scan_queue(queue, message)

    def _scan_queue(self, queue: QueueRef, message: StoredRecord) -> list[StoredRecord]:
        """Return the trace records of a message in a queue, from the time it was sent."""
        since_ms = max(min(message.born_ms, message.stored_ms) - SINCE_MS, 0)
        records: list[StoredRecord] = []
        at, remaining = self._backend.offset_for_time(queue, since_ms).wait(WAIT_S), SCANNED_MAX
        while remaining > 0:
            batch = self._backend.read(queue, at, min(remaining, SCAN_COUNT), SCAN_BYTES).wait(WAIT_S)
            if batch.status is not ReadStatus.DATA:
                return records
            for index, message_id in enumerate(batch.message_ids()):
                if message_id == message.message_id:
                    records.append(batch.record(index))
            yield_if_long(sum(map(len, batch.deliveries)) * READ_S_PER_BYTE)
            remaining -= len(batch.offsets)
            at = batch.next_offset
        self._add_caveat(f"{SCANNED_MAX} trace records since it was sent were looked at; later ones were not")
        return records

    # --- groups

    def _list_groups(self, topic: str, events: Iterable[RecordedEvent]) -> list[str]:
        """Return the groups that read the topic now, or that read it when the message was traced."""
        keys = (key.removeprefix(SUBSCRIPTION_PREFIX) for key in self._backend.settings(SUBSCRIPTION_PREFIX))
        reading = {name for name, _, read in (key.partition("/") for key in keys) if read == topic}
        groups = sorted(reading | {one.event.group for one in events if one.event.group})
        if len(groups) > GROUPS_MAX:
            self._add_caveat(
                f"{len(groups)} groups read {topic}: the first {GROUPS_MAX} are told of, or name one"
            )
        return groups[:GROUPS_MAX]

    def _group_standing(self, group: str, topic: str, main: StoredRecord | None) -> GroupStanding:
        if main is None:
            return GroupStanding(group, "", False)
        try:
            row = MessageStates(self._backend, group, self._live).add([{}], [main])[0]
        except NoSuchGroupError:
            return GroupStanding(group, f"{group} does not exist any more", False)
        state, error = str(row["state"]), str(row.get("last_error", ""))
        waits = self._recorded_waits(group, main)
        return GroupStanding(
            group,
            f"{state}: {error}" if error else state,
            state in (DONE, LEFT),
            waits,
            *self._subscription_terms(group, main),
            last_reset_ms(self._backend, group, main.topic, main.queue_id),
        )

    def _recorded_waits(self, group: str, main: StoredRecord) -> list[Wait]:
        """Return the reasons of waiting that the consumer proxy of this process has recorded; none if another
        proxy owns the queue."""
        info = self._backend.topic(main.topic)
        if self._waits is None or info is None:
            return []
        queue = QueueRef(info.name, info.incarnation, main.queue_id)
        wait_record = self._waits(group, main.topic, queue, main.stored_ms)
        if wait_record is None or (not wait_record.here and self._has_owner(group, queue)):
            return []
        return wait_record.waits

    def _has_owner(self, group: str, queue: QueueRef) -> bool:
        try:
            request = self._backend.holders(group, queue.topic, monotonic() + OWNERS_WAIT_S)
            owners = request.wait(OWNERS_WAIT_S)
        except (DdmqError, TimeoutError):
            return True
        return queue in owners

    def _subscription_terms(self, group: str, main: StoredRecord) -> tuple[int, str]:
        """Return when the group's subscription was created, and its filter if that rejects the message, else
        ""."""
        key = subscription_key(group, main.topic)
        value = self._backend.setting(key)
        try:
            stored = stored_subscription(key, b"{}" if value is None else value)
            tags, sql = str(stored.overrides.get("tags", "")), str(stored.overrides.get("sql", ""))
            message_filter = filter_for(tags, sql)
        except ConfigError:
            return 0, ""
        is_filtered = message_filter is not None and message_filter.find_rejection(main.delivery) is FILTERED
        return stored.created_ms, f"its filter keeps it back: {sql or tags}" if is_filtered else ""
