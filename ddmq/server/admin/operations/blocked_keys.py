"""Operations on blocked order keys: park, skip and replay.

A plan lists the keys with the position of the first message of each. A key whose first message is another
one by now is skipped: it has moved on since it was shown.
"""

from __future__ import annotations

from typing import Any

from backend.completion import Completion
from ddmq.server.admin import keys
from ddmq.server.admin.contract.bodies import KeyChoiceBody
from ddmq.server.admin.operations.plans import SAMPLE_MAX, Plan
from ddmq.server.admin.operations.state import BatchResult, merge_skipped
from ddmq.server.admin.operations.storing import OperationStore
from ddmq.server.admin.operations.target import EncodeProgress, PlanDraft, shorten_fields
from ddmq.server.admin.search.error_classes import classify_error
from ddmq.server.admin.topics import WAIT_S
from ddmq.server.http.parameters import read_body
from ddmq_common.errors import BoundReachedError, CallerError
from proxy_consumer.groups.blocked_keys import IN_FLIGHT, PARKED
from proxy_consumer.groups.ordering import DEAD, REPLAYED, TAKEN_AWAY, GroupOrdering, KeyOutcome
from proxy_consumer.service import ConsumerService

BATCH = 50
RETRYING = "retrying"
STATES = {"park": (RETRYING, IN_FLIGHT), "skip": (RETRYING, PARKED), "replay": (RETRYING, PARKED)}
ALLOWED_STATES = {"park": (RETRYING, IN_FLIGHT), "skip": (RETRYING, PARKED, IN_FLIGHT),
                  "replay": (RETRYING, PARKED)}  # fmt: skip
CHANGED = {"park": None, "skip": (DEAD,), "replay": (REPLAYED, TAKEN_AWAY)}  # outcomes; None: all
SAMPLE_FIELDS = ("key", "topic", "queue_id", "offset", "state", "error", "reason", "attempts", "waiting",
                 "since_ms")  # fmt: skip
NO_HEAD = ("", -1, -1)  # of a parked key that has no message at this proxy
MOVED_ON = "another message is the first of its key now"


def plan_keys(consumer: ConsumerService, action: str, body: KeyChoiceBody) -> PlanDraft:
    """List the blocked keys at this proxy that match."""
    allowed = ALLOWED_STATES[action]
    if body.state is not None and body.state not in allowed:
        raise CallerError(f"state is {body.state!r}; allowed for {action}: {', '.join(allowed)}")
    states = STATES[action] if body.state is None else (body.state,)
    rows = keys.list_blocked_keys(consumer, body.group, keys.LIMIT_MAX)
    chosen_keys = {key for text in body.keys for key in keys.possible_keys(text)}
    matches = [
        row
        for row in rows
        if row["state"] in states
        and (not chosen_keys or row["key"] in chosen_keys)
        and body.error in (None, classify_error(row["error"]))
        and (body.text is None or body.text in row["key"] or body.text in row["error"])
    ]
    return PlanDraft(
        counted=len(matches),
        exact=len(rows) < keys.LIMIT_MAX,
        skipped={},
        sample=[shorten_fields(row, SAMPLE_FIELDS) for row in matches[:SAMPLE_MAX]],
        reaches={},
        cursor=0,
        items=[[row["key"], row["topic"], row["queue_id"], row["offset"]] for row in matches],
    )


class KeyTarget:
    """The blocked keys of a plan."""

    batch_max = BATCH
    missing = "not found"

    def __init__(self, consumer: ConsumerService, store: OperationStore, plan: Plan) -> None:
        self._consumer = consumer
        self._store = store
        self._plan = plan
        self._group = read_body(KeyChoiceBody, plan.filter).group

    def run_batch(self, cursor: int, limit: int, encode: EncodeProgress) -> tuple[BatchResult, bool]:
        """Change up to `limit` keys, and wait until the changes are durable."""
        items = self._store.read_items(self._plan.id, cursor, limit)
        if not items:
            return BatchResult(0, {}, None), False
        ordering = keys.load_keys(self._consumer, self._group, hold=True)
        names = {keys.shown_key(queue): key for key, queue in keys.chain_queues(ordering).items()}
        changed, skipped = 0, dict[str, int]()
        pending: list[Completion[list[KeyOutcome]]] = []
        for key, *head in items:
            reason = self._start_change(ordering, names.get(key, key), tuple(head), pending)
            if reason:
                skipped = merge_skipped(skipped, {reason: 1})
        for change in pending:
            reason = self._await_outcome(change)
            changed += not reason
            skipped = merge_skipped(skipped, {reason: 1} if reason else {})
        at = cursor + len(items)
        return BatchResult(changed, skipped, at if at < self._plan.items else None), False

    def _start_change(
        self,
        ordering: GroupOrdering,
        key: str,
        planned_head: tuple[Any, ...],
        pending: list[Completion[list[KeyOutcome]]],
    ) -> str:
        """Start to change a key unless its head is another one by now; return why not, or "".

        Nothing else runs between the comparison and the change.
        """
        action = self._plan.action
        heads = ordering.describe_heads(key)
        positions = [(head.topic, head.queue_id, head.offset) for head in heads] or [NO_HEAD]
        if planned_head not in positions:
            return MOVED_ON
        if action == "park" and key in ordering.parked_keys:
            return "parked already"
        if action == "replay" and not heads and key not in ordering.parked_keys:
            return "not blocked any more"
        try:
            pending.append(getattr(ordering, action)(key))
        except (CallerError, BoundReachedError) as error:
            return str(error)
        return ""

    def _await_outcome(self, change: Completion[list[KeyOutcome]]) -> str:
        """Wait for a change; return why it changed nothing, or ""."""
        outcomes = [each.outcome for each in change.wait(WAIT_S)]
        changing = CHANGED[self._plan.action]
        if changing is None or not outcomes or any(each in changing for each in outcomes):
            return ""
        return outcomes[0]
