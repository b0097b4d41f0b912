"""Operations on retries over real delay levels: they change what the plan showed, each message once.

Levels fire, operators move single messages, the level scheduler restarts, and the process of the operation is
killed within a batch. At any time, a message is in exactly one place: in its level, due, or a dead letter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.internal_topics import REAL_TOPIC, schedule_record
from backend.progress.ack_map import AckMap
from backend.records import AppendStatus, QueueRef, StoredRecord
from ddmq.server.admin.contract.bodies import RetryChangeBody
from ddmq.server.admin.figures import OtherProcesses
from ddmq.server.delays.retries import OTHER_GROUP, OTHER_MESSAGE, RetryChanges
from ddmq.server.http.parameters import Query, read_body
from ddmq.server.http.routing import AdminRequest
from ddmq_common.delivery import decode, encode
from ddmq_common.errors import CallerError
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC, dlq_topic, retry_topic
from delay_service.levels.removal import LEFT, MISSING
from proxy_consumer.retries.headers import RetryHeaders, retry_record
from tests.examples import examples
from tests.service.delay.levels_rig import LevelsRig
from tests.support.operated_items import OperationUnderTest
from tests.support.waits import PATIENCE_S, until

LEVELS = (3, 4, 5)  # 10 s, 30 s, 1 min
GROUPS = ("g", "h")


class RetriesRig(LevelsRig):
    """Delay levels with retries of two groups. Bodies are numbers as text, each of one message."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[str, tuple[str, int]] = {}  # group and level, by body
        for group in GROUPS:
            self.make(retry_topic(group), 2)
        self.work = self.make_work()

    def make_work(self) -> OperationUnderTest:
        self.changes = RetryChanges(self.backend, self.service, self.clock, OtherProcesses())
        return OperationUnderTest(retries=self.changes, backend=self.backend, clock=self.clock)

    def restart(self) -> None:
        self.service.close()
        self.start()
        plan = self.work.plan
        self.work = self.make_work()
        self.work.plan = plan

    def fail(self, group: str, level: int, count: int = 1) -> None:
        """Messages of a group begin to wait for their retry."""
        records = []
        for _ in range(count):
            body = b"%d" % len(self.sent)
            self.sent[body.decode()] = group, level
            message_id, delivery = self.next_id(), encode(b"k" + body, body, b"", {b"a": b"b"})
            failed = StoredRecord("T", 0, 7, 0, message_id, 1, 1, 0, 0, delivery, {})
            headers = RetryHeaders(level - 2, "T", 0, 7, 4, 1_000, "ValueError: x")
            queue = self.queue(retry_topic(group), 1)
            retried = retry_record(queue, failed, headers)
            records.append(schedule_record(retried, level, self.config.table))
        results = self.backend.append(records, self.clock.monotonic() + 60).wait(PATIENCE_S)
        assert {result.status for result in results} == {AppendStatus.STORED}
        self.settle()

    def waiting(self) -> dict[str, tuple[int, StoredRecord]]:
        """What the levels have not finished: the level and the record by body."""
        rows = {}
        info = self.backend.topic(SCHEDULE_TOPIC)
        assert info is not None
        for queue in info.refs():
            (view,) = self.backend.progress(LEVELS_GROUP, [queue]).wait(PATIENCE_S)
            acks = AckMap(view.committed or 0)
            acks.finish(view.finished)
            for record in self.stored(SCHEDULE_TOPIC, queue.queue_id):
                if not acks.is_finished(record.offset):
                    rows[body_of(record)] = queue.queue_id + 1, record
        return rows

    def due(self, group: str) -> list[str]:
        return [body_of(each) for each in self.stored(retry_topic(group), 1)]

    def dead(self, group: str) -> list[str]:
        return [body_of(each) for each in self.stored(dlq_topic(group))]

    def check_places(self) -> None:
        """Each message is in exactly one place."""
        places = Counter(list(self.waiting()))
        for group in GROUPS:
            bodies = self.due(group) + self.dead(group)
            assert all(self.sent[body][0] == group for body in bodies)
            places.update(bodies)
        assert places == dict.fromkeys(self.sent, 1)

    def order(self, group: str, action: str, level: int, *positions: tuple[int, str], **rest: Any) -> Any:
        messages = [{"offset": offset, "id": message_id} for offset, message_id in positions]
        return self.send_order(
            {"group": group, "action": action, "level": level, "messages": messages, **rest}
        )

    def send_order(self, fields: dict[str, Any]) -> Any:
        body = read_body(RetryChangeBody, fields)
        return self.changes.answer_anywhere(AdminRequest({}, Query(), body, "POST", "/retries"))


def body_of(record: StoredRecord) -> str:
    return decode(record.delivery).value.decode()


@contextmanager
def retries() -> Iterator[RetriesRig]:
    rig = RetriesRig()
    try:
        yield rig
    finally:
        rig.close()


@pytest.fixture
def retrying() -> Iterator[RetriesRig]:
    with retries() as rig:
        yield rig


ACTIONS = st.sampled_from(["now", "dead_letter"])
FAILS = st.tuples(st.sampled_from(GROUPS), st.sampled_from(LEVELS), st.integers(1, 3))
HAPPENINGS = st.one_of(
    FAILS,
    st.tuples(st.just("time"), st.sampled_from([1, 10, 25])),
    st.tuples(st.just("operator"), ACTIONS, st.integers(0, 30)),
    st.sampled_from(["batch", "crash", "crash in batch", "restart"]),
)
FILTERS = st.fixed_dictionaries({}, optional={"level": st.sampled_from(LEVELS), "text": st.just("1")})


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(FAILS, min_size=1, max_size=8), ACTIONS, FILTERS, st.lists(HAPPENINGS, max_size=12))
def test_an_operation_changes_what_its_plan_showed_and_each_message_leaves_its_level_once(
    fails: list[Any], action: str, chosen: dict[str, Any], happenings: list[Any]
) -> None:
    with retries() as rig:
        for each in fails:
            rig.fail(*each)
        shown = {
            body
            for body, (level, _) in rig.waiting().items()
            if rig.sent[body][0] == "g"
            and chosen.get("level", level) == level
            and chosen.get("text", "") in body
        }
        rig.work.make_plan("retries", action, {"group": "g"} | chosen)
        assert (rig.work.plan["counted"], rig.work.plan["exact"]) == (len(shown), True)
        run, others, changed_by_others = rig.work.load(), False, set[str]()
        for happening in happenings:
            match happening:
                case "batch":
                    run.run_batch()
                case "crash":
                    run = rig.work.load()
                case "crash in batch":
                    run, others = rig.work.crash_in_batch(), True
                case "restart":
                    rig.restart()
                    run = rig.work.load()
                case ("time", seconds):
                    rig.advance(seconds)
                    others = True
                case ("operator", by_hand, number):
                    others = True
                    rows = sorted(rig.waiting().items())
                    if rows:
                        body, (level, record) = rows[number % len(rows)]
                        changed_by_others.add(body)
                        position = record.offset, record.message_id.hex()
                        rig.order(rig.sent[body][0], by_hand, level, position)
                case _:
                    rig.fail(*happening)
            rig.check_places()
        while not run.is_over:
            run.run_batch()
        rig.check_places()
        row = rig.work.show()
        assert (row["state"], row["remaining"]) == ("done", 0)
        assert row["changed"] + sum(row["skipped"].values()) == len(shown)
        assert row["skipped"].keys() <= {LEFT}
        assert not shown & rig.waiting().keys()
        assert set(rig.dead("g")) <= (shown if action == "dead_letter" else set()) | changed_by_others
        if not others:
            assert row["changed"] == len(shown)
            assert set(rig.dead("g") if action == "dead_letter" else rig.due("g")) == shown
        rig.advance(60)
        rig.check_places()
        assert not rig.waiting()


def test_a_plan_states_the_sample_the_group_and_the_command(retrying: RetriesRig) -> None:
    retrying.fail("g", 3, 7)
    retrying.fail("h", 3)
    retrying.work.make_plan("retries", "now", {"group": "g", "level": 3, "error": "ValueError", "topic": "T"})
    plan = retrying.work.plan
    assert (plan["counted"], plan["skipped"], len(plan["sample"])) == (7, {}, 5)
    assert plan["sample"][0] == {
        "id": f"{1:032x}", "topic": "T", "key": "k0", "error": "ValueError: x", "due_ms": 1_700_000_010_000,
        "level": 3, "step": 1, "deliveries": 4, "since_ms": 1_000,
    }  # fmt: skip
    assert plan["reaches"] == {"T": {"count": 1, "groups": ["g"]}}
    assert plan["command"] == "ddmq op plan retries now --group=g --topic=T --error=ValueError --level=3"
    retrying.work.make_plan("retries", "dead_letter", {"group": "g", "ids": [f"{2:032x}"]})
    plan = retrying.work.plan
    assert (plan["counted"], plan["reaches"]) == (1, {})
    assert plan["command"] == f"ddmq op plan retries dead-letter --group=g --id={2:032x}"


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        ({"key": "k1"}, 1), ({"text": "Error: x"}, 3), ({"text": "k2"}, 1), ({"error": "KeyError"}, 0),
        ({"topic": "U"}, 0), ({"to_ms": 1_700_000_010_000}, 0), ({"from_ms": 1_700_000_010_000}, 3),
        ({"ids": []}, 3), ({"ids": ["x"]}, 0),
    ],
)  # fmt: skip
def test_a_filter_chooses_retries(retrying: RetriesRig, chosen: dict[str, Any], count: int) -> None:
    retrying.fail("g", 3, 3)
    retrying.work.make_plan("retries", "now", {"group": "g"} | chosen)
    assert retrying.work.plan["counted"] == count


def test_a_dead_letter_states_where_the_message_came_from(retrying: RetriesRig) -> None:
    retrying.fail("g", 4)
    answer = retrying.order("g", "dead_letter", 4, (0, f"{1:032x}"))
    assert (answer["changed"], answer["reaches"]) == (1, {})
    [letter] = retrying.stored(dlq_topic("g"))
    assert (letter.message_id, letter.system) == ((1).to_bytes(16, "big"), {})
    properties = dict(decode(letter.delivery).properties)
    assert properties.pop(b"dead-letter-time")
    assert properties == {
        b"a": b"b", b"dead-letter-reason": b"skipped", b"dead-letter-error": b"ValueError: x",
        b"dead-letter-topic": b"T", b"dead-letter-queue": b"0", b"dead-letter-offset": b"7",
        b"dead-letter-attempts": b"4",
    }  # fmt: skip


def test_a_retry_that_is_delivered_now_is_what_the_level_would_have_fired(retrying: RetriesRig) -> None:
    retrying.fail("g", 3, 2)
    retrying.order("g", "now", 3, (1, f"{2:032x}"))
    retrying.advance(10)
    now, later = retrying.stored(retry_topic("g"), 1)
    assert (now.system, now.due_ms, now.flags) == (later.system, 0, later.flags)
    assert REAL_TOPIC not in now.system
    assert (body_of(now), body_of(later)) == ("1", "0")


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_change_names_the_message_and_its_group(retrying: RetriesRig, dry_run: bool) -> None:
    retrying.fail("g", 3, 3)
    retrying.send(3, [b"99"], retry_topic("h"))
    retrying.sent["99"] = "h", 3
    retrying.order("g", "now", 3, (2, f"{3:032x}"))
    positions = (
        (0, f"{9:032x}"),
        (1, f"{2:032x}"),
        (2, f"{3:032x}"),
        (3, f"{4:032x}"),
        (2**63 - 1, f"{1:032x}"),
    )
    answer = retrying.order("g", "dead_letter", 3, *positions, dry_run=dry_run)
    reasons = {row["offset"]: row["reason"] for row in answer["items"]}
    assert reasons == {0: OTHER_MESSAGE, 1: "", 2: LEFT, 3: OTHER_GROUP, 2**63 - 1: MISSING}
    assert (answer["changed"], answer["dry_run"]) == (1, dry_run)
    assert retrying.dead("g") == ([] if dry_run else ["1"])
    assert retrying.due("g") == ["2"]


def test_a_dry_run_names_the_group_that_is_reached(retrying: RetriesRig) -> None:
    retrying.fail("g", 3)
    answer = retrying.order("g", "now", 3, (0, f"{1:032x}"), dry_run=True)
    assert answer["reaches"] == {"T": {"count": 1, "groups": ["g"]}}
    assert retrying.due("g") == []


def test_a_closed_or_deleted_retry_topic_keeps_its_messages_in_the_level(retrying: RetriesRig) -> None:
    retrying.fail("g", 3, 2)
    info = retrying.make("other")
    closed = retrying.backend.topic(retry_topic("g"))
    assert closed is not None
    retrying.delete(retry_topic("g"))
    retrying.work.make_plan("retries", "now", {"group": "g"})
    assert retrying.work.plan["counted"] == 0
    [reason] = retrying.work.plan["skipped"]
    assert reason == "%RETRY%g does not exist any more"
    answer = retrying.order("g", "now", 3, (0, f"{1:032x}"))
    assert (answer["changed"], answer["items"][0]["reason"]) == (0, reason)
    assert retrying.order("g", "dead_letter", 3, (0, f"{1:032x}"))["changed"] == 1
    assert info.name == "other"


@pytest.mark.parametrize(
    ("level", "messages", "error"),
    [
        (19, [{"offset": 0, "id": "0" * 32}], "level is 19; allowed: 1 to 18"),
        (0, [{"offset": 0, "id": "0" * 32}], "level is 0; allowed: the number of a delay level, from 1"),
        (3, [], "messages is .*; allowed: a list of 1 to 100 messages"),
        (3, [{"offset": 0, "id": "0" * 32}] * 101, "messages is .*; allowed: a list of 1 to 100 messages"),
        (3, [{"offset": 0, "id": "0" * 32}] * 2, "offset 0 is in messages more than once"),
        (3, [{"offset": -1, "id": "0" * 32}], "messages is "),
        (3, [{"offset": 1 << 63, "id": "0" * 32}], "messages is "),
        (3, [{"offset": 0, "id": "é" * 32}], "messages is "),
        (3, [{"offset": 0, "id": "0" * 32 + "\n"}], "messages is "),
        (3, [{"offset": 0, "id": "0" * 32, "x": 1}], "messages is "),
        (3, [{"offset": 0}], "messages is "),
        (3, [[0, "0" * 32]], "messages is "),
        (3, "x", "messages is 'x'"),
    ],
)
def test_a_change_with_wrong_values_is_rejected(
    retrying: RetriesRig, level: int, messages: Any, error: str
) -> None:
    retrying.fail("g", 3)
    fields = {"group": "g", "action": "now", "level": level, "messages": messages}
    with pytest.raises(CallerError, match=error):
        retrying.send_order(fields)
    assert retrying.due("g") == []


def test_a_record_that_names_no_group_is_no_retry(retrying: RetriesRig) -> None:
    """On Kafka, any program may write to the topic of the levels."""
    retrying.send(3, [b"0"], "")
    until(lambda: retrying.waiting(), "it waits")
    queue: QueueRef = retrying.queue(SCHEDULE_TOPIC, 2)
    assert retrying.order("g", "now", 3, (0, f"{1:032x}"))["items"][0]["reason"] == OTHER_GROUP
    assert queue.queue_id == 2
