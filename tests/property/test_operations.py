"""An operation changes what its plan showed, each item once, whatever else happens between plan and end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.records import AppendStatus, CommitBatch
from ddmq.server.admin.contract.bodies import OperationPlanBody
from ddmq.server.admin.operations.runner import OperationRun
from ddmq.server.admin.operations.service import Operations
from ddmq.server.admin.operations.state import (
    BatchResult,
    OperationState,
    Progress,
    check_start,
    merge_skipped,
)
from ddmq.server.http.parameters import read_body
from ddmq_common.clock import ManualClock
from ddmq_common.errors import ConflictError, RemoteError
from tests.support.dead_letters import DeadLettersRig

# --- progress, against a model that adds up


BATCHES = st.builds(
    BatchResult,
    st.integers(0, 9),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 5)),
    st.one_of(st.none(), st.integers(1, 99)),
)
STEPS = st.lists(st.one_of(BATCHES, st.sampled_from(["stop", "fail", "start", "crash"])), max_size=20)


def first_progress() -> Progress:
    return Progress(OperationState.RUNNING, "r0", "home", 0, 0, 0)


@given(STEPS)
def test_counts_and_cursor_are_those_of_the_same_batches(steps: list[Any]) -> None:
    progress, state = first_progress(), "running"
    changed, skipped, cursor = 0, Counter[str](), 0
    for at_ms, step in enumerate(steps, 1):
        if isinstance(step, BatchResult):
            if state != "running":
                with pytest.raises(ConflictError):
                    progress.add_batch(step, at_ms)
                continue
            progress = progress.add_batch(step, at_ms)
            changed, cursor = changed + step.changed, step.cursor
            skipped.update(step.skipped)
            state = "running" if step.cursor is not None else "done"
        elif step == "start":
            shown = progress.shown_state(at_ms, None)
            if state in ("stopped", "failed"):
                check_start(shown)
                progress, state = progress.restart_with(f"r{at_ms}", "home", at_ms), "running"
            else:
                with pytest.raises(ConflictError):
                    check_start(shown)
        elif step == "crash" and state == "running":
            progress = progress.restart_with(f"r{at_ms}", "home", at_ms)
        elif state == "running":
            progress = progress.stop(at_ms) if step == "stop" else progress.fail("broken", at_ms)
            state = "stopped" if step == "stop" else "failed"
        elif step != "crash":
            with pytest.raises(ConflictError):
                _ = progress.stop(at_ms) if step == "stop" else progress.fail("broken", at_ms)
        assert (progress.state, progress.changed, progress.skipped) == (state, changed, dict(skipped))
        assert progress.cursor == cursor
        assert (progress.ended_ms is None) == (state == "running")


@given(st.lists(st.dictionaries(st.text(max_size=2), st.integers(1, 9), max_size=40), max_size=8))
def test_reasons_are_bounded_and_none_is_lost(rows: list[dict[str, int]]) -> None:
    merged: dict[str, int] = {}
    for row in rows:
        merged = merge_skipped(merged, row)
    assert sum(merged.values()) == sum(sum(row.values()) for row in rows)
    assert len(merged) <= 51


# --- dead letters, by the real code over a memory engine


TOPICS = ("T", "U", "gone")
REASONS = ("failed", "timed-out")
DYING = st.tuples(st.just("die"), st.integers(1, 4), st.sampled_from(TOPICS), st.sampled_from(REASONS))
RESEND = st.tuples(st.just("resend"), st.frozensets(st.integers(0, 30), min_size=1, max_size=6))
OTHERS = st.one_of(DYING, RESEND, st.tuples(st.just("purge"), st.integers(0, 30)))
HAPPENINGS = st.one_of(
    OTHERS,
    st.just(("batch",)),
    st.just(("crash",)),
    st.just(("twin",)),
    st.tuples(st.just("lose answer"), st.booleans()),
)
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "topic": st.sampled_from(TOPICS),
        "reason": st.sampled_from(REASONS),
        "offsets": st.lists(st.integers(0, 30), min_size=1, max_size=8),
    },
)


class OperationOnDeadLetters:
    """An operation that a test runs batch by batch, and what others do meanwhile."""

    def __init__(self, rig: DeadLettersRig) -> None:
        self.rig = rig
        self.clock = ManualClock()
        self.operations = self.make_process()
        self.times_ms: list[int] = []
        self.kinds: list[tuple[str, str]] = []  # topic and reason by offset
        self.by_others: set[int] = set()
        self.resent_by_others = 0

    def make_process(self) -> Operations:
        nothing = cast(Any, None)
        return Operations(
            self.rig.backend, self.clock, lambda: nothing, nothing, nothing, nothing, nothing, "home"
        )

    def plan(self, action: str, chosen: dict[str, Any]) -> dict[str, Any]:
        body = {"kind": "dead_letters", "action": action, "filter": {"group": "G"} | chosen}
        return self.operations.make_plan(read_body(OperationPlanBody, body))

    def start(self, plan_id: str) -> OperationRun:
        planned = self.operations.shelf.get(plan_id)
        assert planned is not None
        progress = self.operations.runner.make_progress(planned.plan.cursor)
        self.operations.store.add(planned, None, progress)
        return self.load(plan_id)

    def load(self, plan_id: str) -> OperationRun:
        """A runner as a restarted process makes it."""
        store = self.operations.store
        stored = store.get(plan_id)
        assert stored is not None
        operation, progress = stored
        if progress.state is OperationState.RUNNING:
            progress = self.operations.runner.continue_progress(progress)
            store.put_progress(plan_id, progress)
        target = self.operations.make_target(operation.plan)
        target.batch_max = 3
        run = OperationRun(store, self.clock, operation, progress, target)
        run.is_over = progress.state is not OperationState.RUNNING
        return run

    def open(self) -> set[int]:
        """The offsets of the open letters."""
        return {row["offset"] for row in self.rig.show(1_000)["shown"]}

    def resent(self) -> int:
        """The number of messages that anybody has resent."""
        return sum(len(self.rig.stored(topic)) for topic in ("T", "U"))

    def act(self, happening: tuple[Any, ...]) -> None:
        """Something that others do."""
        before = self.open()
        match happening:
            case ("die", count, topic, reason):
                self.rig.clock.advance(1.0)
                self.times_ms.append(self.rig.clock.wall_ms())
                self.rig.die(count, topic, reason)
                self.kinds += [(topic, reason)] * count
                return
            case ("resend", offsets):
                answer = self.rig.resend(offsets=sorted(offsets))
                self.resent_by_others += sum(answer["resent"].values())
            case ("purge", number):
                self.rig.purge(before_ms=self.times_ms[number % len(self.times_ms)])
        self.by_others |= before - self.open()


@contextmanager
def operation_on_dead_letters() -> Iterator[OperationOnDeadLetters]:
    rig = DeadLettersRig()
    try:
        yield OperationOnDeadLetters(rig)
    finally:
        rig.backend.close()


@given(
    st.lists(DYING, min_size=1, max_size=6),
    st.lists(OTHERS, max_size=3),
    st.sampled_from(["resend", "purge"]),
    FILTERS,
    st.lists(HAPPENINGS, max_size=15),
)
def test_a_dry_run_equals_the_effect_while_others_change_dead_letters(
    letters: list[tuple[Any, ...]],
    earlier: list[tuple[Any, ...]],
    action: str,
    chosen: dict[str, Any],
    happenings: list[tuple[Any, ...]],
) -> None:
    with operation_on_dead_letters() as work:
        for happening in (*letters, *earlier):
            work.act(happening)
        matches = {offset for offset in work.open() if _matches(chosen, offset, work.kinds)}
        shown = {offset for offset in matches if action == "purge" or work.kinds[offset][0] != "gone"}
        plan = work.plan(action, chosen)
        assert (plan["counted"], plan["exact"]) == (len(shown), True)
        assert sum(plan["skipped"].values()) == len(matches - shown)
        work.by_others.clear()
        changed = _run_to_the_end(work, plan["id"], happenings)
        row = work.operations.show_operation(plan["id"])
        assert changed == shown - work.by_others
        assert (row["state"], row["changed"]) == ("done", len(changed))
        assert row["changed"] + sum(row["skipped"].values()) == plan["remaining"]
        assert row["remaining"] == 0
        assert work.resent() == work.resent_by_others + (len(changed) if action == "resend" else 0)


def _matches(chosen: dict[str, Any], offset: int, kinds: list[tuple[str, str]]) -> bool:
    topic, reason = kinds[offset]
    return (
        chosen.get("topic", topic) == topic
        and chosen.get("reason", reason) == reason
        and offset in chosen.get("offsets", [offset])
    )


def _run_to_the_end(
    work: OperationOnDeadLetters, plan_id: str, happenings: list[tuple[Any, ...]]
) -> set[int]:
    """Run the operation between the happenings; return the offsets that it changed."""
    run, earlier = work.start(plan_id), list[OperationRun]()
    changed: set[int] = set()

    def run_batch(step: Callable[[], object]) -> None:
        before = work.open()
        step()
        changed.update(before - work.open())

    for happening in happenings:
        match happening:
            case ("batch",):
                if not run.is_over:
                    run_batch(run.run_batch)
            case ("crash",):
                earlier.append(run)
                run = work.load(plan_id)
            case ("twin",):  # a process that was paused while another one took over
                for paused in earlier:
                    if not paused.is_over:
                        paused.run_batch()
                        assert paused.is_over
            case ("lose answer", stored):
                if not run.is_over:
                    run_batch(partial(_lose_answer, work, run, stored=stored))
            case other:
                work.act(other)
    while not run.is_over:
        run_batch(run.run_batch)
    return changed


def _lose_answer(work: OperationOnDeadLetters, run: OperationRun, *, stored: bool) -> None:
    """Run a batch whose commit is answered by an error, whether or not it is stored."""
    backend = work.rig.backend
    backend.fail_next(RemoteError("silence"), AppendStatus.UNKNOWN, stored=stored)
    with suppress(RemoteError):
        run.run_batch()
    with suppress(RemoteError):  # the batch may have had no commit
        backend.commit(CommitBatch(settings={"unrelated": b""}), work.rig.deadline()).wait(20)
