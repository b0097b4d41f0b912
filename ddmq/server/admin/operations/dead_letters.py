"""Operations on dead letters: resend and purge.

A plan contains the filter and the ranges of offsets in which letters match, and those that it had no time to
examine. The progress is stored in the commit that changes a batch, so its counts are exact after a crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from backend.port import Backend
from ddmq.server.admin.contract.bodies import DeadLetterChoiceBody
from ddmq.server.admin.dlq import (
    DeadLetterFilter,
    DeadLetterRange,
    dead_letter_row,
    list_dead_letter_queues,
)
from ddmq.server.admin.dlq_changes import Resend, list_groups_reached, ranges_to_resend
from ddmq.server.admin.operations.plans import Plan
from ddmq.server.admin.operations.state import BatchResult
from ddmq.server.admin.operations.target import PLAN_S, EncodeProgress, PlanDraft, shorten_fields
from ddmq.server.http.pace import paced
from ddmq.server.http.parameters import read_body
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError
from ddmq_common.names import find_group_name_error

BATCH, PLAN_BATCH = 100, 1_000
SAMPLE_FIELDS = ("queue", "offset", "id", "key", "reason", "error", "topic", "attempts", "time_ms", "preview")
Cursor = Sequence[Sequence[int]]  # [queue number, next offset, end] of each remaining range


def plan_dead_letters(
    backend: Backend, clock: Clock, action: str, body: DeadLetterChoiceBody, *, to_topic: bool
) -> PlanDraft:
    """Count the open dead letters that match, as a run would find them now."""
    if to_topic and action != "resend":
        raise CallerError(f"to_topic goes with resend, not with {action}")
    group = body.group
    ranges = ranges_to_resend(backend, group, _read_choice(body))
    work = _make_work(backend, clock, action, body, to_topic=to_topic, dry_run=True, batch=PLAN_BATCH)
    remaining = work.run(ranges, clock.monotonic() + PLAN_S)
    alone = "" if _reaches_all(group, to_topic=to_topic) else group
    return PlanDraft(
        counted=work.sent.total(),
        exact=not remaining,
        skipped=dict(work.not_sent),
        sample=[shorten_fields(dead_letter_row(each), SAMPLE_FIELDS) for each in work.sample],
        reaches={topic: list_groups_reached(backend, topic, alone) for topic in work.sent}
        if action == "resend"
        else {},
        cursor=_make_cursor([*_narrow_ranges(ranges, work.match_bounds), *remaining]),
        items=[],
    )


def _narrow_ranges(
    ranges: Sequence[DeadLetterRange], match_bounds: Mapping[int, tuple[int, int]]
) -> list[DeadLetterRange]:
    """Return the parts of the examined ranges that contain all matches, so that a run does not examine the
    rest again."""
    return [
        each._replace(at=match_bounds[each.queue.queue_id][0], end=match_bounds[each.queue.queue_id][1])
        for each in ranges
        if each.queue.queue_id in match_bounds
    ]


class DeadLetterTarget:
    """The dead letters of a plan."""

    batch_max = BATCH
    missing = "resent, purged or expired meanwhile"

    def __init__(self, backend: Backend, clock: Clock, plan: Plan) -> None:
        self._backend = backend
        self._clock = clock
        self._action = plan.action
        self._body = read_body(DeadLetterChoiceBody, plan.filter)
        self._to_topic = bool(plan.options.get("to_topic"))
        # What the plan skipped stays, even if its topic takes it now; an inexact plan may not know its topic.
        self._topics = frozenset(plan.reaches) if plan.exact and plan.action == "resend" else None

    def run_batch(self, cursor: Cursor, limit: int, encode: EncodeProgress) -> tuple[BatchResult, bool]:
        """Resend or purge up to `limit` letters in one commit, which stores the progress, too."""
        queues = list_dead_letter_queues(self._backend, self._body.group)
        remaining = [
            DeadLetterRange(queues[number], at, end) for number, at, end in cursor if number < len(queues)
        ]
        if not remaining:
            return BatchResult(0, {}, None), False
        first, others = remaining[0], remaining[1:]
        stored: list[BatchResult] = []

        def make_result(at: int, sent: Counter[str], not_sent: Counter[str]) -> BatchResult:
            rest = [first._replace(at=at)] if at < first.end else []
            return BatchResult(sent.total(), dict(not_sent), _make_cursor(rest + others) or None)

        def make_settings(at: int, sent: Counter[str], not_sent: Counter[str]) -> Mapping[str, bytes]:
            result = make_result(at, sent, not_sent)
            stored[:] = [result]
            return encode(result)

        work = _make_work(
            self._backend, self._clock, self._action, self._body, to_topic=self._to_topic, batch=limit,
            make_settings=make_settings, topics=self._topics,
        )  # fmt: skip
        at = work.resend_batch(first)
        if stored and work.sent:
            return stored[0], True
        return make_result(at, work.sent, work.not_sent), False


def _make_work(
    backend: Backend,
    clock: Clock,
    action: str,
    body: DeadLetterChoiceBody,
    *,
    to_topic: bool,
    dry_run: bool = False,
    **more: Any,
) -> Resend:
    group = "" if _reaches_all(body.group, to_topic=to_topic) else body.group
    discard = action == "purge"
    choice = _read_choice(body)
    return Resend(backend, clock, choice, group, dry_run=dry_run, discard=discard, pace=paced, **more)


def _reaches_all(group: str, *, to_topic: bool) -> bool:
    """Return whether every group of a topic gets resent letters, also because no group ever had them."""
    return to_topic or find_group_name_error(group) is not None


def _read_choice(body: DeadLetterChoiceBody) -> DeadLetterFilter:
    return DeadLetterFilter(
        frozenset(body.offsets), body.reason, body.topic, body.since_ms, body.until_ms, body.error, body.text
    )


def _make_cursor(ranges: Sequence[DeadLetterRange]) -> list[list[int]]:
    return [[each.queue.queue_id, each.at, each.end] for each in ranges]
