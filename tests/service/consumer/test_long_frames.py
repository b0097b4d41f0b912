"""What waits is short: the frames of calls that wait count as in flight, and where these are many the server
reads from nobody, for as long as they wait."""

from __future__ import annotations

import pytest

from proxy_consumer.core.held_pulls import FETCH_BYTES_MAX, PULL_BYTES_MAX
from tests.service.consumer.consumer_rig import IDL, METHODS, ConsumerRig, FakeCall
from tests.support.waits import until

PULL = METHODS["pull"].args[0](request=IDL.PullRequest(groupId=b"G", topic=b"T", maxLingerTime=30_000))
FETCH = METHODS["fetch"].args[0](
    request=IDL.FetchRequest(consumerId=b"c", groupId=b"G", cluster=b"R_default", maxLingerTime=30_000)
)


def sent(rig: ConsumerRig, method: str, size: int) -> FakeCall:
    call = FakeCall(method, PULL if method == "pull" else FETCH)
    call.frame_bytes = size
    rig.handlers[method](call)
    rig.settle()
    return call


@pytest.mark.parametrize(("method", "most"), [("pull", PULL_BYTES_MAX), ("fetch", FETCH_BYTES_MAX)])
def test_what_is_long_is_answered_at_once(method: str, most: int) -> None:
    rig = ConsumerRig().ready(0)
    assert not sent(rig, method, most).answered
    long = sent(rig, method, most + 1)
    assert long.answered
    assert long.outcome.success is not None


def test_a_long_pull_gets_the_messages_that_are_ready() -> None:
    rig = ConsumerRig().ready(3)
    delivered: list[int] = []

    def pull_all() -> bool:
        call = sent(rig, "pull", PULL_BYTES_MAX + 1)
        assert call.answered
        delivered.extend(call.offsets)
        return rig.advance(0.1) or len(delivered) == 3

    until(pull_all, "all of them are given")
    assert delivered == [0, 1, 2]
