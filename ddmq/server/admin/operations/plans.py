"""Plans of operations: what an operator was shown, and the token that starts exactly that.

A shelf holds the plans of one process in memory. Each plan expires, and the oldest one makes room for a new
one, so that plans need little memory however many are made.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from ddmq_common.errors import ConflictError

PLANS_MAX = 32
EXPIRY_MS = 15 * 60 * 1000
EXPIRED_MAX = 1_000  # ids of expired plans that are remembered
SAMPLE_MAX = 5


class Plan(msgspec.Struct, frozen=True):
    """An operation as it was planned. Stored with the operation when it is started.

    `filter`: as in the request. `options`: arguments of the action. `counted`: how many items will be
    changed; a lower bound unless `exact`. `skipped`: how many match and will not be changed, by reason.
    `reaches`: the groups that get resent messages, by topic. `items`: the number of items that the plan
    lists, 0 for dead letters. `cursor`: the position of the first batch.
    """

    id: str
    kind: str
    action: str
    filter: dict[str, Any]
    options: dict[str, Any]
    counted: int
    exact: bool
    skipped: dict[str, int]
    sample: list[dict[str, Any]]
    reaches: dict[str, Any]
    command: str
    token: str
    planned_ms: int
    expires_ms: int
    cursor: Any
    items: int = 0

    @property
    def item_count(self) -> int:
        """The number of items that match, changed or not."""
        return self.counted + sum(self.skipped.values())

    def check_token(self, token: str) -> None:
        """Raise ConflictError unless this is the plan's token."""
        if not hmac.compare_digest(token.encode(errors="replace"), self.token.encode()):
            raise ConflictError(
                f"the token is not that of operation {self.id}; `ddmq op plan` printed it behind the id, and "
                "the response to POST /operations contains it"
            )


class PlannedOperation(msgspec.Struct, frozen=True):
    """A plan with its items, encoded in chunks; there are none for dead letters."""

    plan: Plan
    chunks: list[bytes]


class PlanShelf:
    """The plans that one process has made and that were not started. `now_ms`: epoch milliseconds."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._plans: OrderedDict[str, PlannedOperation] = OrderedDict()
        self._expired: OrderedDict[str, None] = OrderedDict()

    def add(self, planned: PlannedOperation) -> None:
        """Add a plan; the oldest one expires if there are more than PLANS_MAX."""
        self._expire_old()
        self._plans[planned.plan.id] = planned
        while len(self._plans) > PLANS_MAX:
            self._expire_plan(next(iter(self._plans)))

    def get(self, plan_id: str) -> PlannedOperation | None:
        """Return a plan, or None if there never was one. Raises ConflictError if it has expired."""
        self._expire_old()
        if plan_id in self._expired:
            raise ConflictError(f"plan {plan_id} has expired; make a new one")
        return self._plans.get(plan_id)

    def remove(self, plan_id: str) -> None:
        """Remove a plan that was started."""
        self._plans.pop(plan_id, None)

    def list_plans(self) -> list[Plan]:
        """Return the plans, the oldest first."""
        self._expire_old()
        return [planned.plan for planned in self._plans.values()]

    def _expire_old(self) -> None:
        now_ms = self._now_ms()
        for plan_id in [each.plan.id for each in self._plans.values() if each.plan.expires_ms <= now_ms]:
            self._expire_plan(plan_id)

    def _expire_plan(self, plan_id: str) -> None:
        del self._plans[plan_id]
        self._expired[plan_id] = None
        while len(self._expired) > EXPIRED_MAX:
            self._expired.popitem(last=False)
