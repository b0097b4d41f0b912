"""Changes of retries, `POST /retries`: messages of a group that wait at a delay level are delivered now, or
become dead letters.

Only the process that owns the level changes it (decision 30), so any other process forwards the request to
the admin address of the owner. A dry run only reads, and is answered anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from backend.internal_topics import real_record
from backend.port import Backend
from backend.records import NewRecord, QueueRef, ReadStatus, StoredRecord
from ddmq.server.admin.contract.bodies import RetryChangeBody
from ddmq.server.admin.dlq_changes import list_groups_reached
from ddmq.server.admin.figures import OtherProcesses
from ddmq.server.admin.topics import WAIT_S
from ddmq.server.http.routing import AdminRequest, UncertainOutcomeError, forward_request
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError, DamagedError, TryLaterError
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC, dlq_topic, retry_topic
from ddmq_common.native_threads import in_thread
from delay_service.due.backend import target_topic
from delay_service.levels.removal import LEFT, MISSING, RemovalOrder
from delay_service.levels.service import LevelService
from proxy_consumer.retries import headers

OUTCOME_S = 30.0  # longer than the owner of a level works on an order
OTHER_MESSAGE = "another message is at its offset"
OTHER_GROUP = "it is no retry of this group"
CLOSED = "its retry topic accepts no messages now"
SKIPPED = "skipped"  # the reason in dead letters, as for the head of a key that an operator skips
READ_BYTES = 1 << 20


class RetryChanges:
    """Changes retries. `levels`: the level scheduler of this process, or None."""

    def __init__(
        self, backend: Backend, levels: LevelService | None, clock: Clock, others: OtherProcesses
    ) -> None:
        self._backend = backend
        self._levels = levels
        self._clock = clock
        self._others = others

    def answer_anywhere(self, request: AdminRequest) -> Any:
        """Answer a request, or return the answer of the process that owns the level. Raises CallerError,
        TryLaterError, or UncertainOutcomeError if it is not known which messages were changed."""
        body: RetryChangeBody = request.body
        queue = self._find_level(body.level)
        twice = [
            offset for offset, count in Counter(each.offset for each in body.messages).items() if count > 1
        ]
        if twice:
            raise CallerError(f"offset {twice[0]} is in messages more than once; allowed: once")
        if body.dry_run:
            return self._preview_change(queue, body)
        if request.is_forwarded or (self._levels is not None and self._levels.owns_level(body.level)):
            return self._change_messages(body)
        owners = self._backend.holders(LEVELS_GROUP, SCHEDULE_TOPIC, self._clock.monotonic() + WAIT_S)
        address = owners.wait(WAIT_S).get(queue)
        if not address:
            raise TryLaterError(f"no process that can change delay level {body.level} is known; try again")
        return in_thread(forward_request, address, request, self._others.read_token())

    def find_obstacle(self, record: StoredRecord, group: str, action: str) -> str:
        """Return why a message at a delay level cannot be changed; "" if it can."""
        topic = retry_topic(group)
        try:
            if real_record(record).topic != topic:
                return OTHER_GROUP
        except DamagedError:
            return OTHER_GROUP
        if action != "now":
            return ""
        target = target_topic(self._backend, topic)
        if target is None:
            return f"{topic} does not exist any more"
        return "" if target.writable and not target.unavailable else CLOSED

    def _find_level(self, level: int) -> QueueRef:
        info = self._backend.topic(SCHEDULE_TOPIC)
        if info is None:
            raise TryLaterError("the level scheduler has not started yet; try again")
        if level > info.queues:
            raise CallerError(f"level is {level}; allowed: 1 to {info.queues}")
        return info.refs()[level - 1]

    # --- the change

    def _change_messages(self, body: RetryChangeBody) -> dict[str, Any]:
        if self._levels is None:
            raise TryLaterError(f"this process does not own delay level {body.level}; try again")
        ids = {each.offset: each.id for each in body.messages}
        topics: dict[int, str] = {}  # of the messages that can be changed, by offset

        def build_record(record: StoredRecord, bare: bool) -> NewRecord | str:
            reason = self._find_difference(record, ids[record.offset], body)
            if reason:
                return reason
            topics[record.offset] = record.system.get(headers.TOPIC, "")
            return self._build_record(record, body, bare=bare)

        dead_topic = "" if body.action == "now" else dlq_topic(body.group)
        order = RemovalOrder(list(ids), build_record, dead_topic)
        try:
            reasons = self._levels.remove_messages(body.level, order).wait(OUTCOME_S)
        except TimeoutError as error:
            raise UncertainOutcomeError(f"{error}; the messages may or may not be changed") from error
        return self._format_answer(body, reasons, topics)

    def _build_record(self, record: StoredRecord, body: RetryChangeBody, *, bare: bool) -> NewRecord:
        """Return the record that takes the place of a retry, whose message and group were checked."""
        real = real_record(record)
        if body.action == "now":
            target = target_topic(self._backend, real.topic)
            real.queue_id %= 1 if target is None else target.queues
            return real
        due = record._replace(topic=real.topic, queue_id=real.queue_id, system=dict(real.system or {}))
        wall_ms = self._clock.wall_ms()
        return headers.dead_letter(body.group, due, headers.headers_of(due), SKIPPED, wall_ms, bare=bare)

    def _find_difference(self, record: StoredRecord, message_id: str, body: RetryChangeBody) -> str:
        if record.message_id.hex() != message_id:
            return OTHER_MESSAGE
        return self.find_obstacle(record, body.group, body.action)

    # --- the dry run

    def _preview_change(self, queue: QueueRef, body: RetryChangeBody) -> dict[str, Any]:
        (view,) = self._backend.progress(LEVELS_GROUP, [queue]).wait(WAIT_S)
        finished = [(0, view.committed or 0), *view.finished]
        reasons, topics = dict[int, str](), dict[int, str]()
        for message in body.messages:
            offset = message.offset
            if any(start <= offset < end for start, end in finished):
                reasons[offset] = LEFT
                continue
            record = self._read_record(queue, offset)
            reasons[offset] = MISSING if record is None else self._find_difference(record, message.id, body)
            if record is not None:
                topics[offset] = record.system.get(headers.TOPIC, "")
        return self._format_answer(body, reasons, topics)

    def _read_record(self, queue: QueueRef, offset: int) -> StoredRecord | None:
        batch = self._backend.read(queue, offset, 1, READ_BYTES).wait(WAIT_S)
        if batch.status is not ReadStatus.DATA or not batch.offsets or batch.offsets[0] != offset:
            return None
        try:
            return batch.record(0)
        except DamagedError:
            return None

    def _format_answer(
        self, body: RetryChangeBody, reasons: Mapping[int, str], topics: Mapping[int, str]
    ) -> dict[str, Any]:
        items = [
            {"offset": each.offset, "id": each.id, "changed": not reasons[each.offset],
             "reason": reasons[each.offset]}
            for each in body.messages
        ]  # fmt: skip
        changed = [offset for offset, reason in reasons.items() if not reason]
        reached = self.list_reached((topics[offset] for offset in changed), body.group, body.action)
        return {"changed": len(changed), "items": items, "reaches": reached, "dry_run": body.dry_run}

    def list_reached(self, topics: Iterable[str], group: str, action: str) -> dict[str, Any]:
        """Return the group that gets the messages of these topics now, by topic; none of dead letters."""
        if action != "now":
            return {}
        return {topic: list_groups_reached(self._backend, topic, group) for topic in Counter(topics)}
