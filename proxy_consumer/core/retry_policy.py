"""The retry policy: when a failed message is delivered again, and when its attempts are used up.

A policy holds the settings of one queue of a subscription as numbers: it knows counts and waits, but no
message.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy_consumer.config import SubscriptionDefaults

REASON_FAILED = "failed"
REASON_TIMED_OUT = "timed-out"
REASON_GIVEN_UP = "given-up"


class RetryPolicy:
    """The waits before redelivery in one queue of a subscription, in milliseconds; None = attempts used up.

    Unordered: failures wait for the quick intervals, time-outs are redelivered at once, and each has its own
    limit. A last interval of −1 repeats the one before it for ever, whatever the other limits; a leading −1
    means no retry. `steps_max`: how many failures beyond the quick retries may still wait in place if they
    name their own delay.

    Ordered (`interval_ms` set): after the quick retries the job stays at the head of its chain and is
    delivered every `interval_ms`, `deliveries_max` deliveries in all (−1 = no limit). `parks`: after that the
    job stays at the head until an operator acts, instead of becoming a dead letter.
    """

    __slots__ = (
        "_deliveries_max", "_for_ever", "_interval_ms", "_intervals_ms", "_steps_max", "_timeouts_max",
        "parks",
    )  # fmt: skip

    def __init__(
        self,
        intervals_ms: Sequence[int],
        max_timeout_redeliveries: int,
        interval_ms: int | None = None,
        deliveries_max: int = -1,
        steps_max: int = 0,
        *,
        parks: bool = False,
    ) -> None:
        self.parks = parks
        plain = list(intervals_ms)
        if plain and plain[0] == -1:
            plain = []
        self._for_ever = bool(plain) and plain[-1] == -1
        self._intervals_ms = plain[:-1] if self._for_ever else plain
        self._steps_max = steps_max
        self._timeouts_max = max_timeout_redeliveries
        self._interval_ms = interval_ms
        self._deliveries_max = deliveries_max

    def after_fail(self, fails: int, timeouts: int) -> int | None:
        """Return the wait after the `fails`-th failure (from 1), in milliseconds; None if the attempts are
        used up."""
        if self._for_ever:
            return self._intervals_ms[min(fails, len(self._intervals_ms)) - 1]
        if self._all_delivered(fails + timeouts):
            return None
        if fails <= len(self._intervals_ms):
            return self._intervals_ms[fails - 1]
        return self._interval_ms

    def after_timeout(self, fails: int, timeouts: int) -> int | None:
        """Return the wait after the `timeouts`-th time-out (from 1), in milliseconds; 0 = at once, None =
        used up."""
        if self._all_delivered(fails + timeouts):
            return None
        if self._timeouts_max < 0 or timeouts <= self._timeouts_max:
            return 0
        return self._interval_ms

    def used_up(self, fails: int, timeouts: int) -> str:
        """Return the limit that these counts have reached, as the reason of a dead letter; "" if none."""
        if fails and self.after_fail(fails, timeouts) is None:
            return REASON_FAILED
        return REASON_TIMED_OUT if timeouts and self.after_timeout(fails, timeouts) is None else ""

    def waits_in_place(self, fails: int) -> bool:
        """Whether the `fails`-th failure, past the quick retries, may still wait in its queue for its own
        delay."""
        return self.steps_beyond(fails) <= self._steps_max

    def steps_beyond(self, fails: int) -> int:
        """Return how many of the first `fails` failures came after the quick retries."""
        return max(0, fails - len(self._intervals_ms))

    def _all_delivered(self, deliveries: int) -> bool:
        return self._interval_ms is not None and 0 <= self._deliveries_max <= deliveries


def policy_of(config: SubscriptionDefaults, *, retry_queue: bool = False) -> RetryPolicy:
    """Build the retry policy of a subscription's queue; a queue of `%RETRY%group` gives each message one
    delivery."""
    if retry_queue:
        return RetryPolicy((), config.max_timeout_redeliveries, steps_max=config.retry_steps)
    if config.order_key:
        return RetryPolicy(
            config.retry_intervals_ms,
            config.max_timeout_redeliveries,
            config.ordered_interval_ms,
            config.ordered_deliveries_max,
            parks=config.on_dead_letter == "park",
        )
    return RetryPolicy(
        config.retry_intervals_ms, config.max_timeout_redeliveries, steps_max=config.retry_steps
    )
