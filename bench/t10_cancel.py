"""T10: cancel with its outcome among 10 million pending: sendDelaySync of a cancel that waits for the truth.

Any of them, without order, each once; one call after another, and eight at a time. Every answer must say
"cancelled", and exactly so many fewer are pending in the end.
"""

from __future__ import annotations

import json
import time
from functools import partial

from bench import frames, load
from bench.delay_orders import SPREAD, delay_id_of, due_of
from bench.delay_rig import PENDING, STATE_FILE, Rig, pending, rig
from bench.harness import CLIENT_CORE, Series, percentiles, pin, run, sized
from ddmq_common.delivery import zigzag

CALLS = sized(2_000, 100)
REACH = "p99 ≤ 5 ms"
CANCELLED = b"\x05" + zigzag(100) + zigzag(2)  # field 100 of the answer


def cancel(delay_id: bytes, timeout_ms: int = 5_000) -> bytes:
    """sendDelaySync of a cancel by a caller of ours."""
    message = (
        b"\x28" + frames.text(delay_id) + b"\x35" + zigzag(2)
        + b"\x08" + zigzag(100) + frames.text(b"bench") + b"\x00"
    )  # fmt: skip
    return frames.call("sendDelaySync", b"\x1c" + message + b"\x16" + zigzag(timeout_ms) + b"\x00")


def some(one: Rig, count: int) -> list[bytes]:
    """Ids of so many that are still pending, from all over."""
    path = one.data.parent / STATE_FILE
    state = json.loads(path.read_text())
    used, due_ms, due_range_ms = state.get("cancelled", 0), state["due_ms"], state["span_ms"]
    if used + count > PENDING:
        raise SystemExit(f"{used} of {PENDING} pending messages were cancelled: delete {path.parent}")
    path.write_text(json.dumps(state | {"cancelled": used + count}))
    numbers = [index * SPREAD % PENDING for index in range(used, used + count)]
    return [delay_id_of(number, due_of(number, due_ms, due_range_ms)) for number in numbers]


def cancelled(one: Rig, connections: int, calls: int = CALLS) -> list[float]:
    """Cancel so many; seconds that each took. Raises when one was not cancelled."""
    ids = iter(some(one, calls))
    before = pending(one.service)

    def next_frame(_: int, reply: bytes | None) -> bytes | None:
        if reply is not None and CANCELLED not in reply:
            raise AssertionError(f"not cancelled: {reply!r}")
        delay_id = next(ids, None)
        return None if delay_id is None else cancel(delay_id)

    sockets = load.connect(one.server.addresses["producer"], connections)
    latencies = load.closed_loop(sockets, next_frame)
    for socket in sockets:
        socket.close()
    cancelled_count = before - pending(one.service)
    if cancelled_count != calls:
        raise AssertionError(f"{calls} told cancelled, {cancelled_count} fewer are pending")
    return latencies


def measure(one: Rig, connections: int) -> dict[str, float]:
    began = time.perf_counter()
    latencies = cancelled(one, connections)
    seconds = time.perf_counter() - began
    return percentiles(latencies) | {"max_ms": max(latencies) * 1e3, "per_s": CALLS / seconds}


def main() -> None:
    pin(CLIENT_CORE)
    with rig() as one:
        every = [
            Series("one at a time", partial(measure, one, 1), reach=REACH),
            Series("eight at a time", partial(measure, one, 8), reach=REACH),
        ]
        run("t10_cancel", __doc__ or "", every, calls=CALLS, **one.facts)


if __name__ == "__main__":
    main()
