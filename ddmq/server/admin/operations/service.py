"""Answers the admin API's requests about operations: plan, start, list, show and stop."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Any

import gevent
import msgspec
from gevent.lock import BoundedSemaphore

from backend.port import Backend
from ddmq.server.admin.contract.bodies import (
    OPERATION_ACTIONS,
    DeadLetterChoiceBody,
    DelayChoiceBody,
    KeyChoiceBody,
    OperationPlanBody,
    OperationStartBody,
    RetryChoiceBody,
)
from ddmq.server.admin.operations.blocked_keys import KeyTarget, plan_keys
from ddmq.server.admin.operations.dead_letters import DeadLetterTarget, plan_dead_letters
from ddmq.server.admin.operations.delays import DelayTarget, plan_delays
from ddmq.server.admin.operations.plans import EXPIRY_MS, Plan, PlannedOperation, PlanShelf
from ddmq.server.admin.operations.retries import RetryTarget, plan_retries
from ddmq.server.admin.operations.runner import OperationRunner
from ddmq.server.admin.operations.slices import wait_sliced
from ddmq.server.admin.operations.state import OperationState, Progress, check_start
from ddmq.server.admin.operations.storing import (
    OperationStore,
    StoredOperation,
    encode_items,
    is_id,
    make_id,
)
from ddmq.server.admin.operations.target import OperationTarget, PlanDraft, build_command, stated_fields
from ddmq.server.admin.producer.calls import ProducerCalls
from ddmq.server.delays.lists import DelayLists
from ddmq.server.delays.queries import DelayQueries
from ddmq.server.delays.retries import RetryChanges
from ddmq.server.http.parameters import Body, read_body
from ddmq.server.http.routing import NoSuchOperationError
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError, ConflictError, DdmqError, DrainingError, TryLaterError
from proxy_consumer.service import ConsumerService

RESUME_S = 2.0  # between tries to continue operations
PLAN_WAIT_S = 5.0  # for the plan before this one
FILTER_BYTES_MAX = 64 << 10
FILTERS: dict[str, type[Body]] = {
    "dead_letters": DeadLetterChoiceBody, "keys": KeyChoiceBody, "delays": DelayChoiceBody,
    "retries": RetryChoiceBody,
}  # by kind  # fmt: skip
SUMMARY = ("id", "kind", "action", "state", "counted", "exact", "changed", "skipped", "planned_ms")
log = logging.getLogger("ddmq.operations")


class Operations:
    """The plans and operations that one process knows. `find_consumer` returns the consumer proxy, or raises
    UnsupportedError. `home`: the name of the process."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        find_consumer: Callable[[], ConsumerService],
        delay_lists: DelayLists,
        delays: DelayQueries,
        calls: ProducerCalls,
        retries: RetryChanges,
        home: str,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._find_consumer = find_consumer
        self._delay_lists = delay_lists
        self._delays = delays
        self._calls = calls
        self._retries = retries
        self.store = OperationStore(backend, clock)
        self.shelf = PlanShelf(clock.wall_ms)
        self._planning = BoundedSemaphore()
        self.runner = OperationRunner(self.store, clock, home, self.make_target)

    def resume_all(self) -> None:
        """Continue the operations that this process ran when it ended, as soon as the backend allows."""
        while True:
            try:
                self.store.catch_up()
                self.runner.resume_all()
                self.store.delete_orphans(self._clock.wall_ms() - EXPIRY_MS)
                return
            except DrainingError:
                return
            except (DdmqError, TimeoutError) as error:
                log.warning("operations are not continued yet", extra={"error": str(error)})
                gevent.sleep(RESUME_S)

    # --- requests

    def make_plan(self, body: OperationPlanBody) -> dict[str, Any]:
        """Count everything that matches, and return the plan with its token. Changes nothing."""
        allowed = OPERATION_ACTIONS[body.kind]
        if body.action not in allowed:
            raise CallerError(f"action is {body.action!r}; allowed for {body.kind}: {', '.join(allowed)}")
        if len(msgspec.json.encode(body.filter)) > FILTER_BYTES_MAX:
            raise CallerError(f"filter is larger than {FILTER_BYTES_MAX:,} bytes")
        choice = read_body(FILTERS[body.kind], body.filter)
        options = {"to_topic": body.to_topic or None, "due_ms": body.due_ms, "shift_ms": body.shift_ms}
        stated = {name: value for name, value in options.items() if value is not None}
        if not self._planning.acquire(timeout=PLAN_WAIT_S):
            raise TryLaterError("another plan is being made; try again")
        try:
            draft, chunks = wait_sliced(self._draft_plan, body, choice, stated)
        finally:
            self._planning.release()
        plan = self._complete_plan(body, stated_fields(choice), stated, draft)
        self.shelf.add(PlannedOperation(plan, chunks))
        row = self._plan_row(plan)
        if not body.dry_run:
            row = self.start(plan.id, OperationStartBody(token=plan.token))
        return row | {"token": plan.token}

    def start(self, operation_id: str, body: OperationStartBody) -> dict[str, Any]:
        """Start a plan, or continue an operation that was stopped, failed or interrupted."""
        stored = self._find_stored(operation_id)
        planned = None if stored is not None else self.shelf.get(operation_id)
        if stored is not None:
            operation, progress = stored
            operation.plan.check_token(body.token)
            check_start(self._shown_state(operation.plan.id, progress))
            self.runner.check_capacity()
            operation = StoredOperation(operation.plan, body.rate)
            progress = self.runner.continue_progress(progress)
            self.store.put_rate(operation)
            self.store.put_progress(operation_id, progress)
        elif planned is not None:
            planned.plan.check_token(body.token)
            self.runner.check_capacity()
            operation = StoredOperation(planned.plan, body.rate)
            progress = self.runner.make_progress(planned.plan.cursor)
            self.store.add(planned, body.rate, progress)
            self.shelf.remove(operation_id)
        else:
            raise no_such_operation(operation_id)
        self.runner.start(operation, progress)
        self._delete_old()
        return self._operation_row(operation, progress)

    def list_rows(self, allows: Callable[[Plan], bool] | None = None) -> dict[str, Any]:
        """Return the plans of this process and all started operations, the newest first. `allows`: whether
        the caller may see a plan; None: it may see all."""
        plans = self.shelf.list_plans()
        rows = [self._plan_row(plan) for plan in plans if allows is None or allows(plan)]
        started = [self.store.get_decodable(operation_id) for operation_id in self.store.list_ids()]
        rows += [
            self._operation_row(*stored)
            for stored in started
            if stored is not None and (allows is None or allows(stored[0].plan))
        ]
        rows.sort(key=lambda row: row["id"], reverse=True)
        return {"operations": [{name: row[name] for name in SUMMARY} for row in rows]}

    def show_operation(self, operation_id: str) -> dict[str, Any]:
        """Return one plan or operation in full, without its token."""
        stored = self._find_stored(operation_id)
        if stored is not None:
            return self._operation_row(*stored)
        planned = self.shelf.get(operation_id)
        if planned is None:
            raise no_such_operation(operation_id)
        return self._plan_row(planned.plan)

    def find_plan(self, operation_id: str) -> Plan | None:
        """Return the plan of an operation, or None if there is none with this id."""
        stored = self.store.get(operation_id) if is_id(operation_id) else None
        planned = self.shelf.get(operation_id) if stored is None else None
        if stored is not None:
            return stored[0].plan
        return None if planned is None else planned.plan

    def stop(self, operation_id: str) -> dict[str, Any]:
        """Stop an operation after the batch that is in progress; return it. An operation that has ended stays
        as it is."""
        stored = self._find_stored(operation_id)
        if stored is None:
            if self.shelf.get(operation_id) is None:
                raise no_such_operation(operation_id)
            raise ConflictError(f"operation {operation_id} is planned and not started")
        operation, progress = stored
        if progress.state is OperationState.RUNNING:
            interrupted = self._shown_state(operation_id, progress) is OperationState.INTERRUPTED
            self.store.request_stop(operation_id, progress.runner)
            if interrupted and not self.runner.is_running(operation_id):
                progress = progress.stop(self._clock.wall_ms())
                self.store.put_progress(operation_id, progress)
            self.runner.wake_up(operation_id)
        return self._operation_row(operation, progress)

    # --- plans

    def _draft_plan(
        self, body: OperationPlanBody, choice: Any, options: dict[str, Any]
    ) -> tuple[PlanDraft, list[bytes]]:
        """Return the draft, and its encoded items. Raises DdmqError."""
        draft = self._find_matches(body, choice, options)
        return draft, encode_items(draft.items)

    def _find_matches(self, body: OperationPlanBody, choice: Any, options: dict[str, Any]) -> PlanDraft:
        timing: dict[str, Any] = {name: options[name] for name in ("due_ms", "shift_ms") if name in options}
        if body.kind != "delays" and timing:
            raise CallerError(f"{' and '.join(timing)} with kind {body.kind!r}; allowed: delays")
        if body.kind != "dead_letters" and body.to_topic:
            raise CallerError(f"to_topic with kind {body.kind!r}; allowed: dead_letters")
        if body.kind == "dead_letters":
            return plan_dead_letters(self._backend, self._clock, body.action, choice, to_topic=body.to_topic)
        if body.kind == "keys":
            return plan_keys(self._find_consumer(), body.action, choice)
        if body.kind == "retries":
            return plan_retries(self._backend, self._clock, self._retries, body.action, choice)
        return plan_delays(self._delay_lists, self._clock, self._calls, body.action, choice, timing)

    def _complete_plan(
        self, body: OperationPlanBody, chosen: dict[str, Any], options: dict[str, Any], draft: PlanDraft
    ) -> Plan:
        now = self._clock.wall_ms()
        return Plan(
            id=make_id(now),
            kind=body.kind,
            action=body.action,
            filter=chosen,
            options=options,
            counted=draft.counted,
            exact=draft.exact,
            skipped=draft.skipped,
            sample=draft.sample,
            reaches=draft.reaches,
            command=build_command(body.kind, body.action, chosen, options),
            token=secrets.token_hex(16),
            planned_ms=now,
            expires_ms=now + EXPIRY_MS,
            cursor=draft.cursor,
            items=len(draft.items),
        )

    def make_target(self, plan: Plan) -> OperationTarget:
        """Return the target that carries out a plan. Raises UnsupportedError."""
        if plan.kind == "dead_letters":
            return DeadLetterTarget(self._backend, self._clock, plan)
        if plan.kind == "keys":
            return KeyTarget(self._find_consumer(), self.store, plan)
        if plan.kind == "retries":
            return RetryTarget(self._retries, self.store, plan)
        return DelayTarget(self._delays, self._calls, self.store, plan)

    # --- operations

    def _find_stored(self, operation_id: str) -> tuple[StoredOperation, Progress] | None:
        if not is_id(operation_id):
            raise no_such_operation(operation_id)
        return self.store.get(operation_id)

    def _shown_state(self, operation_id: str, progress: Progress) -> OperationState:
        stopped_runner = self.store.stopped_runner(operation_id)
        state = progress.shown_state(self._clock.wall_ms(), stopped_runner)
        if state is OperationState.INTERRUPTED and self.runner.is_running(operation_id):
            return OperationState.RUNNING  # it waits for the backend
        return state

    def _delete_old(self) -> None:
        """Delete the oldest operations that have ended. If that fails, the next start does it."""
        try:
            deletable = []
            for operation_id in self.store.list_ids():
                stored = self.store.get_decodable(operation_id)
                if stored is None or stored[1].state is not OperationState.RUNNING:
                    deletable.append(operation_id)
            self.store.delete_old(deletable)
        except (DdmqError, TimeoutError) as error:
            log.warning("old operations are not deleted yet", extra={"error": str(error)})

    def _operation_row(self, operation: StoredOperation, progress: Progress) -> dict[str, Any]:
        plan = operation.plan
        return self._plan_row(plan) | {
            "state": self._shown_state(plan.id, progress),
            "expires_ms": None,
            "rate": operation.rate,
            "changed": progress.changed,
            "skipped": progress.skipped,
            "remaining": max(plan.item_count - progress.processed_count, 0),
            "process": progress.home,
            "started_ms": progress.started_ms,
            "at_ms": progress.at_ms,
            "ended_ms": progress.ended_ms,
            "error": progress.error,
        }

    def _plan_row(self, plan: Plan) -> dict[str, Any]:
        row = msgspec.to_builtins(plan)
        for name in ("token", "cursor", "items"):
            del row[name]
        return {
            **row, "state": OperationState.PLANNED, "rate": None, "changed": 0, "remaining": plan.item_count,
            "process": self.runner.home, "started_ms": None, "at_ms": plan.planned_ms, "ended_ms": None,
            "error": "",
        }  # fmt: skip


def no_such_operation(operation_id: str) -> NoSuchOperationError:
    """Return the error for an id that is not that of a plan or operation."""
    return NoSuchOperationError(
        f"there is no operation {operation_id[:80]!r}; plans expire after {EXPIRY_MS // 60_000} min, and are "
        "known only to the process that made them"
    )
