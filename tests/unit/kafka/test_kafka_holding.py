"""MemberAssignments: under which epochs this process may write no more. Nothing is carried out."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from backend.kafka.coordination.assignments import MemberAssignments
from backend.kafka.coordination.memberships import KafkaMemberships
from backend.records import QueueRef
from ddmq_common.clock import ManualClock
from tests.support.waits import until

QUEUE, OTHER = QueueRef("orders", 7, 0), QueueRef("orders", 7, 1)


def lost_at(epoch: int) -> MemberAssignments:
    """One whose group "g" held QUEUE under `epoch`, and has lost it."""
    nothing: Any = SimpleNamespace()
    holding = MemberAssignments(nothing, nothing, nothing, lambda topic: None)
    listener = SimpleNamespace(lost=lambda queues: None)
    membership: Any = SimpleNamespace(
        join=SimpleNamespace(group="g"),
        owned={QUEUE: epoch},
        listener=listener,
        assigning=None,
        is_active=True,
    )
    holding.lose(membership, [QUEUE])
    return holding


def test_a_lost_queue_takes_no_epoch_up_to_the_lost_one() -> None:
    holding = lost_at(5)
    assert holding.epoch_floor(("g", QUEUE), 5, lambda key: False) == 6
    assert holding.epoch_floor(("g", OTHER), 5, lambda key: False) == 0


def test_what_goes_by_the_epoch_of_the_group_is_over_with_it() -> None:
    assert lost_at(5).epoch_floor(("fired", QUEUE), 5, lambda key: False) == 6


def test_other_epochs_of_other_groups_count_as_before() -> None:
    holding = lost_at(5)
    assert holding.epoch_floor(("done", QUEUE), 0, lambda key: False) == 0, "nobody's: it has no holder"
    assert holding.epoch_floor(("fired", QUEUE), 9, lambda key: False) == 0, (
        "held again, or by another process"
    )
    assert holding.epoch_floor(("member", QUEUE), 5, lambda key: True) == 0, "it has its own holder"


@pytest.mark.parametrize("leaves", [False, True])
def test_a_queue_that_was_let_go_takes_what_was_called_before_and_nothing_after(
    leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That another process has it by now is heard late: until then nothing but the floor keeps a move of a
    message back, whose copy would stand beside that of the new holder."""
    monkeypatch.setattr("backend.kafka.coordination.assignments.FLOOR_TTL_S", 0.05)
    called: list[Callable[[], None]] = []
    line: Any = SimpleNamespace(run_after_progress=lambda queues, act: called.append(act))
    options: Any = SimpleNamespace(session_ms=3_000, heartbeat_ms=500, supported_level=2)
    nothing: Any = SimpleNamespace()
    members = KafkaMemberships(options, nothing, line, nothing, ManualClock(), nothing)
    join: Any = SimpleNamespace(group="g", topic="orders")
    membership = members.join(join, nothing)
    membership.joined_as, membership.owned[QUEUE] = "a name that was given up", 5
    if leaves:
        membership.leave()
    else:
        membership.release([QUEUE])
    assert members.epoch_floor(("g", QUEUE), 5) == 0
    called.pop()()
    assert members.epoch_floor(("g", QUEUE), 5) == 6
    if leaves:
        until(lambda: members.epoch_floor(("g", QUEUE), 5) == 0, "it is forgotten: groups come and go")
