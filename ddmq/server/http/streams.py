"""Streams of server-sent events: one producer, any number of viewers, the same bytes for all.

The feed makes an event each PERIOD_S while at least one viewer is there, encodes it once, and offers it to
every viewer. An offer never waits: what the viewer's socket does not take at once is sent by the viewer's own
greenlet, and until that is done the viewer skips further events. So one viewer holds at most one event, and
VIEWER_BUFFER_BYTES in the kernel, however slow it is.

The feed has an account of its own for processor time (pace.py), because its work is for all viewers, and open
pages must not use up the share of their address. Viewers have their own limit, too, and do not count among
the connections of their address (connection.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gevent
from gevent import socket
from gevent.event import Event

from ddmq.server.http.pace import Account, PacedGreenlet, yield_if_long
from ddmq_common.errors import TryLaterError
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.cells import MetricCell
from ddmq_common.metrics.registry import Registry

EVENT_STREAM = "text/event-stream"
VIEWERS_MAX = 128
PERIOD_S = 1.0  # from one event to the next
PAUSE_MIN_S = 0.001  # where an event took longer than PERIOD_S
HEARTBEAT_S = 15.0  # without an event, after which a comment is sent
STALLED_S = 30.0  # for a viewer to take the rest of an event
END_S = 1.0  # for the last event to be taken, when the server stops
VIEWER_BUFFER_BYTES = 128 << 10  # of a viewer's socket in the kernel
BEGIN = b"retry: 2000\n\n"  # milliseconds after which EventSource reconnects
HEARTBEAT = b":\n\n"
log = logging.getLogger("ddmq.admin")


def encode_event(name: str, data: bytes, number: int | None = None) -> bytes:
    """Return an event as it is sent. `data` must be one line."""
    identity = b"" if number is None else b"id: %d\n" % number
    return identity + b"event: %s\ndata: %s\n\n" % (name.encode(), data)


class Viewer:
    """One open stream, created in the greenlet that runs it. `skipped` counts the events that viewers did not
    get because they were too slow."""

    def __init__(self, connection: Any, skipped: MetricCell) -> None:
        self._socket = connection
        self._waits_in_send = hasattr(connection, "pending")  # TLS of gevent's: leave it to the own greenlet
        self._rest: memoryview | None = None  # of the event that is being sent
        self._wake = Event()
        self._sent_at = time.monotonic()
        self._ended = False
        self._greenlet = gevent.getcurrent()
        self._skipped = skipped

    def offer_event(self, event: bytes) -> None:
        """Send an event if the previous one has been sent completely; otherwise skip it. Does not wait."""
        if self._rest is not None or self._ended:
            self._skipped.value += not self._ended
            return
        try:
            sent = 0 if self._waits_in_send else self._socket.send(event, 0, 0.0)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._ended = True
            self._wake.set()
            return
        if sent == len(event):
            self._sent_at = time.monotonic()
        else:
            self._rest = memoryview(event)[sent:]
            self._wake.set()

    def end(self, event: bytes) -> None:
        """Send the last event, and end the stream."""
        self.offer_event(event)
        self._ended = True
        self._wake.set()

    def abort_stream(self) -> None:
        """End the stream at once."""
        self._greenlet.kill(block=False)

    def run(self) -> None:
        """Send what the socket did not take at once, and heartbeats, until the stream ends. Raises OSError if
        the viewer has gone, or takes nothing for too long."""
        while not self._ended or self._rest is not None:
            if self._rest is None:
                self._wake.wait(max(0.0, self._sent_at + HEARTBEAT_S - time.monotonic()))
            self._wake.clear()
            if self._rest is not None:
                self._socket.settimeout(STALLED_S)
                self._socket.sendall(self._rest)
                self._rest, self._sent_at = None, time.monotonic()
            elif time.monotonic() >= self._sent_at + HEARTBEAT_S:
                self.offer_event(HEARTBEAT)


class EventFeed:
    """The producer of a stream. `make_event` returns the next event, encoded; it runs in a greenlet that is
    charged to the feed's own account, and only while there are viewers."""

    def __init__(self, make_event: Callable[[], bytes], metrics: Registry) -> None:
        self._make_event = make_event
        self._producer: Any = None
        self._latest = b""
        self._end_reason = ""
        self._has_failed = False
        self._viewers_open = metrics.cell(catalogue.EVENT_VIEWERS)
        self._events_skipped = metrics.cell(catalogue.EVENTS_SKIPPED)
        self.account = Account()
        self.viewers: set[Viewer] = set()

    def open(self) -> EventStream:
        """Return a stream for one more viewer. Raises TryLaterError at the limit, or if the server stops."""
        if rejection := self._find_rejection():
            raise TryLaterError(rejection)
        return EventStream(self)

    def _find_rejection(self) -> str:
        """Return why no further viewer can be taken; "" if one can."""
        is_full = len(self.viewers) >= VIEWERS_MAX
        full = f"{VIEWERS_MAX} viewers are watching, which is the limit; try again later"
        return self._end_reason or (full if is_full else "")

    def serve_viewer(self, connection: Any) -> None:
        """Send events to a viewer until the stream ends. Raises OSError if the viewer has gone."""
        if self._find_rejection():
            return  # since the request was accepted
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, VIEWER_BUFFER_BYTES)
        viewer = Viewer(connection, self._events_skipped)
        self.viewers.add(viewer)
        self._viewers_open.value = len(self.viewers)
        try:
            viewer.offer_event(BEGIN + self._latest)
            self._start_producer()
            viewer.run()
        finally:
            self.viewers.discard(viewer)
            self._viewers_open.value = len(self.viewers)

    def _start_producer(self) -> None:
        if self._producer is None:
            producer = PacedGreenlet(self._produce_events)
            producer.account = self.account
            self._producer = producer
            producer.start()

    def _produce_events(self) -> None:
        try:
            due_at = time.monotonic()
            while self.viewers and not self._end_reason:
                self._make_and_offer()
                due_at = max(due_at + PERIOD_S, time.monotonic() + PAUSE_MIN_S)
                gevent.sleep(due_at - time.monotonic())
        finally:
            self._producer, self._latest = None, b""

    def _make_and_offer(self) -> None:
        try:
            event = self._make_event()
        except Exception:  # a defect of ours must not end the stream; heartbeats go on
            if not self._has_failed:
                log.exception("an event could not be made; the next failures are not logged")
            self._has_failed = True
            return
        self._has_failed = False
        self._latest = event
        for viewer in list(self.viewers):
            viewer.offer_event(event)
            yield_if_long()

    def end(self, reason: str, event: bytes) -> None:
        """End all streams with a last event, and accept no further viewers: they get `reason`. A stream whose
        viewer does not take the last event within END_S ends without it."""
        if self._end_reason:
            return
        self._end_reason = reason
        self.end_viewers(event)

    def end_viewers(self, event: bytes) -> None:
        """End the streams of the present viewers with a last event."""
        viewers = list(self.viewers)
        for viewer in viewers:
            viewer.end(event)
        HubTimer(ref=False).once(END_S, lambda: self._abort_streams(viewers))

    def _abort_streams(self, viewers: Iterable[Viewer]) -> None:
        for viewer in self.viewers.intersection(viewers):
            viewer.abort_stream()


class EventStream:
    """The answer to a request for the events of `feed`. It has no length: the connection sends the events
    until the stream ends (AdminConnection), so that iterating over it yields nothing."""

    def __init__(self, feed: EventFeed) -> None:
        self.feed = feed

    def __iter__(self) -> Iterator[bytes]:
        return iter(())
