"""Processor time by address: the scheduler alone, with a clock that the work itself moves."""

from __future__ import annotations

from collections import deque
from statistics import median

import pytest

from ddmq_rpc.addresses import address_of
from ddmq_rpc.time_slices import (
    COSTLY_S,
    GIVE_WAY_S,
    NOT_MEASURED,
    REST_FACTOR,
    SLICE_S,
    AddressShare,
    Shared,
    TimeSlices,
)

LOOP_S = 20e-6  # a round of the loop in which nothing happens


class Loop:
    """The rounds of an event loop on one core: everybody who has a request is readable in every round."""

    def __init__(self) -> None:
        self.now = 0.0
        self.armed_at: float | None = None
        self.rested = 0
        self.slowed = 1.0  # by other processes on the core
        self.slices = TimeSlices(lambda: self.now, self._arm, self._count)
        self.members: list[Connection] = []

    def _arm(self, seconds: float) -> None:
        self.armed_at = self.now + seconds

    def _count(self) -> None:
        self.rested += 1

    def connect(
        self, address: str, cost_s: float, size: int = 100, every_s: float = 0.0, rounds: int = 0
    ) -> Connection:
        connection = Connection(self, address, cost_s, size, every_s, rounds)
        self.members.append(connection)
        return connection

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += LOOP_S
            if self.armed_at is not None and self.armed_at <= self.now:
                self.armed_at = None
                self.slices.run_round()
            for member in self.members:
                member.readable()


class Connection:
    """Asks for `cost_s` again and again: at once after each answer, or every `every_s`.

    `rounds` of the loop have to go by before the answer: that often another thread needs the interpreter.
    """

    def __init__(
        self, loop: Loop, address: str, cost_s: float, size: int, every_s: float, rounds: int
    ) -> None:
        self.loop = loop
        self.cost_s, self.size, self.every_s = cost_s, size, every_s
        self.rounds, self.missing = rounds, 0
        self.called_at = NOT_MEASURED
        self.busy = 0
        self.served = 0
        self.waits: deque[float] = deque()
        self.next_at = 0.0
        self.closed = False
        self.share: AddressShare = loop.slices.join(address, self)

    def readable(self) -> None:
        if self.missing:
            self.missing -= 1
            if not self.missing:
                self.answer()
        elif self.busy or self.next_at > self.loop.now:
            pass
        elif self.share.exhausted:
            self.busy = 1
            self.loop.slices.wait(self.share, self)
        else:
            self.work()

    def resume_work(self) -> None:
        self.busy = 0
        self.work()

    def work(self) -> None:
        slices, share = self.loop.slices, self.share
        slices.begin_event(share, self.loop.now)
        slices.bytes = self.size
        measured = bool(share.suspect)
        share.suspect -= measured
        took = self.cost_s * self.loop.slowed
        self.loop.now += took
        share.used += took
        self.served += 1
        self.called_at = slices.record_call(share, self)
        self.missing = self.rounds
        if not self.missing:
            self.answer()
        if share.used > SLICE_S:
            slices.end_slice(share, took, self.cost_s if measured else NOT_MEASURED)

    def answer(self) -> None:
        if self.called_at != NOT_MEASURED:
            self.loop.slices.record_answer(self.share, self, self.called_at)
        self.waits.append(self.loop.now - self.next_at)
        self.next_at = self.next_at + self.every_s if self.every_s else self.loop.now

    def close(self) -> None:
        self.closed = True


WORST = {  # processor seconds and bytes of one request
    "empty properties": (0.005, 48_000),
    "a cron without a time": (0.003, 81),
    "megabytes of tiny lists": (0.050, 0),  # does not decode: its bytes explain nothing
    "honest sends": (0.00005, 200),
}


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.mark.parametrize("slowed", [1.0, 5.0])
@pytest.mark.parametrize("what", WORST)
def test_sixty_four_connections_of_one_address_cost_another_little(
    loop: Loop, what: str, slowed: float
) -> None:
    """The honest one asks 100 times a second; its median is at most twice what it has alone, also where the
    server has a fifth of its core."""
    loop.slowed = slowed
    honest = loop.connect("10.0.0.1", 0.0002, every_s=0.01)
    loop.run(1.0)
    alone = median(honest.waits)
    honest.waits.clear()
    for _ in range(64):
        loop.connect("10.0.0.2", *WORST[what])
    loop.run(1.5)
    assert len(honest.waits) > 125
    assert median(honest.waits) <= 2 * max(alone, 0.001)


@pytest.mark.slow
@pytest.mark.parametrize("what", [*WORST, "just not costly"])
def test_an_answer_that_takes_rounds_of_the_loop_is_given_way_to(loop: Loop, what: str) -> None:
    """A send waits for the thread that writes: each time that needs the interpreter a slice could go by."""
    honest = loop.connect("10.0.0.1", 0.0001, every_s=0.01, rounds=10)
    loop.run(1.0)
    alone = median(honest.waits)
    for _ in range(64):
        loop.connect("10.0.0.2", *WORST.get(what, (0.0007, 48_000)))
    loop.run(0.5)
    honest.waits.clear()
    loop.run(1.5)
    assert len(honest.waits) > 125
    assert median(honest.waits) <= 2 * max(alone, 0.0005)


def test_nobody_gives_way_to_calls_that_are_held(loop: Loop) -> None:
    """Pulls that wait for messages, 20 ms and longer, cost a busy address nothing."""
    for number in range(5):
        loop.connect(f"10.0.1.{number}", 0.00005, every_s=0.05, rounds=1_200)
    busy = [loop.connect("10.0.0.2", 0.0001) for _ in range(16)]
    loop.run(1.0)
    before = sum(each.served for each in busy)
    loop.run(4.0)
    assert (sum(each.served for each in busy) - before) * 0.0001 > 0.85 * 4.0


def test_busy_addresses_do_not_give_way_to_each_other(loop: Loop) -> None:
    all_of_them = [loop.connect(f"10.0.1.{number % 4}", 0.0001, rounds=3) for number in range(64)]
    loop.run(2.0)
    assert sum(each.served for each in all_of_them) * 0.0001 > 0.85 * 2.0


def test_who_gave_way_goes_on_at_the_latest_after_its_time(loop: Loop) -> None:
    """An answer that never comes holds nobody up for longer than GIVE_WAY_S."""
    loop.connect("10.0.0.1", 0.0001, rounds=1_000_000)
    busy = [loop.connect("10.0.0.2", 0.0001) for _ in range(16)]
    loop.run(1.0)
    assert sum(each.served for each in busy) * 0.0001 > 1.0 - GIVE_WAY_S - 0.15


def test_clients_of_another_server_on_the_loop_count_as_others() -> None:
    shared, armed = Shared(), list[float]()
    sides = [TimeSlices(lambda: 1.0, armed.append, lambda: None, shared) for _ in range(2)]
    one = Loop().connect("10.0.0.1", 0.0)
    share = sides[0].join("10.0.0.1", one)
    sides[0].end_slice(share, SLICE_S, NOT_MEASURED)
    assert not share.exhausted
    sides[1].join("10.0.0.2", Loop().connect("10.0.0.2", 0.0))
    sides[0].end_slice(share, SLICE_S, NOT_MEASURED)
    assert share.exhausted
    sides[0].close()
    assert shared.slices == [sides[1]]


@pytest.mark.slow
def test_costly_requests_take_a_part_of_the_core_while_others_are_about(loop: Loop) -> None:
    loop.connect("10.0.0.1", 0.0001, every_s=0.05)
    hostile = [loop.connect("10.0.0.2", 0.005) for _ in range(8)]
    loop.run(10.0)
    spent = sum(each.served for each in hostile) * 0.005
    assert spent / 10.0 == pytest.approx(1 / (1 + REST_FACTOR), rel=0.1)
    assert loop.rested > 100


def test_alone_an_address_has_all_of_the_core(loop: Loop) -> None:
    only = [loop.connect("10.0.0.2", 0.005) for _ in range(8)]
    loop.run(10.0)
    assert sum(each.served for each in only) * 0.005 == pytest.approx(10.0, rel=0.05)
    assert loop.rested == 0


def test_cheap_requests_have_what_others_leave(loop: Loop) -> None:
    """Fair turns cost nobody throughput: a busy address beside a quiet one loses only what that one takes."""
    loop.connect("10.0.0.1", 0.0001, every_s=0.01)
    busy = [loop.connect("10.0.0.2", 0.0001) for _ in range(16)]
    loop.run(5.0)
    assert sum(each.served for each in busy) * 0.0001 > 0.9 * 5.0


@pytest.mark.parametrize("cost_s", [0.0001, COSTLY_S * 5])
def test_connections_of_one_address_have_equal_turns(loop: Loop, cost_s: float) -> None:
    loop.connect("10.0.0.1", 0.0001, every_s=0.05)
    one = [loop.connect("10.0.0.2", cost_s) for _ in range(10)]
    loop.run(10.0)
    counts = [each.served for each in one]
    assert max(counts) - min(counts) <= 2


def test_busy_addresses_have_equal_parts(loop: Loop) -> None:
    few = [loop.connect("10.0.0.1", 0.0001) for _ in range(12)]
    many = [loop.connect("10.0.0.2", 0.0001) for _ in range(64)]
    loop.run(2.0)
    shares = [sum(each.served for each in side) for side in (few, many)]
    assert shares[0] == pytest.approx(shares[1], rel=0.1)


def test_long_requests_that_their_bytes_explain_do_not_rest(loop: Loop) -> None:
    loop.connect("10.0.0.1", 0.0001, every_s=0.05)
    loop.connect("10.0.0.2", 0.005, size=1_000_000)
    loop.run(5.0)
    assert loop.rested == 0


@pytest.mark.slow
def test_time_that_another_process_used_makes_no_address_rest(loop: Loop) -> None:
    """A request that looks long once is measured the next times, and found cheap."""
    loop.connect("10.0.0.1", 0.0001, every_s=0.01)
    other = loop.connect("10.0.0.2", 0.0001, every_s=0.01)
    for _ in range(20):
        other.cost_s = 0.02
        loop.run(0.01)
        other.cost_s, other.share.suspect = 0.0001, 0
        loop.run(0.5)
    assert loop.rested == 0


def test_a_rest_is_bounded_by_the_processor_time(loop: Loop) -> None:
    """The server had no core for half a second while it worked on a request that is just costly."""
    loop.connect("10.0.0.1", 0.0001)
    other = loop.connect("10.0.0.2", COSTLY_S * 1.1)
    loop.slices.begin_event(other.share, loop.now)
    loop.now += 0.5
    loop.slices.end_slice(other.share, 0.5, COSTLY_S * 1.1)
    assert loop.rested == 1
    assert 0.0 < other.share.rest_until - loop.now < 0.1


def test_what_has_left_is_forgotten(loop: Loop) -> None:
    loop.connect("10.0.0.1", 0.0001, every_s=0.01)
    closed = [loop.connect(f"10.0.1.{number}", 0.01) for number in range(100)]
    loop.run(1.0)
    for each in closed:
        loop.members.remove(each)
        each.share.waiting.clear()
        loop.slices.leave(each.share, each)
    loop.run(5.0)
    assert list(loop.slices.shares) == ["10.0.0.1"]


def test_who_gives_way(loop: Loop) -> None:
    slices = loop.slices
    first = loop.connect("10.0.0.1", 0.0)
    silent = [loop.connect("10.0.0.2", 0.0) for _ in range(3)]
    assert slices.least_missed("10.0.0.3") is silent[0]
    first.share.silent.clear()
    newcomer = loop.connect("10.0.0.3", 0.0)
    silent[0].share.silent.clear()
    assert slices.least_missed("10.0.0.2") is None  # has more connections than the silent newcomer's address
    assert slices.least_missed("10.0.0.3") is newcomer
    loop.slices.leave(newcomer.share, newcomer)
    assert slices.least_missed("10.0.0.3") is silent[0]
    silent[0].busy = 1
    assert slices.least_missed("10.0.0.3") is silent[1]
    assert slices.least_missed("10.0.0.2") is None
    for each in silent:
        each.busy = 1
    assert slices.least_missed("10.0.0.3") is None


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_who_shares_as_one(host: str, address: str) -> None:
    assert address_of(host) == address
