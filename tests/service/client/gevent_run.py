"""Run by test_client_gevent.py in a process of its own: everything patched, everything on one hub.

Prints one line per check; a wait that blocked the hub would stop the ticker, or the stand-in, which runs
here too.
"""

from gevent import monkey

monkey.patch_all()

import signal  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402
from opentelemetry import trace  # noqa: E402

from ddmq_client import Consumer, Decision, OutgoingMessage, Producer, UnknownOutcomeError  # noqa: E402
from tests.service.client.standin import AFTER, HOLD, standing_in  # noqa: E402
from tests.support.spans import Spans  # noqa: E402

ticks = 0


def tick() -> None:
    global ticks
    while True:
        gevent.sleep(0.001)
        ticks += 1


def sending(address: str, proxy: Any) -> None:
    with Producer(address, connections_max=8, async_workers=3) as producer:
        jobs = [gevent.spawn(lambda: [producer.send("t", b"x") for _ in range(5)]) for _ in range(20)]
        gevent.joinall(jobs, timeout=60, raise_error=True)
        futures = [producer.send_async(OutgoingMessage("t", b"y")) for _ in range(100)]
        assert all(future.result(60).stored for future in futures)
        print("sent", len(proxy.stored))
        before = ticks
        proxy.faults["sendSync"].extend([HOLD, AFTER])
        try:
            producer.send("t", b"slow", timeout_ms=200)
        except UnknownOutcomeError as error:
            print("timed out", "within" in str(error), ticks > before)
        proxy.release()
        try:
            producer.send("t", b"lost")
        except UnknownOutcomeError:
            print("lost")


def consuming(address: str, proxy: Any) -> None:
    thread_names = []

    def handle(message: Any) -> None:
        gevent.sleep(0.001)
        thread_names.append(threading.current_thread().name)

    stored_count = len(proxy.stored)
    with Consumer(address, "g", "t", handler=handle, threads=16, linger_ms=50) as consumer:
        proxy.wait(lambda: len(proxy.done) == stored_count, 60)
    print("handled", consumer.counts().acked == stored_count, len(set(thread_names)) > 1)
    proxy.put("t", b"one", b"two")
    consumer = Consumer(address, "g", "t", linger_ms=1000)
    with gevent.Timeout(60):
        (message,) = consumer.pull(1, 30_000)
        message.ack()
        print("stopped", consumer.stop(30_000))


def killed(address: str, proxy: Any) -> None:
    proxy.faults["sendSync"].append(HOLD)
    with Producer(address) as producer:
        greenlet = gevent.spawn(producer.send, "t", b"killed")
        calls = len(proxy.calls)
        proxy.wait(lambda: len(proxy.calls) > calls)
        greenlet.kill()
        proxy.release()
        print("after kill", producer.send("t", b"next").stored)


def transacting(address: str, proxy: Any) -> None:
    """A hundred transactions side by side, while the poll for checks waits; then a check comes."""

    def check(transaction: object) -> Decision:
        gevent.sleep(0.001)
        return Decision.COMMITTED

    def work(producer: Producer) -> None:
        with producer.transaction() as tx:
            gevent.joinall([gevent.spawn(tx.send, "tx", b"x") for _ in range(3)], raise_error=True)

    with Producer(address, connections_max=8, producer_group="bank", check=check) as producer:
        gevent.joinall([gevent.spawn(work, producer) for _ in range(100)], timeout=60, raise_error=True)
        tx = producer.transaction()
        tx.send("tx", b"left open")
        proxy.offer(tx.id)
        proxy.wait(lambda: tx.id in proxy.outcomes, 60)
    print("transactions", len(proxy.outcomes), len([m for m in proxy.stored if m.topic == "tx"]))


def traced(address: str, proxy: Any) -> None:
    """Each greenlet has the span of its own handler."""
    spans, own = Spans(), []

    def handle(message: Any) -> None:
        gevent.sleep(0.001)
        span: Any = trace.get_current_span()
        traced_offset = span.attributes["messaging.ddmq.message.offset"]
        own.append(traced_offset == message.offset)

    proxy.put("spans", *[b"x"] * 50)
    with Consumer(address, "g", "spans", handler=handle, threads=16, linger_ms=50, observer=spans.observer):
        proxy.wait(lambda: len(own) == 50, 60)
    print("traced", all(own), len(spans.all("process spans")))


def signalled(address: str, proxy: Any) -> None:
    """A signal that comes while all wait is handled on the hub, where nothing may wait."""
    consumer = Consumer(address, "g", "t", handler=lambda message: None, threads=2, linger_ms=50)
    consumer.start()
    answers = []
    signal.signal(signal.SIGUSR1, lambda *_: answers.append(consumer.stop(30_000)))
    gevent.get_hub().loop.run_callback(signal.raise_signal, signal.SIGUSR1)
    with gevent.Timeout(60):
        gevent.sleep(0.05)
        print("signalled", answers, consumer.stop(30_000))


def main() -> int:
    gevent.spawn(tick)
    with standing_in() as proxy:
        for check in (sending, consuming, killed, transacting, traced, signalled):
            check(proxy.address, proxy)
    print("ticked", ticks > 50)
    return 0


if __name__ == "__main__":
    sys.exit(main())
