"""The engines of several processes on one hub and a real broker: who owns what, and what each may write."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from backend.kafka.clients.transactions import LANES_MAX, fence_names, lane_id
from backend.kafka.clients.writing import JobFailed, OutcomeKind
from backend.kafka.coordination.events import Event, HeartbeatSent
from backend.kafka.options import KafkaOptions
from backend.kafka.records import ProducerRecord
from backend.records import NewRecord, ProgressDelta, ProgressView
from ddmq_common.clock import SystemClock
from ddmq_common.errors import FencedError
from tests.service.kafka.process_kit import ProcessKit, QueueOwner, done, options
from tests.support.waits import until

Make = Callable[..., ProcessKit]
pytestmark = pytest.mark.slow  # a real broker is started for it


@pytest.fixture
def make() -> Iterator[Make]:
    """Create the engines of processes of one installation, with the session of the first."""
    kits: list[ProcessKit] = []
    terms: list[KafkaOptions] = []

    def one(session_ms: int = 20_000) -> ProcessKit:
        if not terms:
            terms.append(options(session_ms=session_ms))
        kits.append(ProcessKit(terms[0]))
        return kits[-1].ready()

    yield one
    for kit in kits:
        kit.close()


def finish(kit: ProcessKit, number: int, epoch: int, start: int, end: int, generation: int = 0) -> None:
    delta = ProgressDelta("g", kit.queue(number), epoch, generation, ((start, end),))
    done(kit.commit(progress=[delta]))


def view(kit: ProcessKit, number: int) -> ProgressView:
    done(kit.state.catch_up())
    return kit.state.progress.view(("g", kit.queue(number)))


def test_a_clean_stop_hands_over_within_a_second(make: Make) -> None:
    first, second = make(), make()
    old, new = QueueOwner(first, address="h:1"), QueueOwner(second, address="h:2")
    until(lambda: old.numbers == [0, 1] and new.numbers == [2, 3], "shared")
    for number in (0, 1):
        finish(first, number, old.owned[first.queue(number)], 0, 7)
    began = time.monotonic()
    first.close()
    until(lambda: len(new.owned) == 4, "all at the second")
    print(f"hand-over after a clean stop: {(time.monotonic() - began) * 1000:.0f} ms")
    assert [view(second, number).committed for number in (0, 1)] == [7, 7]


def test_a_queue_that_moves_is_fenced_in_the_other_process_too(make: Make) -> None:
    first, second = make(), make()
    one = QueueOwner(first, address="h:1")
    until(lambda: len(one.owned) == 4, "all at the first")
    before = dict(one.owned)
    finish(first, 3, before[first.queue(3)], 0, 5)
    two = QueueOwner(second, address="h:2")
    until(lambda: two.numbers == [2, 3] and one.numbers == [0, 1], "shared")
    finish(second, 3, two.owned[second.queue(3)], 5, 6)
    done(first.state.catch_up())
    with pytest.raises(FencedError):
        finish(first, 3, before[first.queue(3)], 0, 100)
    assert view(first, 3).committed == view(second, 3).committed == 6
    assert first.members.holders("g", "orders") == second.members.holders("g", "orders")
    assert sorted(first.members.holders("g", "orders").values()) == ["h:1", "h:1", "h:2", "h:2"]


def test_who_does_not_let_go_loses_the_queue_only(make: Make) -> None:
    first, second = make(), make()
    lazy = QueueOwner(first, lazy=True, address="h:1")
    until(lambda: len(lazy.owned) == 4, "all at the first")
    before = dict(lazy.owned)
    other = QueueOwner(second, address="h:2")
    until(lambda: other.numbers == [2, 3], "taken from it")
    assert sorted(queue.queue_id for queue in lazy.lost_so_far) == [2, 3]
    with pytest.raises(FencedError):
        finish(first, 2, before[first.queue(2)], 0, 1)
    finish(first, 0, before[first.queue(0)], 0, 1)


def test_a_process_without_a_membership_ends_silent_processes_too(make: Make) -> None:
    silent, sender = make(3_000), make()
    owner = QueueOwner(silent, address="h:1")
    until(lambda: len(owner.owned) == 4, "held")
    until(lambda: set(sender.members.holders("g", "orders").values()) == {"h:1"}, "seen")
    silent.bridge.close()  # it hears nothing any more, and soon says nothing
    until(lambda: sender.members.holders("g", "orders") == {}, "its queues are free")


class Stalled:
    """The commits of a process do not come on: what must be quiet first is not, until `go_on`."""

    def __init__(self, kit: ProcessKit, owner: QueueOwner) -> None:
        self._kit = kit
        kit.stalled = self._waiting = list[Callable[[], None]]()
        progress = [ProgressDelta("g", queue, epoch, 0) for queue, epoch in owner.owned.items()]
        self.call = kit.commit([NewRecord("orders", 0, bytes(16), 1, b"stalled")], progress)
        until(lambda: self._waiting, "the commit is under way")

    def go_on(self) -> None:
        self._kit.stalled = None
        for then in self._waiting:
            then()


def count_heartbeats(kit: ProcessKit, process: str) -> Callable[[], int]:
    """How many heartbeats of a process another one has followed from now on."""
    count = 0
    watch, on_event = kit.process.watch, kit.process.watch.on_event

    def on_counted(event: Event) -> None:
        nonlocal count
        count += isinstance(event, HeartbeatSent) and event.process == process
        on_event(event)

    setattr(watch, "on_event", on_counted)  # noqa: B010 - mypy allows no assignment to a method
    return lambda: count


def test_a_process_with_heartbeats_is_not_declared_dead_because_its_commits_are_slow(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.kafka.coordination.watch.REVOKE_S", 0.2)
    first, second = make(), make()
    first.make_topics()
    one = QueueOwner(first, address="h:1")
    until(lambda: len(one.owned) == 4, "all at the first")
    name, stalled, followed = (
        first.commits.name,
        Stalled(first, one),
        count_heartbeats(second, first.commits.name),
    )
    two = QueueOwner(second, address="h:2")
    until(lambda: one.numbers == [0, 1], "asked back, and let go")
    until(lambda: followed() >= 6, "it is there")
    assert two.numbers == [], "the release waits for the commit before it"
    stalled.go_on()
    done(stalled.call)
    until(lambda: two.numbers == [2, 3], "handed over")
    assert (first.commits.name, one.losses, one.numbers) == (name, 0, [0, 1])


def test_who_cannot_let_go_gives_everything_up_by_itself(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.kafka.coordination.watch.REVOKE_S", 0.1)
    monkeypatch.setattr("backend.kafka.coordination.watch.RELEASE_S", 0.5)
    first, second = make(), make()
    first.make_topics()
    one = QueueOwner(first)
    until(lambda: len(one.owned) == 4, "all at the first")
    name, stalled = first.commits.name, Stalled(first, one)
    two = QueueOwner(second)
    until(lambda: one.losses == 1 and not one.owned, "it has given up")
    stalled.go_on()
    until(lambda: len(two.owned) == len(one.owned) == 2, "shared, once it is called otherwise")
    assert first.commits.name != name
    until(lambda: name not in first.members.table.processes, "nobody waits for the old one")


def test_a_setting_that_must_be_absent_is_created_by_one_process(make: Make) -> None:
    processes = [make() for _ in range(3)]
    calls = [kit.commit(settings={"k": b"%d" % n}, absent=["k"]) for n, kit in enumerate(processes * 3)]
    until(lambda: all(call.done for call in calls), "all answered")
    won = [n for n, call in enumerate(calls) if call.error is None]
    assert len(won) == 1
    assert all(isinstance(call.error, FencedError) for call in calls if call.error is not None)
    for kit in processes:
        until(lambda kit=kit: kit.state.settings.get("k") == b"%d" % won[0], "everybody sees it")


def test_a_reset_by_another_process_fences_the_owner_until_it_rereads(make: Make) -> None:
    first, second = make(), make()
    owner = QueueOwner(first)
    until(lambda: len(owner.owned) == 4, "held")
    queue, epoch = first.queue(), owner.owned[first.queue()]
    finish(first, 0, epoch, 0, 50)
    assert view(second, 0).committed == 50
    done(second.commit(progress=[ProgressDelta("g", queue, epoch, 1, reset_to=10)]))
    assert view(first, 0) == ProgressView(10, (), {}, epoch, 1)
    with pytest.raises(FencedError):
        finish(first, 0, epoch, 50, 51)
    finish(first, 0, epoch, 10, 12, generation=1)
    assert view(second, 0).committed == 12


def test_who_was_stopped_hears_that_all_is_lost_before_anything_else(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = make()
    owner = QueueOwner(kit)
    until(lambda: len(owner.owned) == 4, "held")
    stopped_for_a_minute = time.monotonic() + 60
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: stopped_for_a_minute)
    assert not kit.members.is_alive()
    assert owner.owned == {}, "in the same turn of the hub: a pull that came meanwhile is answered after it"
    assert owner.losses == 1


def fence(kit: ProcessKit) -> None:
    """As whoever declares the process dead."""
    ids = [lane_id(kit.options, kit.commits.name, lane) for lane in range(LANES_MAX)]
    assert fence_names(kit.options.client_settings(), ids) is None


def test_no_lane_of_a_fenced_process_commits_anything_any_more(make: Make) -> None:
    kit = make()
    kit.make_topics()
    lanes = kit.process.producers.lanes
    writes = [ProducerRecord(kit.options.names.to_kafka("orders"), 0, None, b"late")]
    for lane in lanes:
        assert len(lane.write_now(writes, 10.0)) == 1
    fence(kit)
    for lane in lanes:
        with pytest.raises(JobFailed) as failed:
            lane.write_now(writes, 10.0)
        assert failed.value.outcome.kind is OutcomeKind.FENCED


def test_a_fenced_process_continues_under_another_name(make: Make) -> None:
    kit = make()
    kit.make_topics()
    owner = QueueOwner(kit)
    until(lambda: len(owner.owned) == 4, "held")
    epoch, name = owner.owned[kit.queue()], kit.commits.name
    fence(kit)
    record = NewRecord("orders", 0, bytes(16), 1, b"moved")
    delta = ProgressDelta("g", kit.queue(), epoch, 0, ((0, 1),))
    with pytest.raises(FencedError):
        done(kit.commit([record], [delta]))
    assert owner.losses == 1
    until(lambda: len(owner.owned) == 4, "held again")
    assert kit.commits.name != name
    assert owner.owned[kit.queue()] > epoch
    assert view(kit, 0).committed is None
    (stored,) = done(kit.commit([record]))
    assert stored.offset >= 0


def test_what_goes_by_the_epoch_of_another_group_is_lost_with_it(make: Make) -> None:
    kit = make()
    kit.make_topics()
    owner = QueueOwner(kit)
    until(lambda: len(owner.owned) == 4, "held")
    queue, record = kit.queue(), NewRecord("orders", 0, bytes(16), 1, b"fired")
    epoch = owner.owned[queue]
    done(kit.commit([record], [ProgressDelta("fired", queue, epoch, 0, ((0, 1),))]))
    fence(kit)
    behind = kit.commit([record], [ProgressDelta("fired", queue, epoch, 0, ((1, 2),))])
    until(lambda: behind.done, "answered")
    assert isinstance(behind.error, FencedError), "it would be done again under the new name"
    until(lambda: len(owner.owned) == 4, "held again")
    new_epoch = owner.owned[queue]
    done(kit.commit([record], [ProgressDelta("fired", queue, new_epoch, 0, ((1, 2),))]))


def test_who_comes_new_starts_from_a_snapshot(make: Make) -> None:
    first = make()
    one = QueueOwner(first, address="h:1")
    until(lambda: len(one.owned) == 4, "held")
    first.members.write_snapshot()
    two = QueueOwner(first, group="other", address="h:1")
    until(lambda: len(two.owned) == 4, "held")
    second = make()
    assert second.members.holders("g", "orders") == first.members.holders("g", "orders")
    three = QueueOwner(second, address="h:2")
    until(lambda: len(three.owned) == len(one.owned) == 2, "shared")


def test_a_thousand_memberships_cost_no_thread(make: Make) -> None:
    kit = make()
    QueueOwner(kit, group="first")
    before, began = threading.active_count(), time.monotonic()
    owners = [QueueOwner(kit, group=f"g{number}") for number in range(1000)]
    until(lambda: all(len(owner.owned) == 4 for owner in owners), "all hold all")
    print(f"1,000 groups hold their queues after {time.monotonic() - began:.2f} s")
    assert threading.active_count() == before
    finish(kit, 0, 1 << 60, 0, 1)


def test_the_committed_offset_stands_as_the_kafka_group_s_own(make: Make) -> None:
    kit = make()
    kit.make_topics()
    group = kit.options.namespace
    owner = QueueOwner(kit, group=group)
    until(lambda: len(owner.owned) == 4, "held")
    kafka_group = kit.options.names.to_kafka_group(group)
    reader = Consumer({"bootstrap.servers": kit.options.bootstrap, "group.id": kafka_group})
    name = kit.options.names.to_kafka("orders")
    for end in (3, 8):
        delta = ProgressDelta(group, kit.queue(), owner.owned[kit.queue()], 0, ((0, end), (end + 2, end + 4)))
        done(kit.commit(progress=[delta]))
        until(lambda: kit.process.mirror.is_idle, "written after it")
        (committed,) = reader.committed([TopicPartition(name, 0)], 10)
        assert committed.offset == end
    reader.close()


def test_settings_reach_the_other_processes_within_a_second(make: Make) -> None:
    first, second = make(), make()
    began = time.monotonic()
    done(first.commit(settings={"group/billing": b"1", "group/audit": b"2"}))
    until(lambda: len(second.state.settings) == 2, "seen")
    print(f"a setting is seen by another process after {(time.monotonic() - began) * 1000:.0f} ms")
    assert time.monotonic() - began <= 1.0
    assert sorted(second.changed) == ["group/audit", "group/billing"]
