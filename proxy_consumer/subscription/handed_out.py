"""What is counted when messages go out to a client: how long the oldest had waited, and repeats.

Once per answer, never per message. Only first deliveries have a queue wait; what comes from the group's
retry topic was handed out before, so all of it is redelivered.
"""

from __future__ import annotations

from proxy_consumer.core.steps import Delivery
from proxy_consumer.core.tally import Counter, Observer


class HandedOut:
    """The cells of one subscription. `wait`: µs from stored to handed out."""

    __slots__ = ("_redelivered", "_wait")

    def __init__(self, wait: Observer, redelivered: Counter) -> None:
        self._wait = wait
        self._redelivered = redelivered

    def note(self, delivery: Delivery, wall_ms: int) -> None:
        """Messages were handed out at `wall_ms` of the wall clock."""
        state, messages = delivery.state, delivery.messages
        if state.retry_queue:
            self._redelivered.value += len(messages.offsets)
            return
        at = 0 if not delivery.redelivered else _first_time(delivery)
        if at is None:
            return
        stored_ms = messages.batch.stored_ms(messages.indexes[at])
        if stored_ms:
            self._wait.observe((wall_ms - stored_ms) * 1e3)


def _first_time(delivery: Delivery) -> int | None:
    """The place of the first message that was never handed out before; None: there is none."""
    return next((at for at, attempt in enumerate(delivery.attempts()) if attempt == 1), None)
