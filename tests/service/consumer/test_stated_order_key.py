"""The order key that a pull states: the subscription that it makes has it, and another one is rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddmq_rpc.api import Wire
from tests.service.consumer.consumer_rig import FIRST, ConsumerRig, FakeCall

WIRES = pytest.mark.parametrize("wire", list(Wire))


def pull(rig: ConsumerRig, order_key: str, **stated: object) -> FakeCall:
    call = rig.start_pull(clientId=b"one", orderKey=order_key.encode(), **stated)  # type: ignore[arg-type]
    rig.settle()
    return call


def rejection(call: FakeCall) -> tuple[int, str, str]:
    error = call.outcome.error
    return error.code, error.option.decode(), error.message.decode()


@pytest.mark.parametrize("order_key", ["KEY", "QID", "$.order.id"])
def test_the_first_pull_makes_the_subscription_with_it(rig: ConsumerRig, order_key: str) -> None:
    rig.topic()
    assert not pull(rig, order_key).answered
    assert rig.subscription().config.order_key == order_key


def test_together_with_a_start_and_a_filter(rig: ConsumerRig) -> None:
    rig.topic()
    rig.send(2)
    call = pull(rig, "KEY", start=b"first", filterType=b"TAG", filter=b"*")
    assert call.answered
    config = rig.subscription().config
    assert (config.order_key, config.start, config.tags) == ("KEY", "first", "*")


@WIRES
@pytest.mark.parametrize(
    ("existing", "words"),
    [("QID", "the subscription has order key QID"), ("", "the subscription has no order key")],
)
def test_an_existing_subscription_with_another_one_rejects_the_pull_and_names_both(
    rig: ConsumerRig, wire: Wire, existing: str, words: str
) -> None:
    rig.ready(config=replace(FIRST, order_key=existing))
    code, option, text = rejection(pull(rig, "KEY", wire=wire))
    assert (code, option) == (11, "orderKey")
    assert text == (
        f"topic T: the pull states order key KEY, {words}; state the same, or change the subscription"
    )
    assert rig.subscription().config.order_key == existing
    (difference,) = rig.service.differences("G")
    assert difference.what == f"the pull states order key KEY, {words}"


def test_the_same_one_or_none_is_served(rig: ConsumerRig) -> None:
    rig.ready(1, config=replace(FIRST, order_key="KEY"))
    assert pull(rig, "KEY").values == [b"m0"]
    assert not rig.start_pull(clientId=b"two").answered
    assert rig.service.differences("G") == []


def test_a_pull_of_all_topics_is_compared_with_each(rig: ConsumerRig) -> None:
    rig.ready(config=replace(FIRST, order_key="KEY"))
    rig.topic("U")
    rig.subscribe(topic="U")
    assert "topic U: the pull states order key KEY" in rejection(pull(rig, "KEY", topic=None))[2]


@pytest.mark.parametrize("order_key", ["$.[", "$.a b"])
def test_an_invalid_order_key_creates_nothing(rig: ConsumerRig, order_key: str) -> None:
    rig.topic()
    code, option, text = rejection(pull(rig, order_key))
    assert (code, option) == (11, "orderKey")
    assert f"order_key is {order_key!r}" in text
    assert b"G" not in rig.directory.groups


def test_a_long_one_is_not_even_compared(rig: ConsumerRig) -> None:
    rig.ready()
    call = pull(rig, "$." + "a" * 4_095)
    assert call.outcome.error.message == b"orderKey has 4097 bytes; allowed: at most 4096"
    assert rig.service.differences("G") == []


def test_a_rejected_filter_says_that_it_was_the_filter(rig: ConsumerRig) -> None:
    rig.ready(config=replace(FIRST, tags="a"))
    call = rig.start_pull(clientId=b"one", filterType=b"TAG", filter=b"b")
    assert rejection(call)[1] == "filter"
