"""Operations on delayed messages: cancel, fire, reschedule, hold and release.

A plan lists the messages with the due time and the number of the delivery of each. A message that differs by
now is skipped: it was fired, cancelled or rescheduled since it was shown. Messages of a topic whose delays
are held, and messages that are held themselves, are not fired, because the outcome of each would be known
only after the release. A reschedule does not count messages whose new due time is not allowed. Messages are
read and changed by the requests of the admin API, so any process can run the operation that reaches the delay
service and a producer proxy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
from gevent.pool import Pool

from ddmq.server.admin.contract.bodies import DelayChangeBody, DelayChoiceBody
from ddmq.server.admin.contract.queries import DelaysQuery
from ddmq.server.admin.operations.plans import SAMPLE_MAX, Plan
from ddmq.server.admin.operations.state import BatchResult, merge_skipped
from ddmq.server.admin.operations.storing import OperationStore
from ddmq.server.admin.operations.target import PLAN_S, EncodeProgress, PlanDraft, shorten_fields
from ddmq.server.admin.producer.calls import ProducerCalls
from ddmq.server.delays.changes import change_message
from ddmq.server.delays.lists import DelayLists
from ddmq.server.delays.queries import PENDING, DelayQueries
from ddmq.server.http.parameters import Query
from ddmq.server.http.routing import AdminRequest, Text
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError, TryLaterError

ITEMS_MAX = 20_000  # messages in a plan
PAGE = 1_000
BATCH = 256  # in which few syncs of the log are waited for
CONCURRENCY = 128
DUE_MAX_MS = 253_402_300_799_999  # the end of the year 9999
SAMPLE_FIELDS = ("id", "due_ms", "topic", "key", "born_ms", "repeats", "preview")
HELD = "the delays of its topic are held"
HELD_ITSELF = "it is held"
HELD_BEFORE = "it is held already"
NOT_HELD = "it is not held"
REJECTED = "the change is not allowed"  # such as a new due time that is too late
CHANGED = {
    "cancel": "cancelled", "fire": "fired", "reschedule": "rescheduled", "hold": "held",
    "release": "released",
}  # outcomes by action  # fmt: skip


def plan_delays(
    lists: DelayLists,
    clock: Clock,
    calls: ProducerCalls,
    action: str,
    body: DelayChoiceBody,
    options: dict[str, Any],
) -> PlanDraft:
    """List the delayed messages that match, the earliest due first; at most ITEMS_MAX. `calls`: know which
    due times are allowed."""
    if action != "reschedule" and options:
        raise CallerError(f"{' and '.join(options)} with action {action!r}; allowed: none")
    if action == "reschedule" and len(options) != 1:
        raise CallerError("due_ms and shift_ms with action 'reschedule'; allowed: exactly one of them")
    items: list[list[Any]] = []
    sample: list[dict[str, Any]] = []
    skipped, complete = dict[str, int](), True
    stop_at = clock.monotonic() + PLAN_S
    for page in _read_pages(lists, body):
        complete &= not (page["orders_waiting"] or page["elsewhere"] or page["not_open"])
        for row in page["messages"]:
            if not row["id"] or not _was_born_in(row["born_ms"], body):
                continue
            if len(items) == ITEMS_MAX:
                complete = False
                break
            items.append([row["id"], row["due_ms"], row["occurrence"]])
            reason = _find_obstacle(action, row, topic_held=row["topic"] in page["held"])
            if action == "reschedule" and not calls.allows_due_ms(_new_due_ms(options, row["due_ms"])):
                reason = REJECTED
            if reason:
                items[-1].append(reason)
                skipped[reason] = skipped.get(reason, 0) + 1
            elif len(sample) < SAMPLE_MAX:
                sample.append(shorten_fields(row, SAMPLE_FIELDS))
        if len(items) == ITEMS_MAX or (page["next"] is not None and clock.monotonic() >= stop_at):
            complete &= page["next"] is None
            break
    return PlanDraft(len(items) - sum(skipped.values()), complete, skipped, sample, {}, 0, items)


def _find_obstacle(action: str, row: Mapping[str, Any], *, topic_held: bool) -> str:
    """Return why a message as it is now cannot be changed; "" if it can."""
    is_held = bool(row.get("held"))
    if action == "fire":
        return HELD if topic_held else HELD_ITSELF if is_held else ""
    if action == "hold":
        return HELD_BEFORE if is_held else ""
    return NOT_HELD if action == "release" and not is_held else ""


def _new_due_ms(options: Mapping[str, int], due_ms: int) -> int:
    """Return the due time to which a reschedule moves a message that is due at `due_ms`."""
    target_ms = options["due_ms"] if "due_ms" in options else due_ms + options["shift_ms"]
    return min(max(target_ms, 0), DUE_MAX_MS)


def _was_born_in(born_ms: int, body: DelayChoiceBody) -> bool:
    return (body.born_from_ms is None or born_ms >= body.born_from_ms) and (
        body.born_to_ms is None or born_ms < body.born_to_ms
    )


def _read_pages(lists: DelayLists, body: DelayChoiceBody) -> Iterator[dict[str, Any]]:
    """Yield pages of `GET /delay/messages`, of all owners."""
    after = None
    while True:
        query = DelaysQuery(
            topic=body.topic, key=body.key, from_ms=body.from_ms, to_ms=body.to_ms, count=PAGE, after=after
        )
        request = AdminRequest({}, query, {}, "GET", "/delay/messages")
        page = lists.list_messages(request)
        yield page
        after = page["next"]
        if after is None:
            return


class DelayTarget:
    """The delayed messages of a plan."""

    batch_max = BATCH
    missing = "not found"

    def __init__(self, delays: DelayQueries, calls: ProducerCalls, store: OperationStore, plan: Plan) -> None:
        self._delays = delays
        self._calls = calls
        self._store = store
        self._plan = plan
        self._pool = Pool(CONCURRENCY)
        self._outcomes: dict[str, str] = {}  # of a batch that failed, by delay id: kept for its repetition
        self._outcomes_at = -1  # cursor of that batch

    def run_batch(self, cursor: int, limit: int, encode: EncodeProgress) -> tuple[BatchResult, bool]:
        """Change up to `limit` messages, and wait for all outcomes.

        If a change fails, the others are still carried out, and a repetition of the batch counts their
        outcomes without changing them again.
        """
        items = self._store.read_items(self._plan.id, cursor, limit)
        if not items:
            return BatchResult(0, {}, None), False
        if cursor != self._outcomes_at:
            self._outcomes, self._outcomes_at = {}, cursor
        remaining = [item for item in items if item[0] not in self._outcomes]
        errors = [error for error in self._pool.map(self._try_change, remaining) if error is not None]
        if errors:
            raise errors[0]
        changed, skipped = 0, dict[str, int]()
        for item in items:
            reason = self._outcomes[item[0]]
            changed += not reason
            skipped = merge_skipped(skipped, {reason: 1} if reason else {})
        at = cursor + len(items)
        return BatchResult(changed, skipped, at if at < self._plan.items else None), False

    def _try_change(self, item: list[Any]) -> Exception | None:
        """Change one message and keep its outcome; return the error if that is not known."""
        try:
            self._outcomes[item[0]] = self._change_message(item)
        except Exception as error:
            return error
        return None

    def _change_message(self, item: list[Any]) -> str:
        """Change one message unless it differs from the plan; return why it was not changed, or ""."""
        delay_id, due_ms, occurrence, *planned_reason = item
        if planned_reason:
            return str(planned_reason[0])
        row = self._delays.fetch_message(delay_id)
        reason = _find_difference(self._plan.action, row, due_ms, occurrence)
        if reason:
            return reason
        reason = _find_obstacle(self._plan.action, row, topic_held=self._delays.is_held(row["topic"]))
        if reason:
            return reason
        is_move = self._plan.action == "reschedule"
        target_ms = _new_due_ms(self._plan.options, due_ms) if is_move else None
        body = DelayChangeBody(action=self._plan.action, due_ms=target_ms)  # type: ignore[arg-type]
        request = AdminRequest({"id": delay_id}, Query(), body, "POST", "/delay/messages/{id}")
        try:
            outcome = _read_outcome(
                self._calls.answer_anywhere(request, partial(change_message, self._calls))
            )
        except CallerError:
            return REJECTED
        return "" if outcome in (CHANGED[self._plan.action], PENDING) else outcome


def _find_difference(action: str, row: Any, due_ms: int, occurrence: int) -> str:
    """Return how a message differs from the one that the plan showed; "" if it does not.

    A repeating message that has fired meanwhile can still be cancelled: that ends all further deliveries.
    """
    if row["state"] != PENDING:
        return f"{row['state']} meanwhile"
    if row.get("due_ms") == due_ms and row.get("occurrence") == occurrence:
        return ""
    if row.get("occurrence", occurrence) == occurrence:
        return "rescheduled meanwhile"
    return "" if action == "cancel" else "its next delivery is another one now"


def _read_outcome(answer: Any) -> str:
    """Return the outcome of a change; also of a message that is not known any more (404). Raises CallerError
    if another process rejects the change (400).
    """
    if isinstance(answer, Text):
        row = msgspec.json.decode(answer.payload)
        if answer.status == 400:
            raise CallerError(str(row.get("error", "status 400")))
        if answer.status not in (200, 404) or "outcome" not in row:
            raise TryLaterError(str(row.get("error", f"status {answer.status}")))
        return str(row["outcome"])
    return str(answer["outcome"])
