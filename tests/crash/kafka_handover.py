"""How long the queues of a server are without a holder: after a clean stop, kill -9, and while it is stopped.

    python -m tests.crash.kafka_handover --times 10

Two `ddmq serve` with the default settings on one Kafka broker (or three); a group takes one topic from both.
Each time the first of them is ended by SIGTERM, by kill -9, or stopped (SIGSTOP) for some seconds longer than
it may be silent, and goes on. Told is how long it took until each of its queues was delivered from by the
other one. What was stopped must have no effect when it goes on: that it gives a message which the other one's
client has done by then is a fault, and that one is lost. The exit code is 1 then.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ddmq.trial.cluster import Ports, TrialCluster, free_ports
from ddmq_client import Consumer, Message, Producer
from ddmq_client.errors import ClientError
from tests.crash.kafka.run import READY_S, post
from tests.crash.kit.command import PrintLine, long_run
from tests.scenarios.real_server import RealServer, write_config
from tests.support.waits import until

TOPIC, GROUP, QUEUES = "moved", "movers", 8
EVERY_S = 0.002  # between two messages
STOPPED_S = 13.0
KINDS = ("clean stop", "kill -9", "stopped")


class Handover:
    """One run."""

    def __init__(self, folder: Path, brokers: int, print_line: PrintLine) -> None:
        self.print_line = print_line
        self.cluster = TrialCluster(folder / "kafka")
        self.cluster.make([Ports(*free_ports(2)) for _ in range(brokers)])
        tree = {"engine": "kafka", "kafka": {"bootstrap": self.cluster.bootstrap}}
        config = write_config(folder / "conf", backend=tree, ddmq={"log_level": "info"})
        self.one, self.other = (RealServer(folder / name, config) for name in ("one", "other"))
        self.lock = threading.Lock()
        self.deliverer: dict[int, tuple[RealServer, float]] = {}  # of each queue, the last
        self.moved_at: dict[int, float] = {}  # when the other first delivered from it again
        self.done: dict[tuple[int, int], RealServer] = {}  # queue and offset; by whose delivery
        self.redelivered = 0
        self.stale: list[str] = []
        self.sent: set[bytes] = set()
        self.bodies: set[bytes] = set()
        self.over = threading.Event()

    def run(self, times: int) -> list[str]:
        """What was broken."""
        try:
            self.cluster.start(ready_s=READY_S)
            for server in (self.one, self.other):
                server.start()
            post(self.other, f"/topics/{TOPIC}", {"create": True, "queues": QUEUES})
            post(self.other, f"/groups/{GROUP}", {"topics": [TOPIC], "start": "first"})
            return self._measured(times)
        finally:
            self.over.set()
            self._signal(signal.SIGCONT)
            for server in (self.one, self.other):
                server.kill()
            for number in self.cluster.brokers:
                self.cluster.signal(number, signal.SIGKILL)

    def _measured(self, times: int) -> list[str]:
        addresses = [f"127.0.0.1:{each.ports['consumer']}" for each in (self.one, self.other)]
        consumer = Consumer(addresses, GROUP, (TOPIC,), handler=self._handle, threads=8, timeout_ms=5_000)
        sender = threading.Thread(target=self._send)
        consumer.start()
        sender.start()
        ways: dict[str, Callable[[], None]] = dict(
            zip(KINDS, (self._stop, self._kill, self._pause), strict=True)
        )
        for kind, way in ways.items():
            took = [self._once(way) for _ in range(times)]
            self.print_line(
                f"{kind}: until every queue was delivered from by the other: median "
                f"{statistics.median(took):.2f} s, most {max(took):.2f} s ({times} times: "
                f"{' '.join(f'{each:.2f}' for each in took)})"
            )
        self.over.set()
        sender.join()
        until(lambda: self.sent <= self.bodies, lambda: f"not done: {list(self.sent - self.bodies)[:5]}")
        consumer.stop()
        self.print_line(f"sent {len(self.sent)}; given again after it was done: {self.redelivered}")
        for text in self.stale:
            self.print_line(f"BROKEN: {text}")
        return self.stale

    def _once(self, way: Callable[[], None]) -> float:
        """One hand-over."""
        until(self._both, "both deliver, from half of the queues each")
        with self.lock:
            queues = [queue for queue, (server, _) in self.deliverer.items() if server is self.one]
        began = time.monotonic()
        thread = threading.Thread(target=way)  # what comes after the signal goes on beside
        thread.start()

        def moved() -> bool:
            with self.lock:
                now = [self.deliverer[queue] for queue in queues]
            return all(server is self.other and at > began for server, at in now)

        until(moved, "all of them are the other's")
        with self.lock:
            took = max(self.moved_at[queue] for queue in queues) - began
        thread.join()
        return took

    def _both(self) -> bool:
        with self.lock:
            at = time.monotonic()
            now = [server for server, delivered_at in self.deliverer.values() if at - delivered_at < 1]
        return len(now) == QUEUES and now.count(self.one) == QUEUES // 2

    # --- the ways to go

    def _stop(self) -> None:
        self.one.terminate()
        self.one.wait()
        self.one.start()

    def _kill(self) -> None:
        self.one.kill()
        self.one.start()

    def _pause(self) -> None:
        self._signal(signal.SIGSTOP)
        time.sleep(STOPPED_S)  # longer than it may be silent
        self._signal(signal.SIGCONT)

    def _signal(self, what: signal.Signals) -> None:
        if self.one.process is not None and self.one.process.poll() is None:
            os.killpg(self.one.pid, what)

    # --- clients

    def _send(self) -> None:
        number = 0
        with Producer(f"127.0.0.1:{self.other.ports['producer']}") as producer:
            while not self.over.wait(EVERY_S):
                number += 1
                body = b"%d" % number
                try:
                    producer.send(TOPIC, body, shard_key=str(number))
                except ClientError:
                    continue
                self.sent.add(body)

    def _handle(self, message: Message) -> None:
        port = int(message.delivery.source.proxy.name.rpartition(":")[2])
        server = self.one if port == self.one.ports["consumer"] else self.other
        queue, now = int(message.queue.rpartition("_")[2]), time.monotonic()
        with self.lock:
            before = self.deliverer.get(queue)
            self.deliverer[queue] = server, now
            if server is self.other and (before is None or before[0] is self.one):
                self.moved_at[queue] = now
            finished_by = self.done.setdefault((queue, message.offset), server)
            if message.body in self.bodies:
                self.redelivered += 1
                if finished_by is self.other and server is self.one:
                    self.stale.append(f"{queue}/{message.offset} was done by the other; the first gave it")
            self.bodies.add(message.body)


def run(folder: Path, times: int, brokers: int, print_line: PrintLine = print) -> list[str]:
    """What was broken; the times are said."""
    running = Handover(folder, brokers, print_line)
    try:
        return running.run(times)
    except AssertionError as error:
        print_line(f"BROKEN: the run broke off: {error}")
        return [str(error)]


def main() -> int:
    return long_run(__doc__, "kafka-handover", run, times=10, brokers=(1, 3))


if __name__ == "__main__":
    sys.exit(main())
