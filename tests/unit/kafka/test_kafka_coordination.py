"""The replicated table: replicas never disagree, also those that start from a snapshot."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.kafka.coordination.events import (
    Begun,
    Died,
    Event,
    HeartbeatSent,
    Joined,
    Left,
    LevelRaised,
    Recalled,
    Released,
    Retired,
    Snapshot,
    SnapshotCell,
    SnapshotGroup,
    SnapshotMember,
    SnapshotRow,
    TopicChanged,
    decode_event,
    encode_event,
)
from backend.kafka.coordination.table import CoordinationLog, PlacedEvent
from backend.ownership.group import Assign, AssignmentState, Decision, Lose, Revoke
from backend.port import Sharing
from tests.examples import examples

PROCESSES, GROUPS, TOPICS = ["a", "b", "c"], ["g", "h"], ["orders", "bills"]
NUMBERS = st.integers(0, 3)
PROCESS, GROUP, TOPIC = st.sampled_from(PROCESSES), st.sampled_from(GROUPS), st.sampled_from(TOPICS)
QUEUE = st.tuples(st.integers(1, 2), st.integers(0, 3))
JOINS = st.builds(
    Joined,
    process=PROCESS,
    number=NUMBERS,
    group=GROUP,
    topic=TOPIC,
    sharing=st.sampled_from([Sharing.AVERAGELY] * 3 + list(Sharing)),
    queues=st.sampled_from([None, None, None, [0, 2], [1, 3]]),
    address=st.sampled_from(["", "h:1", "h:2"]),
    member=st.sampled_from(["", "one", "two"]),
    incarnation=st.integers(1, 2),
    queue_count=st.integers(0, 4),
    lanes=st.integers(0, 3),
    level=st.integers(0, 3),
)
OTHERS = st.one_of(
    st.builds(Left, process=PROCESS, numbers=st.lists(NUMBERS, max_size=2)),
    st.builds(Released, process=PROCESS, number=NUMBERS, queues=st.lists(QUEUE, max_size=4)),
    st.builds(Released, process=PROCESS, number=NUMBERS, queues=st.lists(QUEUE, max_size=4)),
    st.builds(Recalled, group=GROUP, topic=TOPIC),
    st.builds(HeartbeatSent, process=PROCESS, number=NUMBERS),
    st.builds(LevelRaised, level=st.integers(1, 3), processes=st.lists(PROCESS, max_size=3)),
    st.builds(Retired, process=PROCESS, lanes=st.lists(st.integers(0, 2), max_size=2)),
    st.builds(Died, process=st.sampled_from([*PROCESSES, "d"]), by=PROCESS),
    st.builds(
        TopicChanged,
        topic=TOPIC,
        was=st.integers(0, 2),
        incarnation=st.integers(1, 2),
        queue_count=st.integers(0, 5),
    ),
)
STORIES = st.lists(st.one_of(JOINS, OTHERS), max_size=40)
Decisions = list[tuple[object, ...]]


def to_rows(log: CoordinationLog, decisions: list[Decision]) -> Decisions:
    """Decisions in words: members are other objects in another replica."""
    return sorted(
        (
            type(decision).__name__,
            decision.member.process,
            decision.member.serial,
            decision.queues,
            getattr(decision, "epoch", 0),
            getattr(decision, "deadline", 0),
        )
        for decision in decisions
    )


def encode_table(log: CoordinationLog) -> bytes:
    snapshot = log.make_snapshot()
    assert snapshot is not None
    return encode_event(snapshot)


def begun(first: int = 0) -> CoordinationLog:
    log = CoordinationLog(first)
    log.apply(PlacedEvent(first, 1_000, Begun(5_000, first)))
    return log


@settings(max_examples=examples(400), deadline=None)
@given(STORIES, st.data())
def test_a_replica_from_a_snapshot_agrees(story: list[Event], data: st.DataObject) -> None:
    """The snapshot holds what was before some event and comes some events later, as its writer was slow."""
    snapshot_at = data.draw(st.integers(0, len(story)))
    written = data.draw(st.integers(snapshot_at, len(story)))
    log, snapshot_bytes = begun(), b""
    placed: list[PlacedEvent] = [PlacedEvent(0, 1_000, Begun(5_000, 0))]
    for at, event in enumerate([*story, HeartbeatSent("a", 1)]):
        if at == snapshot_at:
            snapshot_bytes = encode_table(log)
        if at == written:
            snapshot = decode_event(snapshot_bytes)
            assert isinstance(snapshot, Snapshot)
            placed.append(PlacedEvent(len(placed), 1_000 * at, snapshot))
            log.apply(placed[-1])
        placed.append(PlacedEvent(len(placed), 1_000 * at, event))
        log.apply(placed[-1])

    first, follower = CoordinationLog(0), CoordinationLog(1)
    for one in placed:
        mine = to_rows(first, first.apply(one))
        if one.offset >= 1:
            theirs = to_rows(follower, follower.apply(one))
            if follower.state is not None and not isinstance(one.event, Snapshot):
                assert mine == theirs
                assert encode_table(first) == encode_table(follower)
    assert encode_table(first) == encode_table(log)


@settings(max_examples=examples(400), deadline=None)
@given(STORIES)
def test_every_queue_has_one_holder_and_epochs_only_rise(story: list[Event]) -> None:
    log, epochs, newest = begun(), dict[tuple[str, object], int](), 5_000
    for at, event in enumerate(story):
        decisions = log.apply(PlacedEvent(at + 1, at, event))
        for decision in decisions:
            assert isinstance(decision, Assign | Revoke | Lose)
            if isinstance(decision, Assign):
                for queue in decision.queues:
                    assert decision.epoch > epochs.get((decision.member.group, queue), 0)
                    epochs[decision.member.group, queue] = decision.epoch
        state = log.state
        assert state is not None
        assert state.epoch >= max([newest, *epochs.values()])
        newest = state.epoch
        assert sum(state.processes.values()) == len(state.members) == len(state.ids)
        assert set(state.topics) <= set(state.joined) == {m.topic for m in state.members.values()}


@settings(max_examples=examples(200), deadline=None)
@given(st.one_of(JOINS, OTHERS))
def test_events_come_back_from_their_bytes(event: Event) -> None:
    assert decode_event(encode_event(event)) == event


def test_what_does_not_parse_is_no_event() -> None:
    assert [decode_event(data) for data in (b"", b"\x01", b"\x02\x90", b"\x01\x91\xa1x", b"\x01\x05")] == [
        None
    ] * 5


def test_a_word_that_this_version_does_not_have_makes_no_event() -> None:
    member = SnapshotMember("a", 1, Sharing.BY_CIRCLE, None, "", "", 1)
    cell = SnapshotCell(1, 0, AssignmentState.OWNED, 0, 7, 0.0, -1)
    group = SnapshotGroup("g", "", False, [SnapshotRow("orders", 1, [member], [cell])])
    snapshot = encode_event(Snapshot(5, 7, 1, ["a"], [], [("orders", 1, 1)], [group]))
    for data, word in (
        (encode_event(join("a")), b"averagely"),
        (snapshot, b"by-circle"),
        (snapshot, b"held"),
    ):
        assert decode_event(data) is not None
        assert decode_event(data.replace(word, word[::-1])) is None


def test_events_of_the_version_before_state_no_lanes_and_no_level() -> None:
    """Its arrays are shorter; nothing is left out of what they have."""
    joined, snapshot = (
        join("a"),
        Snapshot(5, 7, 1, ["a"], [], [("orders", 1, 1)], [], [("a", 6)], [("a", [2])], 2, [("a", 2)]),
    )
    for event, fields in ((joined, 2), (snapshot, 4)):
        words = msgspec.msgpack.decode(encode_event(event)[1:])
        decoded = decode_event(encode_event(event)[:1] + msgspec.msgpack.encode(words[:-fields]))
        assert decoded == type(event)(*msgspec.structs.astuple(event)[:-fields])


# --- particular cases


def join(process: str, number: int = 0, topic: str = "orders", **rest: object) -> Joined:
    event = Joined(process, number, "g", topic, Sharing.AVERAGELY, None, process, "", 1, 2)
    return msgspec.structs.replace(event, **rest)


class LogFeeder:
    """Feeds a log event by event."""

    def __init__(self) -> None:
        self.log = begun()

    def __call__(self, event: Event) -> list[Decision]:
        return self.log.apply(PlacedEvent(self.log.next, 1_000 * self.log.next, event))

    def holders(self) -> dict[int, str]:
        assert self.log.state is not None
        holders = self.log.state.table.holders("g", "orders")
        return {queue.queue_id: member.name for queue, member in holders.items()}


def test_a_queue_moves_when_its_holder_releases_it_and_not_when_time_passes() -> None:
    feed = LogFeeder()
    feed(join("a"))
    assert feed.holders() == {0: "a", 1: "a"}
    (revoke,) = feed(join("b"))
    assert isinstance(revoke, Revoke)
    for number in range(100):
        assert feed(HeartbeatSent("a", number)) == []
    assert feed.holders() == {0: "a"}
    feed(Released("a", 0, [(1, 1)]))
    assert feed.holders() == {0: "a", 1: "b"}


def test_a_dead_process_loses_everything_and_never_comes_back_under_its_name() -> None:
    feed = LogFeeder()
    feed(join("a"))
    feed(join("b"))
    feed(Died("a", "b"))
    assert feed.holders() == {0: "b", 1: "b"}
    assert feed(join("a", 7)) == []
    assert feed(Released("a", 0, [(1, 0)])) == []
    assert feed.holders() == {0: "b", 1: "b"}


def test_a_late_topic_event_changes_nothing() -> None:
    feed = LogFeeder()
    feed(join("a"))
    feed(TopicChanged("orders", 1, 2, 3))
    assert feed.holders() == {0: "a", 1: "a", 2: "a"}
    assert feed(TopicChanged("orders", 1, 1, 5)) == [], "seen before it was made again"
    assert feed(TopicChanged("orders", 2, 2, 1)) == [], "queues only grow"
    (lost,) = feed(TopicChanged("orders", 2, 0, 0))
    assert isinstance(lost, Lose)
    assert feed.holders() == {}


def test_a_second_beginning_counts_only_if_its_writer_had_not_read_the_first() -> None:
    feed = LogFeeder()
    feed(join("a"))
    feed(Begun(9_000, 0))
    assert feed.holders() == {0: "a", 1: "a"}
    feed(Begun(9_000, 2))
    assert feed.holders() == {}
    assert feed.log.begin_count == 2
    feed(join("a", 1))
    assert feed.log.state is not None
    assert feed.log.state.epoch > 9_000


def test_a_snapshot_of_what_was_not_read_is_waited_past() -> None:
    full = begun()
    full.apply(PlacedEvent(1, 1, join("a")))
    early = full.make_snapshot()
    full.apply(PlacedEvent(2, 2, join("b")))
    later = full.make_snapshot()
    assert early is not None
    assert later is not None
    log = CoordinationLog(3)
    log.apply(PlacedEvent(3, 3, early))
    assert log.state is None, "what came between it and the first record is not known"
    log.apply(PlacedEvent(4, 4, later))
    assert log.state is not None
    assert sorted(log.state.processes) == ["a", "b"]


def test_what_a_process_has_stated_of_its_lanes_lasts_as_long_as_it_is_there() -> None:
    feed = LogFeeder()
    feed(Retired("a", [1]))
    feed(join("a", lanes=6))
    feed(join("b", lanes=6))
    state = feed.log.state
    assert state is not None
    assert (state.lanes, state.retired) == ({"a": 6, "b": 6}, {})
    feed(Retired("a", [1]))
    feed(Retired("a", [3]))
    assert state.retired == {"a": {1, 3}}
    feed(Died("a", "b"))
    assert (state.lanes, state.retired) == ({"b": 6}, {})
