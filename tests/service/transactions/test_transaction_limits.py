"""What one transaction, and all open ones, may have: the same limits at each proxy and through several."""

from __future__ import annotations

import itertools
from typing import Any

import gevent
import pytest

from ddmq_client import InvalidMessageError, NotCommittedError, OutgoingMessage, Producer
from tests.service.transactions.transaction_rig import (
    COMMIT,
    COMMITTED,
    ROLLBACK,
    SHARDS,
    TransactionProxy,
    TransactionRig,
    body,
    prepare_request,
)
from tests.support.waits import until

MESSAGES_MAX, BYTES_MAX = 6, 6_300  # bytes: room for 6 bodies of 1,000 with what is around them
PROXIES = pytest.mark.parametrize("proxies", [1, 2, 3, 7])
BY = pytest.mark.parametrize("by", ["count", "bytes"])


def limited(rig: TransactionRig, proxies: int, by: str) -> list[TransactionProxy]:
    limits = {"messages_max": MESSAGES_MAX} if by == "count" else {"bytes_max": BYTES_MAX}
    return rig.serve(proxies, **limits)


def content(by: str, number: int) -> bytes:
    return b"%d" % number if by == "count" else b"%d" % (number % 10) * 1_000


@PROXIES
@BY
@pytest.mark.parametrize("together", [1, 2], ids=["single", "batch"])
def test_a_transaction_has_one_limit_through_all_proxies(
    memory: TransactionRig, proxies: int, by: str, together: int
) -> None:
    every = limited(memory, proxies, by)
    for shard in range(SHARDS):  # so each proxy is owner, and not, in turn
        transaction, through, stored = memory.new_id(shard), -1, 0
        for number, proxy in zip(range(2 * MESSAGES_MAX), itertools.cycle(every), strict=False):
            prepared = proxy.prepare(transaction, *[body(content(by, number))] * together)
            fits = (number + 1) * together <= MESSAGES_MAX
            assert prepared.code == (0 if fits else 11), (number, prepared)
            if fits:
                through, stored = max(through, prepared.throughOffset), stored + together
        answer = every[-1].end(transaction, COMMIT, throughOffset=through, messages=stored)
        assert (answer.code, answer.outcome, len(answer.results)) == (0, COMMITTED, MESSAGES_MAX)
    assert len(memory.bodies()) == SHARDS * MESSAGES_MAX
    assert memory.dead() == []


@pytest.mark.parametrize("proxies", [1, 3])
@BY
def test_prepares_at_the_same_time_do_not_pass_it_together(
    memory: TransactionRig, proxies: int, by: str
) -> None:
    every = limited(memory, proxies, by)
    transaction = memory.new_id()
    memory.memory.pause_writes()
    calls = [
        proxy.call("sendPrepared", prepare_request(transaction, body(content(by, number))))
        for number, proxy in zip(range(3 * MESSAGES_MAX), itertools.cycle(every), strict=False)
    ]
    until(lambda: sum(bool(call.answers) for call in calls) == 2 * MESSAGES_MAX, "no more are let in")
    assert {call.answer.code for call in calls if call.answers} == {15}  # the others may come to nothing
    memory.memory.resume_writes()
    until(lambda: all(call.answers for call in calls), "all are answered")
    assert [call.answer.code for call in calls].count(0) == MESSAGES_MAX
    assert every[-1].prepare(transaction, body(content(by, 0))).code == 11
    assert every[0].end(transaction, COMMIT).outcome == COMMITTED
    assert len(memory.bodies()) == MESSAGES_MAX


def in_a_thread(call: Any) -> Any:
    """Run it beside the hub that serves the proxies."""
    return gevent.get_hub().threadpool.apply(call)


@PROXIES
@BY
@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
def test_the_library_hears_of_it_before_its_own_work_is_committed(
    memory: TransactionRig, proxies: int, by: str, *, batch: bool
) -> None:
    addresses = [
        f"127.0.0.1:{proxy.server.address[1]}" for proxy in limited(memory, proxies, by) if proxy.server
    ]
    messages = [OutgoingMessage("orders", content(by, number)) for number in range(2 * MESSAGES_MAX)]
    done: list[str] = []

    def order(producer: Producer) -> None:
        with producer.transaction() as tx:
            for each in messages:
                tx.send_batch([each, each]) if batch else tx.send(each.topic, each.body)
            done.append("the application's own work")

    def work() -> None:
        with Producer(",".join(addresses), producer_group="shop") as producer:
            for _ in range(3):
                with pytest.raises(InvalidMessageError, match="the transaction would have"):
                    order(producer)
            with producer.transaction() as tx:
                tx.send_batch(messages[:MESSAGES_MAX])

    in_a_thread(work)
    assert done == []
    assert len(memory.bodies()) == MESSAGES_MAX
    assert memory.dead() == []


@pytest.mark.parametrize("proxies", [1, 2, 3])
def test_open_ones_have_one_bound_through_all_proxies(memory: TransactionRig, proxies: int) -> None:
    every = memory.serve(proxies, open_max=6)
    for shard in range(SHARDS):
        memory.proxy = every[shard % proxies]
        begun = [memory.new_id(shard) for _ in range(12)]
        rounds = itertools.cycle(every)
        groups = [b"a"] * 4 + [b"b"] * 4 + [b"c"] * 4
        before = sum(one.shard.core.by_group["bank"] for p in every for one in owned_shards(p, shard))
        codes = [
            next(rounds).prepare(one, group=group).code for one, group in zip(begun, groups, strict=True)
        ]
        assert codes[:8] == [0, 0, 0, 15, 0, 0, 0 if not before else 15, 15]
        assert codes[8:] == [15] * 4
        assert [next(rounds).prepare(begun[0], group=b"a").code for _ in every] == [0] * proxies
        assert next(rounds).end(begun[0], ROLLBACK, group=b"a").code == 0
        assert next(rounds).prepare(begun[11], group=b"a").code == 0


def owned_shards(proxy: TransactionProxy, shard: int) -> list[Any]:
    owned = proxy.proxy.transactions.find_ready_shard(shard)
    return [] if owned is None else [owned]


@pytest.mark.parametrize("proxies", [1, 3])
def test_those_that_begin_at_the_same_time_do_not_pass_it_together(
    memory: TransactionRig, proxies: int
) -> None:
    every = memory.serve(proxies, open_max=4)
    group = b"fresh"
    memory.memory.pause_writes()
    calls = [
        proxy.call("sendPrepared", prepare_request(memory.new_id(shard), body(b"x"), group=group))
        for shard in range(SHARDS)
        for _, proxy in zip(range(9), itertools.cycle(every), strict=False)
    ]
    until(lambda: sum(bool(call.answers) for call in calls) >= 7 * SHARDS, "no more are let in")
    memory.memory.resume_writes()
    until(lambda: all(call.answers for call in calls), "all are answered")
    assert [call.answer.code for call in calls].count(0) == 2 * SHARDS  # half of a shard's, for one group
    memory.tick()
    opened = [
        one.shard.core.by_group["fresh"]
        for proxy in every
        for one in proxy.proxy.transactions.list_ready_shards()
    ]
    assert sum(opened) == 2 * SHARDS


def test_what_was_rejected_or_is_not_stored_counts_for_no_limit(memory: TransactionRig) -> None:
    first, second = memory.serve(2, messages_max=2, open_max=2)
    for owner, other in ((first, second), (second, first)):
        shard = min(owner.shards)
        for _ in range(3):
            memory.memory.fail_next(OSError("odd"))
            assert other.prepare(memory.new_id(shard), body(b"x"), group=b"new").code != 0
            assert other.prepare(memory.new_id(shard), *[body(b"x")] * 3, group=b"new").code == 11
        assert other.prepare(memory.new_id(shard), *[body(b"x")] * 2, group=b"new").code == 0


def test_a_rollback_only_transaction_says_why(memory: TransactionRig) -> None:
    """Whoever goes on after a send that was refused hears of it at the commit, with nothing published."""
    (proxy,) = memory.serve(1, messages_max=2)
    assert proxy.server is not None
    address = f"127.0.0.1:{proxy.server.address[1]}"

    def work() -> str:
        with Producer(address, producer_group="shop") as producer:
            tx = producer.transaction()
            with pytest.raises(InvalidMessageError):
                tx.send_batch([OutgoingMessage("orders", "x")] * 3)
            with pytest.raises(NotCommittedError) as refused:
                tx.commit()
            return str(refused.value)

    assert "rolled back" in in_a_thread(work)
    assert memory.bodies() == []
