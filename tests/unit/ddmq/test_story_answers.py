"""The story as the admin port answers it: what is damaged, missing or wrongly asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from backend.internal_topics import REAL_QUEUE, REAL_TOPIC
from backend.memory import MemoryBackend
from backend.records import CommitBatch, NewRecord, ProgressDelta, TopicInfo
from backend.traces import queue_of
from ddmq.server.admin.api import AdminApi
from ddmq.server.delays.queries import DelayQueries
from ddmq.server.story.copies import first_id
from ddmq_client.idl.codes import TransactionOutcome
from ddmq_common.clock import ManualClock
from ddmq_common.delays.command import ADD, COMMAND_PROPERTY, DelayCommand, encode_command
from ddmq_common.delivery import encode
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import (
    DELAY_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    SCHEDULE_TOPIC,
    TRACE_TOPIC,
    TRANSACTION_DEAD_TOPIC,
)
from ddmq_common.trace.events import TraceBatch, TraceEvent, TraceKind, encode_batch
from proxy_consumer.groups.group import group_key, subscription_key
from proxy_producer.transactions.codec import Op, op_record

FAR = 1e12
ID = bytes(range(16))
K = TraceKind


class StoryRig:
    """The admin port over the memory engine, and what stands there."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.backend = MemoryBackend(self.clock)
        self.api = AdminApi(self.backend, None, Registry(), self.clock, self.backend.health)
        self.topic("orders")

    def topic(self, name: str, queues: int = 4) -> None:
        self.backend.put_topic(TopicInfo(name, 0, queues), FAR).wait(5)

    def group(self, name: str = "g") -> None:
        settings = {subscription_key(name, "orders"): b"{}", group_key(name): b"{}"}
        self.backend.commit(CommitBatch(settings=settings), FAR).wait(5)

    def put(
        self, topic: str = "orders", queue: int = 0, system: Any = None, key: bytes = b"k", **fields: Any
    ) -> None:
        record = NewRecord(
            topic, queue, fields.get("message_id", ID), self.clock.wall_ms(), encode(key, b"x", b"", None),
            key, system=system, due_ms=fields.get("due_ms", 0),
        )  # fmt: skip
        self.backend.append([record], FAR).wait(5)

    def finish(self, end: int) -> None:
        """Group g has finished the first messages of queue 0."""
        info = self.backend.topic("orders")
        assert info is not None
        delta = ProgressDelta("g", info.refs()[0], 1, 0, ((0, end),))
        self.backend.commit(CommitBatch(progress=[delta]), FAR).wait(5)

    def trace(self, body: bytes) -> None:
        if self.backend.topic(TRACE_TOPIC) is None:
            self.topic(TRACE_TOPIC)
        record = NewRecord(
            TRACE_TOPIC, queue_of(ID, 4), ID, self.clock.wall_ms(), encode(b"", body, b"", None)
        )
        self.backend.append([record], FAR).wait(5)

    def event(self, number: int, kind: TraceKind, group: str = "", **facts: Any) -> None:
        event = TraceEvent(number, int(kind), self.clock.wall_ms(), group, facts)
        self.trace(encode_batch(TraceBatch("p", "i", [event])))

    def get_json(self, path: str, status: int = 200) -> Any:
        path, _, query = path.partition("?")
        environ = {
            "REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": query, "HTTP_HOST": "127.0.0.1",
        }  # fmt: skip
        statuses: list[str] = []
        answer = b"".join(self.api.router(environ, lambda said, headers: statuses.append(said)))
        assert statuses[0].startswith(str(status)), (statuses, answer)
        return msgspec.json.decode(answer)

    def story(self, query: str = "") -> Any:
        return self.get_json(f"/messages/{ID.hex()}/story{query}")


@pytest.fixture
def rig() -> Iterator[StoryRig]:
    story_rig = StoryRig()
    yield story_rig
    story_rig.backend.close()


def phases(story: Any, index: int = 0) -> list[str]:
    return [span["phase"] for span in story["stories"][index]["spans"]]


def test_without_any_trace_the_records_tell(rig: StoryRig) -> None:
    rig.group()
    rig.put()
    rig.clock.advance(5.0)
    story = rig.story()
    assert (story["id"], story["topic"], story["offset"]) == (ID.hex(), "orders", 0)
    (one,) = story["stories"]
    assert (one["group"], one["state"], one["whole_ms"]) == ("g", "not yet", 5_000)
    assert phases(story)[-1] == "queued"
    assert not one["spans"][-1]["known"]
    assert "--trace-one-in" in story["notes"][0]


@pytest.mark.parametrize(
    ("one_in", "said"),
    [
        (b"1", "the log has no trace event of this message yet"),
        (b"1000000", "this message was not traced (topic orders traces 1 in"),
    ],
)
def test_events_that_are_not_in_the_log_yet_are_no_reason_to_say_untraced(
    rig: StoryRig, one_in: bytes, said: str
) -> None:
    rig.backend.commit(CommitBatch(settings={"trace/orders": one_in}), FAR).wait(5)
    rig.put()
    (caveat,) = rig.story()["notes"]
    assert caveat.startswith(said)


def test_what_is_finished_says_so(rig: StoryRig) -> None:
    rig.group()
    rig.put()
    rig.finish(1)
    rig.clock.advance(1.0)
    (one,) = rig.story()["stories"]
    assert (one["state"], one["end"]) == ("done", None)
    assert "finished in here" in one["spans"][-1]["why"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tags": "a || b"}, "its filter keeps it back: a || b; finished in here"),
        ({"sql": "KEYS = 'other'"}, "its filter keeps it back: KEYS = 'other'; finished in here"),
        ({"sql": "KEYS = 'k'"}, "orders 0/0; finished in here"),
        ({"tags": "*"}, "orders 0/0; finished in here"),
    ],
)
def test_what_the_filter_keeps_back_was_not_consumed(rig: StoryRig, settings: Any, said: str) -> None:
    rig.group()
    value = json.dumps({"settings": settings}).encode()
    rig.backend.commit(CommitBatch(settings={subscription_key("g", "orders"): value}), FAR).wait(5)
    rig.put()
    rig.finish(1)
    rig.clock.advance(1.0)
    assert said in rig.story()["stories"][0]["spans"][-1]["why"]
    rig.event(1, K.READ, "g", queue=0, offset=0)
    rig.event(2, K.PASSED, "g", queue=0, offset=0)
    (one,) = rig.story()["stories"]
    assert one["end"] == "passed"
    assert one["end_why"] == said.partition("; ")[0].replace("orders 0/0", "")


def test_damaged_trace_records_are_left_out_and_counted(rig: StoryRig) -> None:
    rig.group()
    rig.put()
    rig.event(1, K.READ, "g", queue=0, offset=0)
    for body in (b"", b"\x01", b"\x02" + b"x" * 50, b"\x01" + b"\x93" * 500, bytes(300)):
        rig.trace(body)
    rig.event(2, K.HANDED_OUT, "g", queue=0, offset=0, client="c\x1b[31m")
    rig.clock.advance(1.0)
    story = rig.story()
    assert story["trace_events"] == 2
    assert story["notes"] == ["5 trace records cannot be read and are left out"]
    assert phases(story)[-1] == "leased"
    spans = story["stories"][0]["spans"]
    assert sum(span["ms"] for span in spans) == story["stories"][0]["whole_ms"]


def test_events_of_a_later_version_are_passed_over(rig: StoryRig) -> None:
    rig.group()
    rig.put()
    event = TraceEvent(1, 999, rig.clock.wall_ms(), "g", {"queue": "text", "waits": 5})
    rig.trace(encode_batch(TraceBatch("p", "i", [event])))
    unknown_event = TraceEvent(
        2, int(K.HANDED_OUT), rig.clock.wall_ms(), "g", {"queue": "t", "waits": 5, "attempt": "x"}
    )
    rig.trace(encode_batch(TraceBatch("p", "i", [unknown_event])))
    assert phases(rig.story())[-1] == "leased"


def test_a_group_that_was_deleted_since(rig: StoryRig) -> None:
    rig.put()
    rig.event(1, K.READ, "gone", queue=0, offset=0)
    rig.event(2, K.HANDED_OUT, "gone", queue=0, offset=0)
    rig.event(3, K.ACKED, "gone", queue=0, offset=0)
    (one,) = rig.story()["stories"]
    assert (one["group"], one["state"], one["end"]) == ("gone", "gone does not exist any more", "done")


def test_very_many_deliveries_are_folded(rig: StoryRig) -> None:
    rig.group()
    rig.put()
    for number in range(1, 3_000, 2):
        rig.event(number, K.HANDED_OUT, "g", queue=0, offset=0)
        rig.clock.advance(0.010)
        rig.event(number + 1, K.TIMED_OUT, "g", queue=0, offset=0, next="again")
        rig.clock.advance(0.010)
    story = rig.story()
    (one,) = story["stories"]
    assert len(one["spans"]) == 501
    assert "many" in phases(story)
    assert sum(span["ms"] for span in one["spans"]) == one["whole_ms"]
    assert any("the newest are told of" in caveat for caveat in story["notes"])


def test_a_message_that_retention_took_is_told_from_what_is_left(rig: StoryRig) -> None:
    rig.group()
    rig.event(1, K.SENT, "", client="c")
    rig.get_json(f"/messages/{ID.hex()}/story", status=404)
    rig.topic("%DLQ%g")
    rig.put("%DLQ%g", system={"dead-letter-reason": "failed", "dead-letter-topic": "orders"})
    rig.clock.advance(1.0)
    story = rig.story()
    assert story["topic"] == "orders"
    assert "offset" not in story
    assert story["stories"][0]["end"] == "dead"


def test_a_letter_that_was_sent_again_and_consumed_is_dead_no_more(rig: StoryRig) -> None:
    rig.group()
    rig.topic("%DLQ%g")
    rig.put()
    rig.put("%DLQ%g", system={"dead-letter-reason": "failed", "dead-letter-topic": "orders"})
    states = []
    for finished in (1, 2):
        rig.finish(finished)
        states.append(rig.story()["stories"][0]["state"])
        rig.put()
        states.append(rig.story()["stories"][0]["state"])
    assert states == ["dead", "not yet", "done", "not yet"]


def test_a_level_and_a_command(rig: StoryRig) -> None:
    rig.topic(SCHEDULE_TOPIC, 18)
    rig.put(SCHEDULE_TOPIC, 2, {REAL_TOPIC: "orders", REAL_QUEUE: "0"}, due_ms=-10_000)
    rig.clock.advance(11.0)
    story = rig.story()
    assert phases(story)[1:] == ["delayed", "overdue"]
    assert story["stories"][0]["whole_ms"] == 11_000
    rig.topic(DELAY_TOPIC)
    rig.put(DELAY_TOPIC, 0, {"delay-order": "{not json"})
    assert rig.story()["stories"], "what does not parse is left out"


UUID = "0fd79f5b-a3f6-4c87-b525-1697065ae9c2"


def delayed(rig: StoryRig, due_ms: int) -> None:
    rig.topic(DELAY_TOPIC, 1)
    command = DelayCommand(ADD, UUID, "orders", due_ms=due_ms)
    rig.put(DELAY_TOPIC, 0, {COMMAND_PROPERTY: encode_command(command)})


@pytest.mark.parametrize(
    ("delay_state", "expected", "end"),
    [
        ({"state": "pending", "due_ms": 60_000}, ["delayed"], None),
        ({"state": "pending", "due_ms": 2_000}, ["delayed", "overdue"], None),
        ({"state": "cancelled", "at_ms": 3_000}, ["delayed", "overdue"], "cancelled"),
        ({"state": "cancelled before it was known", "at_ms": 0}, [], "cancelled"),
    ],
)
def test_what_waits_is_told_as_the_delay_service_has_it_now(
    rig: StoryRig, monkeypatch: pytest.MonkeyPatch, delay_state: Any, expected: list[str], end: str | None
) -> None:
    uuids: list[str] = []
    start_ms = rig.clock.wall_ms()
    moved = {name: value if name == "state" else start_ms + value for name, value in delay_state.items()}
    monkeypatch.setattr(
        DelayQueries,
        "fetch_message",
        lambda _, uuid: uuids.append(uuid) or moved,  # type: ignore[func-returns-value]
    )
    rig = StoryRig()
    delayed(rig, rig.clock.wall_ms() + 1_000)
    rig.clock.advance(5.0)
    story = rig.story()
    assert uuids == [UUID]
    assert [phase for phase in phases(story) if phase != "sending"] == expected
    assert story["stories"][0]["end"] == end


def test_where_no_delay_service_answers_that_is_said(rig: StoryRig) -> None:
    delayed(rig, rig.clock.wall_ms() + 60_000)
    rig.clock.advance(5.0)
    story = rig.story()
    assert phases(story)[-1] == "delayed"
    assert "whether that was changed is not known" in story["notes"][0]


TRANSACTION = "018bcfe5680070008000000000000001"
MARK = {"transaction": json.dumps({"id": TRANSACTION, "group": "bank", "topic": "orders", "queue": 0})}


def prepared(rig: StoryRig) -> None:
    rig.topic(HALF_TOPIC, 1)
    rig.topic(OP_TOPIC, 1)
    rig.put(HALF_TOPIC, system=MARK, key=b"")
    rig.clock.advance(5.0)


def store_outcome(rig: StoryRig, outcome: TransactionOutcome) -> None:
    op = op_record(0, bytes.fromhex(TRANSACTION), Op(int(outcome), "bank", rig.clock.wall_ms()))
    rig.backend.append([op], FAR).wait(5)


def test_a_message_waits_in_its_transaction(rig: StoryRig) -> None:
    rig.group()
    prepared(rig)
    rig.put(HALF_TOPIC, system=MARK, key=b"")  # it was sent again, to an engine that does not know it again
    (one,) = rig.story()["stories"]
    assert one["spans"][-1]["phase"] == "transaction"
    assert (one["whole_ms"], one["spans"][-1]["why"]) == (5_000, f"transaction {TRANSACTION} of bank")
    rig.put()
    store_outcome(rig, TransactionOutcome.COMMITTED)
    rig.clock.advance(1.0)
    story = rig.story()
    assert phases(story) == ["sending", "transaction", "queued"]
    assert story["stories"][0]["whole_ms"] == 6_000


def test_a_message_that_was_rolled_back(rig: StoryRig) -> None:
    rig.group()
    prepared(rig)
    store_outcome(rig, TransactionOutcome.ROLLED_BACK)
    rig.clock.advance(60.0)
    story = rig.story()
    (one,) = story["stories"]
    assert (story["topic"], one["end"], one["whole_ms"]) == ("orders", "rolled_back", 5_000)


def test_a_message_whose_transaction_nobody_decided(rig: StoryRig) -> None:
    prepared(rig)
    rig.topic(TRANSACTION_DEAD_TOPIC, 1)
    facts = {"dead-letter-reason": "unanswered", "dead-letter-topic": "orders", "dead-letter-attempts": "15"}
    rig.put(TRANSACTION_DEAD_TOPIC, system=facts)
    store_outcome(rig, TransactionOutcome.DEAD_LETTER)
    (one,) = rig.story()["stories"]
    assert (one["end"], one["end_why"]) == ("dead", "its transaction: unanswered after 15 checks")


def test_a_half_message_that_cannot_be_read_is_left_out(rig: StoryRig) -> None:
    rig.group()
    rig.topic(HALF_TOPIC, 1)
    rig.put(HALF_TOPIC, system={"transaction": "{"}, key=b"")
    rig.put()
    rig.clock.advance(1.0)
    assert phases(rig.story())[-1] == "queued"


def test_later_deliveries_of_a_repeating_message_know_their_first() -> None:
    own = ID[:8] + (5).to_bytes(8, "big")
    third = ID[:8] + (5 + (2 << 44)).to_bytes(8, "big")
    assert first_id(third) == own
    assert first_id(own) == own


def test_where_nothing_is_found_by_an_id(rig: StoryRig) -> None:
    """As on Kafka: the message is named by its place, and its events are looked for by time."""
    rig.group()
    rig.put()
    rig.event(1, K.READ, "g", queue=0, offset=0)
    rig.backend.capabilities = replace(rig.backend.capabilities, find_by_key=False)
    story = rig.get_json("/topics/orders/story?queue=0&offset=0")
    assert story["trace_events"] == 1
    assert "finds nothing by a message's id" in story["notes"][0]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/messages/xyz/story", 400),
        ("/messages/00/story", 400),
        (f"/messages/{'f' * 32}/story", 404),
        ("/topics/none/story?key=k", 404),
        ("/topics/orders/story", 400),
        (f"/topics/orders/story?key=k&id={ID.hex()}", 400),
        ("/topics/orders/story?queue=9&offset=0", 404),
        ("/topics/orders/story?queue=0&offset=77", 404),
        ("/topics/orders/story?queue=-1&offset=x", 400),
        ("/topics/orders/story?key=nobody", 404),
        (f"/messages/{ID.hex()}/story?group=nobody", 404),
    ],
)
def test_wrong_questions(rig: StoryRig, path: str, status: int) -> None:
    rig.put()
    assert rig.get_json(path, status=status)["error"]
