"""The feature level: what the table decides, the text of the record, and the keeper of one process."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.completion import Completion
from backend.kafka.coordination import watch as watch_module
from backend.kafka.coordination.events import Begun, Died, Event, Joined, LevelRaised
from backend.kafka.coordination.feature_level import (
    CLUSTER_SETTING,
    LEVEL,
    ClusterRecord,
    find_common_level,
    find_level_error,
    format_cluster_record,
    parse_cluster_record,
)
from backend.kafka.coordination.level_keeper import RETRY_S, LevelKeeper
from backend.kafka.coordination.table import CoordinationLog, PlacedEvent, TableState
from backend.kafka.coordination.watch import MemberWatch
from backend.kafka.options import KafkaOptions, StoreOnce
from backend.port import Sharing
from backend.records import CommitBatch
from ddmq_common.errors import ConfigError, RemoteError
from tests.examples import examples
from tests.support.waits import until

PROCESSES = ["a", "b", "c"]
PROCESS = st.sampled_from(PROCESSES)


def join(process: str, level: int = LEVEL, number: int = 1) -> Joined:
    return Joined(process, number, "g", "orders", Sharing.AVERAGELY, None, f"{process}:1", "", 1, 2, 6, level)


EVENTS = st.one_of(
    st.builds(join, PROCESS, st.integers(0, 3)),
    st.builds(Died, process=PROCESS, by=PROCESS),
    st.builds(LevelRaised, level=st.integers(1, 3), processes=st.lists(PROCESS, max_size=3)),
)


class NaiveLevels:
    """The rules in words: who is there, and what the level is."""

    def __init__(self) -> None:
        self.level = 1
        self.living: set[str] = set()
        self.dead: set[str] = set()

    def apply(self, event: Event) -> None:
        if isinstance(event, Joined):
            knows_too_little = event.level != 0 and event.level < self.level
            if event.process not in self.dead and not knows_too_little:
                self.living.add(event.process)
        elif isinstance(event, Died):
            self.living.discard(event.process)
            self.dead.add(event.process)
        elif isinstance(event, LevelRaised) and all(name in event.processes for name in self.living):
            self.level = max(self.level, event.level)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(EVENTS, max_size=30))
def test_the_level_rises_only_if_every_member_is_listed_and_never_falls(story: list[Event]) -> None:
    table, naive = TableState(1), NaiveLevels()
    for at, event in enumerate(story):
        before = table.level
        table.apply(event, at)
        naive.apply(event)
        assert table.level == naive.level
        assert table.level >= before
        assert set(table.processes) == naive.living


def test_a_log_that_begins_has_the_level_of_its_beginning() -> None:
    log = CoordinationLog(0)
    log.apply(PlacedEvent(0, 1, Begun(5, 0, 2)))
    assert log.state is not None
    assert log.state.level == 2
    snapshot = log.make_snapshot()
    assert snapshot is not None
    assert snapshot.level == 2


def test_a_version_without_levels_reads_what_it_knows_of_a_join() -> None:
    """Its struct has no field for lanes and level, and skips them."""

    class EarlierJoined(msgspec.Struct, array_like=True, tag="join"):
        process: str
        number: int
        group: str
        topic: str

    data = msgspec.msgpack.encode(join("a"))
    assert msgspec.msgpack.decode(data, type=EarlierJoined) == EarlierJoined("a", 1, "g", "orders")


@given(st.text(max_size=30).filter(lambda text: "(feature level" not in text), st.integers(1, 999))
def test_the_record_comes_back_from_its_bytes(cluster_id: str, level: int) -> None:
    record = ClusterRecord(cluster_id.encode(errors="replace").decode(), level)
    assert parse_cluster_record(format_cluster_record(record)) == record


def test_the_record_of_level_1_is_that_of_earlier_versions_and_no_other_is() -> None:
    assert format_cluster_record(ClusterRecord("abc", 1)) == b"abc"
    assert format_cluster_record(ClusterRecord("abc", 2)) == b"abc (feature level 2)"
    assert parse_cluster_record(b"abc") == ("abc", 1)


def test_a_level_that_is_too_high_is_named_with_what_to_do() -> None:
    assert find_level_error(2, 2) == ""
    assert find_level_error(LEVEL + 1, LEVEL) == (
        f"the installation is at feature level {LEVEL + 1}, and this version of ddmq supports levels up to"
        f" {LEVEL}; start a version that supports level {LEVEL + 1}"
    )
    assert "feature_level is 1; a level never falls; allowed: 0, or 2 or more" in find_level_error(2, 1)


def test_options_that_do_not_fit_together_are_rejected() -> None:
    with pytest.raises(ConfigError, match=f"feature_level is {LEVEL + 1}; allowed: 0 to {LEVEL}"):
        KafkaOptions(feature_level=LEVEL + 1)
    with pytest.raises(
        ConfigError, match="store_once is all; allowed: none, keys, because feature_level is 1"
    ):
        KafkaOptions(feature_level=1, store_once=StoreOnce.ALL)


def test_the_common_level_is_that_of_the_lowest_process_and_of_the_caller() -> None:
    assert find_common_level([], {}, 3) == 3
    assert find_common_level(["a", "b"], {"a": 2, "b": 4}, 3) == 2
    assert find_common_level(["a", "b"], {"a": 4, "b": 4}, 3) == 3
    assert find_common_level(["a", "b"], {"a": 4}, 3) == 1


# --- the keeper of one process


class KeeperRig:
    """The keeper of process `name` with a table, settings and commits that the test answers."""

    def __init__(self, name: str, *events: Event, recorded: bytes | None = b"abc", own: int = 0) -> None:
        self.name, self.table = name, TableState(1)
        self.settings = {} if recorded is None else {CLUSTER_SETTING: recorded}
        self.ready, self.now = True, 0.0
        self.written: list[Event] = []
        self.commits: list[tuple[dict[str, Any], Completion[Any]]] = []
        self.levels: list[int] = []
        for event in events:
            self.table.apply(event, 0)
        me: Any = self
        self.keeper = LevelKeeper(KafkaOptions(feature_level=own), me, me, me, self.levels.append)

    def commit(self, batch: CommitBatch, deadline: float) -> Completion[Any]:
        answer: Completion[Any] = Completion()
        self.commits.append((dict(batch.settings), answer))
        return answer

    def write_event(self, event: Event) -> None:
        self.written.append(event)

    def tick(self) -> None:
        self.now += RETRY_S
        self.keeper.tick(self.now)


def test_the_level_is_recorded_before_it_rises() -> None:
    rig = KeeperRig("a", join("a"), join("b"))
    rig.tick()
    [(written, answer)] = rig.commits
    assert written == {CLUSTER_SETTING: b"abc (feature level 2)"}
    assert rig.written == []
    rig.settings[CLUSTER_SETTING] = written[CLUSTER_SETTING]
    answer.succeed([])
    rig.tick()
    assert rig.written == [LevelRaised(2, ["a", "b"])]
    rig.table.apply(rig.written[0], 0)
    rig.keeper.refresh()
    rig.tick()
    assert (rig.levels, len(rig.written), len(rig.commits)) == ([2], 1, 1)


def test_a_record_that_could_not_be_written_is_tried_again() -> None:
    rig = KeeperRig("a", join("a"))
    rig.tick()
    rig.commits[0][1].fail(RemoteError("no answer"))
    rig.tick()
    assert len(rig.commits) == 2


@pytest.mark.parametrize(
    "rig",
    [
        KeeperRig("a", join("a"), join("b", level=0)),  # a version without levels
        KeeperRig("a", join("a"), join("b", level=1)),
        KeeperRig("a", join("a"), join("b"), own=1),
        KeeperRig("b", join("a"), join("b")),  # not the oldest
        KeeperRig("a", join("a"), recorded=None),  # the start records it
    ],
)
def test_the_level_stays(rig: KeeperRig) -> None:
    rig.tick()
    assert (rig.commits, rig.written) == ([], [])


def test_a_process_without_membership_raises_the_level_of_an_empty_table() -> None:
    rig = KeeperRig("a", recorded=b"abc (feature level 2)")
    rig.tick()
    assert rig.written == [LevelRaised(2, [])]


def test_those_that_keep_the_level_low_are_named() -> None:
    rig = KeeperRig("a", join("a"), join("b", level=0), join("c", level=1))
    assert "stays at 1 until" in rig.keeper.warning
    assert rig.keeper.warning.endswith("have stopped: b:1, c:1")
    assert KeeperRig("a", join("a"), join("b")).keeper.warning == ""


def test_without_a_table_the_recorded_level_counts_and_a_new_installation_has_the_highest() -> None:
    for recorded, level in ((None, LEVEL), (b"abc", 1), (b"abc (feature level 2)", 2)):
        rig = KeeperRig("a", recorded=recorded)
        rig.table = None  # type: ignore[assignment]
        rig.ready = False
        rig.keeper.refresh()
        assert rig.levels == []
        rig.ready = True
        rig.keeper.refresh()
        assert rig.keeper.level == level


def test_a_process_that_supports_too_little_says_so() -> None:
    rig = KeeperRig("a", recorded=b"abc (feature level 9)")
    assert "feature level 9" in rig.keeper.error
    rig = KeeperRig("a")
    rig.table.apply(LevelRaised(8, []), 0)
    rig.keeper.refresh()
    assert "feature level 8" in rig.keeper.error


# --- a process of an earlier version that was suspended while the level rose


class EndRig:
    def __init__(self, name: str, *events: Event) -> None:
        self.name, self.table = name, TableState(1)
        self.heartbeat_times = 0.0, 0.0
        self.written: list[Event] = []
        for event in events:
            self.table.apply(event, 0)
        me: Any = self
        self.watch = MemberWatch(KafkaOptions(), me, lambda done, *args: done(*args), lambda: 0.0)

    def tick(self, now: float) -> bool:
        return True

    def write_event(self, event: Event) -> None:
        self.written.append(event)


def test_the_oldest_member_ends_a_process_without_levels_that_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fenced: list[list[str]] = []
    monkeypatch.setattr(watch_module, "fence_names", lambda client, names: fenced.append(names))
    story = (join("a"), join("b"), LevelRaised(2, ["a", "b"]), join("old", level=0))
    for name in ("b", "a"):
        rig = EndRig(name, *story)
        rig.watch.tick()
        rig.watch.tick()
    until(lambda: rig.written == [Died("old", "a")], "it is ended once")
    assert [next(each.rpartition(".m.")[2] for each in names) for names in fenced] == ["old"]


def test_at_level_1_it_is_a_member() -> None:
    rig = EndRig("a", join("a"), join("old", level=0))
    rig.watch.tick()
    assert rig.written == []
