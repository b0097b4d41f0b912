"""A subscription becomes a traced one, or an untraced one again: by its own setting, or by its topic's.

The denser of the two holds. Queues that are here are loaded anew then, for their jobs are others; clients
keep what they have.
"""

from __future__ import annotations

from typing import Protocol

from backend.traces import TraceWriter, one_in_of
from ddmq_common.trace.sampling import OFF, limit_of
from proxy_consumer.core.pull_buffer import PullBuffer
from proxy_consumer.core.queue_jobs import QueueJobs
from proxy_consumer.runtime import HandedOut, Runtime
from proxy_consumer.subscription.reading import Reading
from proxy_consumer.tracing.messages import SubscriptionTrace, TracedHandedOut, TracedSubscription


class Switched(TracedSubscription, Protocol):
    """A subscription that can be switched. `trace` None: it is not traced."""

    trace: SubscriptionTrace | None
    handed: HandedOut
    reading: Reading

    @property
    def buffer(self) -> PullBuffer: ...


def switch(runtime: Runtime, subscription: Switched) -> bool:
    """Trace what is to be traced now; whether the queues that are here have to be loaded anew for it."""
    writer: TraceWriter | None = runtime.traces
    if writer is None:
        return False
    own = limit_of(subscription.config.trace_one_in)
    limit = max(own, limit_of(one_in_of(runtime.backend, subscription.topic)))
    if subscription.config.model == "broadcasting":
        limit = OFF  # each instance has its own place: there is no group that a message is finished for
    before = subscription.trace
    if before is not None and limit != OFF:
        before.limit = limit
        return False
    if before is None and limit == OFF:
        return False
    cells = HandedOut(*subscription.handed.cells)
    if limit == OFF:
        subscription.trace, subscription.handed = None, cells
        subscription.buffer.jobs_of = QueueJobs
    else:
        trace = subscription.trace = SubscriptionTrace(runtime, subscription, writer, limit)
        subscription.handed = TracedHandedOut(cells, trace)
        subscription.buffer.jobs_of = trace.jobs_of
    subscription.reading.trace = subscription.trace
    if before is not None:
        runtime.traced.pop(before, None)
    if subscription.trace is not None:
        runtime.traced[subscription.trace] = None
        runtime.heartbeat.wake()
    return True
