"""Operations on the retry path: deliver messages now that wait for a retry, or make them dead letters.

A plan lists the messages that wait at a delay level, each with its offset and message id there. A message
that has left its level by now is skipped: it was delivered, or another operator has moved it. Messages that
are due already, and those that wait in the memory of a proxy for a quick retry, are in no plan. The process
that owns a level changes its messages (ddmq/server/delays/retries.py), so any process can run the operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from backend.port import Backend
from backend.records import StoredRecord
from ddmq.server.admin.contract.bodies import RetryChangeBody, RetryChoiceBody, RetryPosition
from ddmq.server.admin.operations.plans import SAMPLE_MAX, Plan
from ddmq.server.admin.operations.state import BatchResult, merge_skipped
from ddmq.server.admin.operations.storing import OperationStore
from ddmq.server.admin.operations.target import PLAN_S, EncodeProgress, PlanDraft, shorten_fields
from ddmq.server.admin.search.error_classes import classify_error
from ddmq.server.admin.search.records import RecordScan
from ddmq.server.admin.search.retries import contains_text, describe_retry, list_level_ranges
from ddmq.server.delays.retries import RetryChanges
from ddmq.server.http.parameters import Query, read_body
from ddmq.server.http.routing import AdminRequest, read_forwarded
from ddmq_common.clock import Clock

ITEMS_MAX = 20_000  # messages in a plan
BATCH = 64
SAMPLE_FIELDS = ("id", "topic", "key", "error", "due_ms", "level", "step", "deliveries", "since_ms")
Item = tuple[int, int, str]  # level, offset and message id


def plan_retries(
    backend: Backend, clock: Clock, changes: RetryChanges, action: str, body: RetryChoiceBody
) -> PlanDraft:
    """List the waiting messages of a group that match, level by level; at most ITEMS_MAX."""
    items: list[list[Any]] = []
    sample: list[dict[str, Any]] = []
    skipped, topics = dict[str, int](), dict[str, None]()
    scan = LevelScan(backend, clock)
    for record in scan.walk_records():
        row = describe_retry(record, body.group)
        if row is None or not _is_chosen(row, record, body):
            continue
        if len(items) == ITEMS_MAX:
            scan.is_complete = False
            break
        items.append([row["level"], row["level_offset"], row["id"]])
        reason = changes.find_obstacle(record, body.group, action)
        if reason:
            items[-1].append(reason)
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        topics[row["topic"]] = None
        if len(sample) < SAMPLE_MAX:
            sample.append(shorten_fields(row, SAMPLE_FIELDS))
    counted = len(items) - sum(skipped.values())
    reached = changes.list_reached(topics, body.group, action)
    return PlanDraft(counted, scan.is_complete, skipped, sample, reached, 0, items)


class LevelScan:
    """A walk over all messages that wait at delay levels at its start, for at most PLAN_S. `is_complete`: it
    has reached the end."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._ranges = list_level_ranges(backend)
        self._stop_at = clock.monotonic() + PLAN_S
        self.is_complete = True

    def walk_records(self) -> Iterator[StoredRecord]:
        after = None
        while True:
            scan = RecordScan(self._backend, self._clock, self._ranges, after)
            yield from scan.walk_records()
            after = scan.next
            if after is None:
                return
            if self._clock.monotonic() >= self._stop_at:
                self.is_complete = False
                return


def _is_chosen(row: dict[str, Any], record: StoredRecord, body: RetryChoiceBody) -> bool:
    """Return whether a retry of the group is among those that the filter chooses."""
    return (
        (not body.ids or row["id"] in body.ids)
        and body.topic in (None, row["topic"])
        and body.key in (None, row["key"])
        and body.error in (None, classify_error(row["error"]))
        and body.level in (None, row["level"])
        and (body.from_ms is None or row["due_ms"] >= body.from_ms)
        and (body.to_ms is None or row["due_ms"] < body.to_ms)
        and (body.text is None or contains_text(row, record, body.text))
    )


class RetryTarget:
    """The retries of a plan."""

    batch_max = BATCH
    missing = "not found"

    def __init__(self, changes: RetryChanges, store: OperationStore, plan: Plan) -> None:
        self._changes = changes
        self._store = store
        self._plan = plan
        self._group = read_body(RetryChoiceBody, plan.filter).group
        self._reasons: dict[Item, str] = {}  # of a batch that failed: kept for its repetition
        self._reasons_at = -1  # cursor of that batch

    def run_batch(self, cursor: int, limit: int, encode: EncodeProgress) -> tuple[BatchResult, bool]:
        """Change up to `limit` messages, level by level.

        If a level cannot be changed, the others are still changed, and a repetition of the batch counts their
        outcomes without changing them again.
        """
        items = self._store.read_items(self._plan.id, cursor, limit)
        if not items:
            return BatchResult(0, {}, None), False
        if cursor != self._reasons_at:
            self._reasons, self._reasons_at = {}, cursor
        levels: dict[int, list[Item]] = {}
        for level, offset, message_id, *planned_reason in items:
            item = level, offset, message_id
            if planned_reason:
                self._reasons[item] = planned_reason[0]
            elif item not in self._reasons:
                levels.setdefault(level, []).append(item)
        errors = [
            error for level, rest in levels.items() if (error := self._try_change(level, rest)) is not None
        ]
        if errors:
            raise errors[0]
        changed, skipped = 0, dict[str, int]()
        for level, offset, message_id, *_ in items:
            reason = self._reasons[level, offset, message_id]
            changed += not reason
            skipped = merge_skipped(skipped, {reason: 1} if reason else {})
        at = cursor + len(items)
        return BatchResult(changed, skipped, at if at < self._plan.items else None), False

    def _try_change(self, level: int, items: list[Item]) -> Exception | None:
        """Change messages of one level, and keep the outcomes; return the error if they are not known."""
        positions = [RetryPosition(offset=offset, id=message_id) for _, offset, message_id in items]
        body = RetryChangeBody(
            group=self._group, action=self._plan.action, level=level, messages=positions,  # type: ignore[arg-type]
        )  # fmt: skip
        request = AdminRequest({}, Query(), body, "POST", "/retries")
        try:
            answer = read_forwarded(self._changes.answer_anywhere(request), "the owner of the level")
        except Exception as error:
            return error
        for row in answer["items"]:
            self._reasons[level, row["offset"], row["id"]] = row.get("reason", "")
        return None
