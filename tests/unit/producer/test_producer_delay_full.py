"""Topics at their bound of waiting delayed messages: what is rejected with code 15, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from backend.records import CommitBatch
from ddmq_common.delays.command import encode_full
from ddmq_common.names import DELAY_FULL_PREFIX
from proxy_producer.config import DelayLimits
from tests.support.waits import until
from tests.unit.producer.producer_delay_rig import ProducerDelayRig
from tests.unit.producer.producer_rig import delay_message

UUID = "a4207970-e5e1-11f1-a4e0-02fc00000001"
ID = b"1700000060-2-1700172860-0-0-0-3-" + UUID.encode()


@pytest.fixture
def rig() -> ProducerDelayRig:
    return ProducerDelayRig(delay=DelayLimits(dialects={"orders": ("rabbit",)}))


def set_full_topics(rig: ProducerDelayRig, shard: int, value: bytes | None) -> None:
    batch = CommitBatch(settings={f"{DELAY_FULL_PREFIX}{shard}": value})
    rig.backend.commit(batch, rig.clock.monotonic() + 10).wait(10)


def send_delay(rig: ProducerDelayRig, **fields: object) -> Any:
    return rig.call("sendDelaySync", delayMessage=delay_message(**fields), timeout=500)


@pytest.mark.parametrize("extended", [False, True])
def test_a_full_topic_takes_no_delayed_message_until_it_is_free(
    rig: ProducerDelayRig, extended: bool
) -> None:
    more = {"clientId": b"me"} if extended else {}
    set_full_topics(rig, 3, encode_full(["mails", "orders"]))
    call = send_delay(rig, **more)
    assert call.answer.code == 15
    assert "as many delayed messages waiting as it may" in call.answer.msg
    assert rig.backend.sent == []
    set_full_topics(rig, 3, None)
    send_delay(rig, **more)
    assert rig.command().topic == "orders"


def test_plain_sends_and_changes_go_on(rig: ProducerDelayRig) -> None:
    set_full_topics(rig, 0, encode_full(["orders"]))
    assert rig.send(properties={b"x-delay": b"5000"}).answer.code == 15, "in the words of others"
    rig.send()
    assert rig.records()[0].topic == "orders"
    send_delay(rig, action=2, timestamp=None, dmsgtype=None, uuid=None, uniqDelayMsgId=ID)
    until(lambda: len(rig.backend.sent) == 2)
    assert rig.command(1).op == "cancel"


def test_what_does_not_parse_fills_nothing(rig: ProducerDelayRig) -> None:
    set_full_topics(rig, 1, b"{")
    set_full_topics(rig, 2, b'{"a": 1}')
    send_delay(rig)
    assert rig.command().topic == "orders"
