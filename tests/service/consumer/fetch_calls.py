"""Fetches and acks over the rig of this folder, answers as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddmq_rpc.api import Wire
from tests.service.consumer.consumer_rig import IDL, METHODS, ConsumerRig, FakeCall

Offsets = Mapping[str, Mapping[int, int]]


def qid(queue: int) -> bytes:
    return f"R_default_a_{queue}".encode()


def _named(offsets: Offsets | None) -> Any:
    if offsets is None:
        return None
    return {
        topic.encode(): {qid(queue): offset for queue, offset in queues.items()}
        for topic, queues in offsets.items()
    }


def start_fetch(
    rig: ConsumerRig,
    consumer: str = "c",
    offsets: Offsets | None = None,
    count: int | None = 100,
    linger: int | None = 50,
    group: str = "G",
    wire: Wire = Wire.COMPACT,
    **extra_fields: Any,
) -> FakeCall:
    """Send a fetch."""
    request = IDL.FetchRequest(
        consumerId=consumer.encode(),
        groupId=group.encode(),
        cluster=b"R_default",
        fetchOffset=_named(offsets),
        maxBatchSize=count,
        maxLingerTime=linger,
        **extra_fields,
    )
    return rig.call("fetch", METHODS["fetch"].args[0](request=request), wire)


def fetch(rig: ConsumerRig, *args: Any, **named: Any) -> dict[tuple[str, int], Any]:
    """Send a fetch and wait for its answer, moving the clock if it waits: (topic, queue) → QidResponse."""
    return shown(finish(rig, start_fetch(rig, *args, **named)))


def finish(rig: ConsumerRig, call: FakeCall) -> FakeCall:
    rig.settle(lambda: call.answered)
    while not call.answered:
        rig.advance(0.02)
        rig.settle(lambda: call.answered)
    return call


def shown(call: FakeCall) -> dict[tuple[str, int], Any]:
    assert call.outcome.success.code is None or call.outcome.success.error is not None
    return {
        (result.topic.decode(), int(result.qid.rsplit(b"_", 1)[1])): result
        for result in call.outcome.success.results
    }


def values(result: Any) -> list[bytes]:
    return [message.value for message in result.messages]


def ack(rig: ConsumerRig, offsets: Offsets, consumer: str = "c", group: str = "G") -> bool:
    result = IDL.AckResult(
        consumerId=consumer.encode(), groupId=group.encode(), cluster=b"x", offsets=_named(offsets)
    )
    call = rig.call("ack", METHODS["ack"].args[0](result=result))
    finish(rig, call)
    return bool(call.outcome.success)
