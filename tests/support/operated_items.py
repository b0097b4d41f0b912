"""An operation on listed items that a test runs batch by batch."""

from __future__ import annotations

from typing import Any

from backend.memory import MemoryBackend
from backend.port import Backend
from ddmq.server.admin.contract.bodies import OperationPlanBody
from ddmq.server.admin.operations.runner import OperationRun
from ddmq.server.admin.operations.service import Operations
from ddmq.server.admin.operations.state import OperationState
from ddmq.server.http.parameters import read_body
from ddmq_common.clock import ManualClock

BATCH = 3


class OperationUnderTest:
    """An operation that a test runs batch by batch; `crash` loses the progress of the last batch."""

    def __init__(
        self,
        consumer: Any = None,
        delays: Any = None,
        calls: Any = None,
        retries: Any = None,
        backend: Backend | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.backend = backend or MemoryBackend(self.clock)
        self._operations = Operations(
            self.backend, self.clock, lambda: consumer, delays, delays, calls, retries, "home"
        )
        self.plan: dict[str, Any] = {}

    def make_plan(self, kind: str, action: str, chosen: dict[str, Any], **options: Any) -> None:
        body = {"kind": kind, "action": action, "filter": chosen, **options}
        self.plan = self._operations.make_plan(read_body(OperationPlanBody, body))
        planned = self._operations.shelf.get(self.plan["id"])
        assert planned is not None
        progress = self._operations.runner.make_progress(planned.plan.cursor)
        self._operations.store.add(planned, None, progress)

    def load(self) -> OperationRun:
        stored = self._operations.store.get(self.plan["id"])
        assert stored is not None
        operation, progress = stored
        if progress.state is OperationState.RUNNING:
            progress = self._operations.runner.continue_progress(progress)
            self._operations.store.put_progress(self.plan["id"], progress)
        target = self._operations.make_target(operation.plan)
        target.batch_max = BATCH
        run = OperationRun(self._operations.store, self.clock, operation, progress, target)
        run.is_over = progress.state is not OperationState.RUNNING
        return run

    def crash_in_batch(self) -> OperationRun:
        """Change a batch, and continue as a process that was killed before it stored the progress."""
        stored = self._operations.store.get(self.plan["id"])
        assert stored is not None
        operation, progress = stored
        if progress.state is OperationState.RUNNING:
            self._operations.make_target(operation.plan).run_batch(progress.cursor, BATCH, lambda _: {})
        return self.load()

    def show(self) -> dict[str, Any]:
        return self._operations.show_operation(self.plan["id"])
