"""`on_dead_letter: park` through a whole proxy: a head that has used up its deliveries holds its key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backend.records import CommitBatch
from ddmq.server.admin import keys
from ddmq_common.metrics import catalogue
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.subscription.parked_heads import HEADS_MAX, exhausted_key
from tests.service.consumer.consumer_rig import ConsumerRig
from tests.service.consumer.test_consumer_metrics import value
from tests.service.consumer.test_order_keys_served import BY_KEY, bodies, result

PARKING = replace(BY_KEY, on_dead_letter="park", ordered_deliveries_max=2, ack_timeout_ms=10_000)


@pytest.fixture
def shop(rig: ConsumerRig) -> ConsumerRig:
    """Key a with three messages, key b with one; the head of a has failed as often as it may."""
    rig.ready(config=PARKING, queues=2)
    rig.keyed("a1", "a2")
    rig.keyed("a3", queue=1)
    use_up(rig)
    rig.keyed("b1")
    return rig


def use_up(rig: ConsumerRig) -> None:
    for _ in range(2):
        call = rig.pull(count=1)
        assert bodies(call) == [b"a1"]
        rig.submit(result(call, ack=False, reason="no such customer"))
        rig.advance(0.2)


def finished(rig: ConsumerRig) -> list[bytes]:
    """What comes to a client that acknowledges everything, in order."""
    delivered: list[bytes] = []
    while got := bodies(call := rig.pull()):
        delivered += got
        rig.submit(result(call))
    return delivered


def act(rig: ConsumerRig, action: str, key: str) -> None:
    keys.act_on_key(rig.service, "G", action, key)


def parked(rig: ConsumerRig) -> list[dict[str, Any]]:
    return [row for row in keys.list_blocked_keys(rig.service, "G", 20) if row["state"] == "parked"]


def test_a_parked_head_stays_parked_over_a_restart(shop: ConsumerRig) -> None:
    """With its error, and as old as it is; also where nothing was pulled for so long that it left."""
    since_ms = parked(shop)[0]["since_ms"]
    for leave in (shop.restart, shop.restart, lambda: shop.advance(100)):
        leave()
        assert finished(shop) in ([b"b1"], [])
        (row,) = parked(shop)
        assert (row["key"], row["attempts"], row["reason"]) == ('"a"', 2, "failed")
        assert (row["error"], row["since_ms"]) == ("no such customer", pytest.approx(since_ms, abs=5))
        assert value(shop, catalogue.BLOCKED_KEY_AGE) >= shop.clock.wall_ms() - since_ms - 5
    assert shop.counted("ddmq_dead_letters_total") == 0


def test_only_the_last_errors_of_many_parked_heads_survive(rig: ConsumerRig) -> None:
    rig.ready(config=replace(PARKING, ordered_deliveries_max=1))
    for number in range(HEADS_MAX + 20):
        rig.put_keyed(f"k{number:03}", "x")
        rig.advance(0.1)
        rig.submit(result(rig.pull(), ack=False, reason=f"no {number:03}"))
    rig.restart()
    assert rig.pull().result.messages == []
    rows = keys.list_blocked_keys(rig.service, "G", 1_000)
    assert len(rows) == HEADS_MAX + 20
    errors = sorted(row["error"] for row in rows if row["error"])
    assert errors == [f"no {number:03}" for number in range(20, HEADS_MAX + 20)]


def test_an_unreadable_record_of_a_parked_head_costs_only_the_error(shop: ConsumerRig) -> None:
    key = exhausted_key("G", shop.ref())
    assert shop.backend.setting(key) is not None
    for text in (b"", b"{", b'{"incarnation": "x"}', b'{"incarnation": 9, "generation": 9, "heads": {}}'):
        shop.wait(shop.backend.commit(CommitBatch(settings={key: text}), shop.deadline()))
        shop.restart()
        shop.pull()
        assert [(row["state"], row["error"]) for row in parked(shop)] == [("parked", "")]


def test_a_message_that_a_client_skips_is_a_dead_letter(rig: ConsumerRig) -> None:
    """The application says that this message is not to be done: the key goes on, as after a skip."""
    rig.ready(config=PARKING)
    rig.keyed("a1", "a2")
    call = rig.pull(clientId=b"me")
    state = rig.subscription().buffer.queues[rig.ref()]
    assert state.give_up(call.offsets[0], None, "we do not sell that")
    rig.subscription().after_results([state])
    rig.settle()
    assert rig.counted("ddmq_dead_letters_total", reason="given-up") == 1
    assert bodies(rig.pull()) == [b"a2"]


def test_a_push_that_fails_for_good_parks_its_key(rig: ConsumerRig) -> None:
    """Nobody has decided that the key may go on without it; that is as durable as used-up attempts."""
    rig.ready(config=PARKING)
    rig.keyed("a1", "a2")
    call = rig.pull()
    state = rig.subscription().buffer.queues[rig.ref()]
    assert state.give_up(call.offsets[0], None, "status 400", parks=True)
    rig.subscription().after_results([state])
    rig.subscription().flush()
    for _ in range(2):
        rig.settle()
        assert rig.pull().result.messages == []
        (row,) = parked(rig)
        assert (row["reason"], row["error"], row["attempts"]) == ("given-up", "status 400", 1)
        rig.restart()
    assert rig.pull().result.messages == []
    act(rig, "replay", "a")
    rig.restart()
    assert bodies(rig.pull()) == [b"a1"]


def test_keys_of_parked_heads_are_counted(shop: ConsumerRig) -> None:
    assert finished(shop) == [b"b1"]
    assert (value(shop, catalogue.PARKED_KEYS), value(shop, catalogue.BLOCKED_KEYS)) == (1, 1)
    act(shop, "replay", "a")
    finished(shop)
    assert (value(shop, catalogue.PARKED_KEYS), value(shop, catalogue.BLOCKED_KEYS)) == (0, 0)


def test_parking_without_an_order_key_is_rejected() -> None:
    with pytest.raises(ValueError, match="on_dead_letter is park and order_key is blank"):
        SubscriptionDefaults(on_dead_letter="park")
