"""A shard whose store is a cache of rows, on machines that come and go, against a dict of what is to be.

The store is lost, is an old one of another machine, or lacks what was not flushed; commits are lost with the
process that asked for them; the topic of the rows is compacted and commands are trimmed as early as is
allowed. Each message comes once and not early, and each outcome is true.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import example, given, settings
from hypothesis import strategies as st

from backend.completion import Completion
from ddmq_common.clock import ManualClock
from ddmq_common.delays.command import ALREADY_FIRED, CANCELLED
from ddmq_common.names import DELAY_TOPIC, OUTCOME_TOPIC
from delay_service.config import DelayConfig
from delay_service.core.decider import INGESTED
from tests.examples import examples
from tests.service.delay.delay_rig import DelayRig, Disks
from tests.support.compacting_memory import CompactingMemory
from tests.support.waits import done

IDS = 6
WAITS_S = st.one_of(st.integers(1, 40), st.integers(100, 900))
HOUR_S = 3_600
ACTS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, IDS - 1), WAITS_S),
    st.tuples(st.just("cancel"), st.integers(0, IDS - 1)),
    st.tuples(st.just("move"), st.integers(0, IDS - 1), WAITS_S),
    st.tuples(st.just("hold"), st.integers(0, IDS - 1)),
    st.tuples(st.just("release"), st.integers(0, IDS - 1)),
    st.tuples(st.just("advance"), st.integers(1, 30)),
    st.tuples(st.just("lose_commits")),
    st.tuples(st.just("other_machine"), st.integers(0, 2)),
    st.tuples(st.just("crash")),
    st.tuples(st.just("empty_disk")),
    st.tuples(st.just("compact")),
    st.tuples(st.just("trim")),
)


class Machines:
    """The shard, the machines that may own it, and what is to become of each message."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.memory = CompactingMemory(clock)
        self.disks = [Disks() for _ in range(3)]
        config = DelayConfig(shards=1, kept_ms=HOUR_S * 1_000)
        self.rig = DelayRig(config, self.memory, clock, self.disks[0])
        self.rig.make("orders")
        self.rig.make(OUTCOME_TOPIC)
        self._commit: Callable[..., Completion[object]] = self.memory.commit
        self.lost = False
        self.waiting: dict[int, int] = {}  # message → when it is due
        self.held: set[int] = set()  # waiting messages
        self.delivered: list[bytes] = []
        self.next = 0
        self.names: dict[int, int] = {}  # what the acts call it → which message that is now
        self.replies: dict[int, int] = {}

    def now(self) -> int:
        return self.rig.clock.wall_ms()

    def add(self, name: int, wait_s: int) -> None:
        self.next += 1
        self.names[name] = self.next
        self.waiting[self.next] = self.now() + wait_s * 1_000
        self.rig.add(self.next, self.waiting[self.next], born_ms=self.now())
        self.settle()

    def cancel(self, name: int) -> None:
        number = self.names.get(name)
        if number is None:
            return
        reply = len(self.replies) + 1
        waits = self.waiting.pop(number, None) is not None
        self.held.discard(number)
        delivered = b"%d" % number in self.delivered
        self.replies[reply] = CANCELLED if waits or not delivered else ALREADY_FIRED
        self.rig.cancel(number, born_ms=self.now(), reply_queue=0, reply_id=reply)
        self.settle()

    def move(self, name: int, wait_s: int) -> None:
        number = self.names.get(name)
        if number is not None:
            if number in self.waiting:
                self.waiting[number] = self.now() + wait_s * 1_000
            self.rig.reschedule(number, self.now() + wait_s * 1_000, born_ms=self.now())
            self.settle()

    def hold(self, name: int) -> None:
        number = self.names.get(name)
        if number is not None:
            if number in self.waiting:
                self.held.add(number)
            self.rig.hold(number, held=True, born_ms=self.now())
            self.settle()

    def release(self, name: int) -> None:
        number = self.names.get(name)
        if number is not None:
            self.held.discard(number)
            self.rig.hold(number, held=False, born_ms=self.now())
            self.settle()

    def advance(self, seconds: int) -> None:
        if self.lost:
            self.crash()  # what falls due while nobody can commit is another test's
        self.rig.advance(seconds)
        self.settle()

    def settle(self) -> None:
        if self.lost:
            end = done(self.memory.bounds([self.rig.queue(DELAY_TOPIC)]))[0].next
            store = self.rig.disks.stores[0]
            self.rig.until(
                lambda: store.meta(INGESTED) == b"%d" % end or self.rig.alarms.ring(), "the store has it"
            )
            return
        self.rig.settle()
        self.rig.ring()
        now, held = self.now(), self.held
        due = [number for number, due_ms in self.waiting.items() if due_ms <= now and number not in held]
        for number in due:
            del self.waiting[number]
        before, self.delivered = len(self.delivered), self.rig.bodies()
        assert sorted(self.delivered[before:]) == sorted(b"%d" % number for number in due)

    # --- what happens to machines

    def lose_commits(self) -> None:
        """From here on nothing that the process asks for is done, nor answered."""
        self.lost = True
        self.memory.commit = lambda batch, deadline: Completion()  # type: ignore[method-assign]

    def other_machine(self, number: int) -> None:
        self.start(self.disks[number])

    def crash(self) -> None:
        self.rig.service.close()
        self.rig.disks.crash()
        self.start(self.rig.disks)

    def empty_disk(self) -> None:
        self.rig.service.close()
        self.rig.disks.stores.clear()
        self.start(self.rig.disks)

    def start(self, disks: Disks) -> None:
        self.rig.service.close()
        self.lost, self.rig.disks = False, disks
        self.memory.commit = self._commit  # type: ignore[method-assign,assignment]
        self.rig.start()
        self.settle()

    def compact(self) -> None:
        self.memory.compact()

    def trim(self) -> None:
        """Twice, a minute between: what was noted at the first holds at the second."""
        if not self.lost:
            for _ in range(2):
                for shard in self.rig.service.shards.values():
                    shard.trim_log()
                self.advance(60)

    def end(self) -> None:
        """All that waits comes, on a machine that has nothing; everybody was told the truth."""
        self.empty_disk()
        for number in list(self.held):
            self.held.discard(number)
            self.rig.hold(number, held=False, born_ms=self.now())
        self.settle()
        self.rig.advance(1_000)
        self.settle()
        self.empty_disk()
        assert not self.waiting
        codes = {one.reply_id: one.code for one in self.rig.outcomes()}
        assert codes == self.replies


@example([("add", 0, 5), ("hold", 0), ("advance", 20), ("empty_disk",), ("cancel", 0), ("empty_disk",)])
@example([("add", 0, 5), ("hold", 0), ("trim",), ("other_machine", 1), ("advance", 20), ("release", 0)])
@example([("add", 0, 600), ("trim",), ("lose_commits",), ("cancel", 0), ("other_machine", 0)])
@given(st.lists(ACTS, max_size=30))
@settings(max_examples=examples(60), deadline=None)
def test_machines_come_and_go_and_each_message_comes_once(acts: list[tuple[str, int]]) -> None:
    machines = Machines()
    try:
        for verb, *words in acts:
            getattr(machines, verb)(*words)
        machines.end()
    finally:
        machines.memory.commit = machines._commit  # type: ignore[method-assign,assignment]
        machines.rig.close()
