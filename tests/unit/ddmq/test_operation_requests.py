"""Plans and operations of one process or several over one backend: tokens, bounds, stops and take-overs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import gevent
import gevent.event
import pytest

from backend.records import AppendStatus, CommitBatch
from ddmq.server.admin.contract.bodies import OperationPlanBody, OperationStartBody
from ddmq.server.admin.operations import runner, slices, storing
from ddmq.server.admin.operations.dead_letters import BATCH, DeadLetterTarget
from ddmq.server.admin.operations.plans import EXPIRY_MS, PLANS_MAX
from ddmq.server.admin.operations.service import Operations
from ddmq.server.admin.operations.slices import wait_sliced
from ddmq.server.admin.operations.state import INTERRUPTED_MS
from ddmq.server.http.parameters import read_body
from ddmq.server.http.routing import NoSuchOperationError
from ddmq_common.clock import ManualClock
from ddmq_common.errors import CallerError, ConflictError, RemoteError, StorageError, TryLaterError
from tests.support.dead_letters import DeadLettersRig
from tests.support.waits import until


class OperationsRig(DeadLettersRig):
    """Processes with operations over the dead letters of group G."""

    def __init__(self) -> None:
        super().__init__()
        self.wall = ManualClock()
        self.here = self.process("here")

    def process(self, home: str) -> Operations:
        nothing = cast(Any, None)
        return Operations(self.backend, self.wall, lambda: nothing, nothing, nothing, nothing, nothing, home)

    def plan(self, action: str = "resend", **chosen: Any) -> dict[str, Any]:
        return self.here.make_plan(plan_body(action, **chosen))

    def start(self, plan: dict[str, Any], rate: int | None = None, at: Operations | None = None) -> Any:
        process = at or self.here
        return process.start(plan["id"], OperationStartBody(token=plan["token"], rate=rate))

    def state(self, plan: dict[str, Any], at: Operations | None = None) -> str:
        return str((at or self.here).show_operation(plan["id"])["state"])

    def has_changed(self, plan: dict[str, Any], count: int) -> bool:
        return bool(self.here.show_operation(plan["id"])["changed"] >= count)

    def wait_for(self, plan: dict[str, Any], state: str, at: Operations | None = None) -> dict[str, Any]:
        until(lambda: self.state(plan, at) == state, f"the operation is {state}")
        return (at or self.here).show_operation(plan["id"])


def plan_body(action: str = "resend", kind: str = "dead_letters", **chosen: Any) -> OperationPlanBody:
    body = {"kind": kind, "action": action, "filter": {"group": "G"} | chosen}
    return read_body(OperationPlanBody, body)


@pytest.fixture
def rig() -> Iterator[OperationsRig]:
    rig = OperationsRig()
    yield rig
    rig.backend.close()


def test_an_operation_changes_what_was_planned_and_nothing_later(rig: OperationsRig) -> None:
    rig.die(350)
    rig.die(3, "gone")
    plan = rig.plan()
    assert (plan["counted"], plan["exact"], plan["state"]) == (350, True, "planned")
    assert plan["skipped"] == {"topic gone does not exist any more": 3}
    assert plan["reaches"] == {"T": {"count": 1, "groups": ["G"]}}
    assert plan["command"] == "ddmq op plan dead-letters resend --group=G"
    assert [row["offset"] for row in plan["sample"]] == [0, 1, 2, 3, 4]
    assert rig.letters() == 353, "a plan changes nothing"
    rig.die(10)
    assert rig.start(plan)["state"] == "running"
    row = rig.wait_for(plan, "done")
    assert (row["changed"], row["remaining"], len(rig.stored("T"))) == (350, 0, 350)
    assert rig.letters() == 13
    assert "token" not in row


def test_without_a_dry_run_the_plan_is_started_at_once(rig: OperationsRig) -> None:
    rig.die(3)
    body = {"kind": "dead_letters", "action": "purge", "filter": {"group": "G"}, "dry_run": False}
    row = rig.here.make_plan(read_body(OperationPlanBody, body))
    assert (row["state"], row["counted"]) == ("running", 3)
    assert rig.wait_for(row, "done")["changed"] == 3
    assert rig.letters() == 0


def test_a_sample_has_letters_that_will_be_changed_however_far_they_are(rig: OperationsRig) -> None:
    rig.die(300, "gone")
    rig.die(2, "U")
    assert [row["offset"] for row in rig.plan()["sample"]] == [300, 301]


def test_a_wrong_token_starts_nothing(rig: OperationsRig) -> None:
    rig.die(1)
    plan = rig.plan()
    for token in ("", "x", "é\ud800", plan["token"][:-1], plan["id"]):
        with pytest.raises(ConflictError, match="the token is not that of operation"):
            rig.start(plan | {"token": token})
    assert (rig.state(plan), rig.letters()) == ("planned", 1)


def test_a_plan_that_is_not_started_cannot_be_stopped(rig: OperationsRig) -> None:
    rig.die(1)
    plan = rig.plan()
    with pytest.raises(ConflictError, match="is planned and not started"):
        rig.here.stop(plan["id"])
    assert rig.state(plan) == "planned"


def test_a_plan_expires(rig: OperationsRig) -> None:
    plan = rig.plan()
    rig.wall.advance(EXPIRY_MS / 1000 - 1)
    assert rig.state(plan) == "planned"
    rig.wall.advance(1)
    for call in (lambda: rig.start(plan), lambda: rig.state(plan), lambda: rig.here.stop(plan["id"])):
        with pytest.raises(ConflictError, match="has expired; make a new one"):
            call()
    assert rig.here.list_rows() == {"operations": []}


def test_the_oldest_plan_makes_room(rig: OperationsRig) -> None:
    first, *others = [rig.plan() for _ in range(PLANS_MAX + 1)]
    with pytest.raises(ConflictError, match="expired"):
        rig.start(first)
    assert len(rig.here.list_rows()["operations"]) == len(others)


@pytest.mark.parametrize("operation_id", ["", "x", "0" * 20, "../" + "0" * 17, "0" * 20 + "/progress"])
def test_an_unknown_id_is_not_found(rig: OperationsRig, operation_id: str) -> None:
    with pytest.raises(NoSuchOperationError):
        rig.here.show_operation(operation_id)
    with pytest.raises(NoSuchOperationError):
        rig.here.start(operation_id, OperationStartBody(token="x"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"kind": "keys", "action": "resend", "filter": {}}, "allowed for keys: park, skip, replay"),
        (
            {"kind": "dead_letters", "action": "resend"},
            "filter is missing; allowed: a map of names",
        ),
        ({"kind": "dead_letters", "action": "purge", "filter": [1]}, "filter is"),
        ({"kind": "dead_letters", "action": "purge", "filter": {}}, "group is missing"),
        ({"kind": "dead_letters", "action": "purge", "filter": {"group": "G", "reson": "x"}}, "'reason'"),
        ({"kind": "dead_letters", "action": "purge", "filter": {"group": ["G"]}}, "group is"),
        ({"kind": "dead_letters", "action": "purge", "filter": {"group": "G"}, "to_topic": True}, "to_topic"),
        (
            {"kind": "dead_letters", "action": "purge", "filter": {"group": "G"}, "due_ms": 1},
            "due_ms with kind",
        ),
        ({"kind": "dead_letters", "action": "purge", "filter": {"group": "none"}}, "has no dead letters"),
        (
            {"kind": "dead_letters", "action": "purge", "filter": {"group": "G" * 70_000}},
            "filter is larger than 65,536 bytes",
        ),
        ({"kind": "delays", "action": "cancel", "filter": {}, "shift_ms": 5}, "allowed: none"),
        ({"kind": "delays", "action": "reschedule", "filter": {}}, "exactly one of them"),
        ({"kind": "delays", "action": "cancel", "filter": {"group": "G"}}, "'group' is no body key"),
        ({"kind": "delays", "action": "cancel", "filter": {"from_ms": -1}}, "from_ms is -1"),
        ({"kind": "keys", "action": "park", "filter": {"group": "G", "state": "parked"}}, "allowed for park"),
    ],
)
def test_a_wrong_plan_is_rejected(rig: OperationsRig, body: dict[str, Any], words: str) -> None:
    with pytest.raises(CallerError, match=words):
        rig.here.make_plan(read_body(OperationPlanBody, body))


def test_a_plan_is_started_once(rig: OperationsRig) -> None:
    rig.die(1)
    plan = rig.plan()
    rig.start(plan)
    rig.wait_for(plan, "done")
    with pytest.raises(ConflictError, match="the operation is done; make a new plan"):
        rig.start(plan)


def test_a_stopped_operation_continues_with_its_token(
    rig: OperationsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeadLetterTarget, "batch_max", 10)
    rig.die(50)
    plan = rig.plan()
    rig.start(plan, rate=1)
    until(lambda: rig.has_changed(plan, 1), "the first letter was sent")
    with pytest.raises(ConflictError, match="the operation is running"):
        rig.start(plan)
    assert rig.here.stop(plan["id"])["state"] in ("stopping", "stopped")
    row = rig.wait_for(plan, "stopped")
    assert (row["changed"], row["remaining"], len(rig.stored("T"))) == (1, 49, 1)
    assert rig.here.stop(plan["id"])["state"] == "stopped"
    with pytest.raises(ConflictError, match="the token"):
        rig.start(plan | {"token": "0" * 32})
    rig.start(plan)
    row = rig.wait_for(plan, "done")
    assert (row["changed"], len(rig.stored("T"))) == (50, 50)


def test_the_rate_limits_the_changes(rig: OperationsRig) -> None:
    rig.die(50)
    plan = rig.plan()
    rig.start(plan, rate=10)  # two letters in a batch
    for count in (2, 4, 6):
        until(partial(rig.has_changed, plan, count), "a batch was sent")
        assert not rig.has_changed(plan, count + 1)
        rig.wall.advance(0.2)
        rig.here.runner.wake_up(plan["id"])
    rig.here.stop(plan["id"])
    rig.wait_for(plan, "stopped")


def test_an_operation_continues_when_its_process_starts_again(rig: OperationsRig) -> None:
    rig.die(30)
    plan = rig.plan()
    rig.start(plan, rate=1)
    until(lambda: rig.has_changed(plan, 1), "the first letter was sent")
    rig.here.runner.close()
    until(lambda: not rig.here.runner.is_running(plan["id"]), "the runner has ended")
    elsewhere, again = rig.process("elsewhere"), rig.process("here")
    elsewhere.resume_all()
    assert not elsewhere.runner.is_running(plan["id"])
    again.resume_all()
    assert again.runner.is_running(plan["id"])
    again.stop(plan["id"])
    assert rig.wait_for(plan, "stopped", again)["changed"] in (1, 2)


def test_a_stop_that_was_requested_before_the_restart_is_kept(rig: OperationsRig) -> None:
    rig.die(30)
    plan = rig.plan()
    rig.start(plan, rate=1)
    until(lambda: rig.has_changed(plan, 1), "the first letter was sent")
    rig.here.runner.close()
    until(lambda: not rig.here.runner.is_running(plan["id"]), "the runner has ended")
    assert rig.process("elsewhere").stop(plan["id"])["state"] == "stopping"
    rig.process("here").resume_all()
    assert rig.state(plan) == "stopped"


def test_an_interrupted_operation_continues_elsewhere(rig: OperationsRig) -> None:
    rig.die(30)
    plan = rig.plan()
    rig.start(plan, rate=1)
    until(lambda: rig.has_changed(plan, 1), "the first letter was sent")
    elsewhere = rig.process("elsewhere")
    with pytest.raises(ConflictError, match="the operation is running"):
        rig.start(plan, at=elsewhere)
    rig.wall.advance(INTERRUPTED_MS / 1000 + 1)
    assert rig.state(plan, elsewhere) == "interrupted"
    assert rig.start(plan, at=elsewhere)["process"] == "elsewhere"
    rig.here.runner.wake_up(plan["id"])
    until(lambda: not rig.here.runner.is_running(plan["id"]), "the former runner has ended")
    row = rig.wait_for(plan, "done", elsewhere)
    assert (row["changed"], len(rig.stored("T")), rig.letters()) == (30, 30, 0)


def test_an_interrupted_operation_can_be_stopped_elsewhere(rig: OperationsRig) -> None:
    rig.die(30)
    plan = rig.plan()
    rig.start(plan, rate=1)
    until(lambda: rig.has_changed(plan, 1), "the first letter was sent")
    rig.wall.advance(INTERRUPTED_MS / 1000 + 1)
    assert rig.process("elsewhere").stop(plan["id"])["state"] == "stopped"


def test_errors_that_pass_are_waited_out(rig: OperationsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RETRY_S", (0.01,))
    rig.die(10)
    plan = rig.plan()
    rig.start(plan, rate=None)
    rig.backend.fail_next(RemoteError("silence"), AppendStatus.UNKNOWN, stored=True)
    row = rig.wait_for(plan, "done")
    assert (row["changed"], row["skipped"], len(rig.stored("T"))) == (10, {}, 10)


def test_an_error_that_stays_ends_the_operation(rig: OperationsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.die(10)
    plan = rig.plan()
    with monkeypatch.context() as patch:
        patch.setattr(DeadLetterTarget, "run_batch", _raise_error)
        rig.start(plan)
        assert rig.wait_for(plan, "failed")["error"] == "no such thing"
    rig.start(plan)
    assert rig.wait_for(plan, "done")["changed"] == 10


def _raise_error(*_: Any) -> Any:
    raise CallerError("no such thing")


def test_a_process_runs_a_few_operations_at_once(rig: OperationsRig) -> None:
    rig.die(30)
    plans = [rig.plan() for _ in range(runner.RUNNING_MAX + 1)]
    for plan in plans[:-1]:
        rig.start(plan, rate=1)
    with pytest.raises(TryLaterError, match="4 operations are running here"):
        rig.start(plans[-1])
    assert rig.state(plans[-1]) == "planned"
    for plan in plans[:-1]:
        rig.here.stop(plan["id"])
        rig.wait_for(plan, "stopped")
    rig.start(plans[-1])
    rig.wait_for(plans[-1], "done")


def test_the_last_operations_are_remembered(rig: OperationsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "KEPT_MAX", 3)
    plans = []
    for _ in range(5):
        rig.wall.advance(0.001)
        plans.append(rig.plan())
        rig.start(plans[-1])
        rig.wait_for(plans[-1], "done")
    ids = [row["id"] for row in rig.here.list_rows()["operations"]]
    assert ids == [plan["id"] for plan in reversed(plans[2:])]
    assert {key.split("/")[1] for key in rig.backend.settings("operation/")} == set(ids)


def test_an_operation_runs_although_old_ones_cannot_be_deleted(
    rig: OperationsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(deletable: list[str]) -> None:
        raise TryLaterError("the disk is busy")

    monkeypatch.setattr(rig.here.store, "delete_old", fail)
    rig.die(3)
    plan = rig.plan()
    assert rig.start(plan)["state"] == "running"
    assert rig.wait_for(plan, "done")["changed"] == 3


def test_others_run_while_the_items_of_a_plan_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    events: list[str] = []
    gevent.spawn_later(0, events.append, "other")

    def encode() -> int:
        chunks = storing.encode_items([["id", number, 0] for number in range(5 * storing.CHUNK)])
        events.append("encoded")
        return len(chunks)

    assert (wait_sliced(encode), events) == (5, ["other", "encoded"])


def test_an_operation_that_cannot_be_decoded_is_left_out(rig: OperationsRig) -> None:
    rig.die(2)
    plan = rig.plan("purge")
    rig.start(plan)
    rig.wait_for(plan, "done")
    broken = storing.make_id(rig.wall.wall_ms())
    settings = {f"operation/{broken}": b"{", f"operation/{broken}/progress": b"{}"}
    rig.backend.commit(CommitBatch(settings=settings), rig.deadline()).wait(20)
    assert [row["id"] for row in rig.here.list_rows()["operations"]] == [plan["id"]]
    rig.here.runner.resume_all()
    rig.start(rig.plan("purge"))
    with pytest.raises(StorageError, match=f"operation/{broken} is not an operation"):
        rig.here.show_operation(broken)


def test_a_stop_of_the_process_waits_for_the_batch_but_not_for_ever(
    rig: OperationsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.die(500)
    goes_on, begun, run_batch = gevent.event.Event(), gevent.event.Event(), DeadLetterTarget.run_batch

    def run_slowly(self: DeadLetterTarget, *arguments: Any) -> Any:
        begun.set()
        goes_on.wait()
        return run_batch(self, *arguments)

    monkeypatch.setattr(DeadLetterTarget, "run_batch", run_slowly)
    plan = rig.plan("purge")
    rig.start(plan)
    assert begun.wait(20)
    rig.here.runner.close(0.01)
    assert rig.here.runner.is_running(plan["id"]), "it did not wait longer"
    gevent.spawn_later(0.01, goes_on.set)
    rig.here.runner.close(20)
    assert not rig.here.runner.is_running(plan["id"])
    row = rig.here.show_operation(plan["id"])
    assert (row["state"], row["changed"]) == ("running", BATCH), "one batch, and its progress is stored"


def test_what_a_plan_skipped_stays_even_if_its_topic_takes_it_now(rig: OperationsRig) -> None:
    rig.die(3)
    rig.die(2, "gone")
    plan = rig.plan()
    assert (plan["counted"], list(plan["reaches"])) == (3, ["T"])
    rig.make("gone")
    rig.start(plan)
    row = rig.wait_for(plan, "done")
    assert (row["changed"], row["skipped"]) == (
        3,
        {"topic gone took none of them when the plan was made": 2},
    )
    assert [letter["topic"] for letter in rig.show()["shown"]] == ["gone", "gone"]
