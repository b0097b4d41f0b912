"""Clients that consume the messages of one order key and note every delivery, for tests that kill in between.

The messages are numbered from 0 by their bodies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tests.crash.kit.key_order import KeyDelivery, Return, find_returns
from tests.interop.apache_client import Client, ConsumeResult, Message, PullResponse
from tests.scenarios.real_server import PATIENCE_S, RealServer
from tests.support.waits import until

TOPIC, GROUP, KEY = "steps", "applier", "K"
SETTINGS = {"order_key": "KEY", "order_scope": "topic", "ack_timeout_ms": 60_000, "start": "first"}


class Acknowledging(threading.Thread):
    """Sends one acknowledgement and waits for the answer; `stored` when there was one."""

    def __init__(self, client: Client, pulled: PullResponse) -> None:
        super().__init__(daemon=True)
        self._client, self._pulled = client, pulled
        self.stored = False

    def run(self) -> None:
        try:
            self.stored = bool(self._client.submit(result_of(self._pulled)))
        except Exception:
            self.stored = False


def result_of(pulled: PullResponse) -> ConsumeResult:
    """The acknowledgement of all messages of an answer."""
    leases = [message.leaseId for message in pulled.messages]
    offsets = [message.offset for message in pulled.messages]
    return ConsumeResult(context=pulled.context, successOffsets=offsets, failOffsets=[], successLeases=leases)


class KeyWatch:
    """All deliveries of one key. `port`: of the consumer proxy, at the moment."""

    def __init__(self, port: Callable[[], int]) -> None:
        self._port = port
        self._lock = threading.Lock()
        self.deliveries: list[KeyDelivery] = []

    @property
    def indexes(self) -> list[int]:
        """The numbers of the messages, in the order in which they came."""
        return [delivery.index for delivery in self.deliveries]

    @property
    def returns(self) -> list[Return]:
        """The deliveries that break the order."""
        return find_returns(self.deliveries)

    def prepare(self, admin: RealServer, producer_port: int, count: int) -> None:
        """Create topic and group, and send the messages."""
        admin.admin("POST", "topics", TOPIC, body={"create": True, "queues": 1})
        admin.admin("POST", "groups", GROUP, body={"topics": [TOPIC], **SETTINGS})
        with Client(producer_port, timeout_s=PATIENCE_S) as client:
            for number in range(count):
                message = Message(topic=TOPIC, key=KEY, body=b"%d" % number, partitionId=0)
                assert client.call("sendSync", message=message, timeout=10_000).code == 0

    def pull(self, client: Client, linger_ms: int, result: ConsumeResult | None = None) -> PullResponse:
        """One pull of one message, whose delivery is noted."""
        requested = time.monotonic()
        pulled: PullResponse = client.pull(
            GROUP, TOPIC, maxBatchSize=1, maxLingerTime=linger_ms, result=result, clientId="watch"
        )
        received = time.monotonic()
        with self._lock:
            for message in pulled.messages or ():
                self.deliveries.append(KeyDelivery(int(message.value), requested, received))
        return pulled

    def client(self) -> Client:
        """A new connection to the proxy."""
        return Client(self._port(), timeout_s=PATIENCE_S)

    def pull_beside(self, clients: int, linger_ms: int) -> None:
        """Let so many clients pull at once, and return when all are answered."""

        def pull() -> None:
            with self.client() as client:
                self.pull(client, linger_ms)

        threads = [threading.Thread(target=pull, daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)

    def pull_all(self, count: int) -> None:
        """Pull and acknowledge until each of so many messages has come and the last one is acknowledged."""
        with self.client() as client:
            result: ConsumeResult | None = None

            def all_came() -> bool:
                nonlocal result
                pulled = self.pull(client, 200, result)
                result = result_of(pulled) if pulled.messages else None
                return result is None and set(self.indexes) == set(range(count))

            until(all_came, lambda: f"came: {self.indexes}")
