"""T8: a storm: 100,000 (1 KiB), then 1,000,000 (128 B) due in the same millisecond; another topic meanwhile.

`seconds`: from the due time until the last of them is delivered to a waiting client. `other`: lateness of a
topic with 1,000 due a second, from the storm's due time to its end. 10 million more are pending. Floor:
sendBatchSync of as many such messages to the same server, 100 a call, on 8 connections.
"""

from __future__ import annotations

import time
from functools import partial

from bench import delay_orders, frames, load
from bench.delay_rig import Receiver, Rig, rig, stored_ahead
from bench.harness import CLIENT_CORE, Series, percentiles, pin, run, sized

STORM, GREAT_STORM = sized(100_000, 2_000), sized(1_000_000, 4_000)
BODY, GREAT_BODY = 1024, 128
OTHER_PER_S = 1_000
PREPARED_PER_S = 8_000  # the slowest taking in that the due time leaves room for
LEAD_S = 5.0
BATCH, CONNECTIONS = 100, 8
LASTS_S = {STORM: sized(3.0, 0.5), GREAT_STORM: sized(20.0, 0.6)}  # of the other topic's messages
REACH = {STORM: "≤ 1 s; other p99 ≤ 50 ms", GREAT_STORM: "≤ 10 s; other p99 ≤ 50 ms"}


def floor(one: Rig, count: int, body: int) -> dict[str, float]:
    """Seconds for as many appends as fast as the server takes them."""
    topic = one.topic("batch")
    batch = frames.send_batch_sync([frames.producer_message(topic, b"", bytes(body), 0)] * BATCH)
    connections = load.connect(one.server.addresses["producer"], CONNECTIONS)
    began = time.perf_counter()
    load.closed_loop(connections, load.answered_ok([batch] * CONNECTIONS, count // BATCH))
    seconds = time.perf_counter() - began
    for connection in connections:
        connection.close()
    return {"seconds": seconds, "per_s": count / seconds}


def measure(one: Rig, count: int, body: int) -> dict[str, float]:
    lasts_s = LASTS_S[count]
    others = int(OTHER_PER_S * lasts_s)

    def put(due_s: float) -> tuple[bytes, bytes]:
        storm, other = one.topic("storm"), one.topic("other")
        first, due_ms = one.numbers(count + others), int(due_s * 1e3)
        delay_orders.add(one.data, other.decode(), first, others, body, due_ms, int(lasts_s * 1e3))
        delay_orders.add(one.data, storm.decode(), first + others, count, body, due_ms)
        return storm, other

    lead_s = LEAD_S + (count + others) / PREPARED_PER_S
    (storm, other), due_s = stored_ahead(one.service, lead_s, count + others, put)
    due_ms = int(due_s * 1e3)
    receiver = Receiver(one.server, {storm: count, other: others})
    spent = one.service.cpu_seconds()
    receiver.run(due_ms / 1e3 + lasts_s)
    spent = one.service.cpu_seconds() - spent
    seconds = receiver.last_at[storm] - due_ms / 1e3
    meanwhile = [late for due, late in receiver.by_due(other) if due <= receiver.last_at[storm]]
    figures = {"seconds": seconds, "per_s": count / seconds, "service_cpu_us": spent / (count + others) * 1e6}
    return figures | {f"other_{name}": value for name, value in percentiles(meanwhile).items()}


def main() -> None:
    pin(CLIENT_CORE)
    every = []
    with rig() as one:
        for count, body in ((STORM, BODY), (GREAT_STORM, GREAT_BODY)):
            below = f"{count:,} appended, {body} B"
            every += [
                Series(below, partial(floor, one, count, body)),
                Series(f"{count:,} due, {body} B", partial(measure, one, count, body), below, REACH[count]),
            ]
        run("t08_delay_storm", __doc__ or "", every, other_per_s=OTHER_PER_S, **one.facts)


if __name__ == "__main__":
    main()
