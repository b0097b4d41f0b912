"""The two brokers that one suite of scenarios runs against: the test kit's in memory, and a real server.

A scenario says what clients and operators do, and waits for what is to come. How time passes is the world's
affair: that of the broker in memory is advanced, that of the server goes by.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from urllib.parse import quote

from ddmq_client import Consumer, Producer
from ddmq_client.testing import TestBroker
from ddmq_client.testing.server import LocalServer
from tests.support.waits import until

Row = dict[str, Any]
STEP = timedelta(milliseconds=50)
STEPS = 2_400  # two minutes of the broker's time


class BrokerWorld(Protocol):
    """What a scenario may do."""

    name: str

    def producer(self, **options: Any) -> Producer: ...

    def consumer(
        self, group: str, topics: str, handler: Callable[..., object], **options: Any
    ) -> Consumer: ...

    def create_group(self, group: str, topic: str, **settings: Any) -> None: ...

    def act_on_key(self, group: str, action: str, key: str) -> None: ...

    def blocked_keys(self, group: str) -> list[Row]: ...

    def dead_letters(self, group: str) -> list[Row]: ...

    def bodies(self, topic: str) -> list[str]: ...

    def bodies_if_any(self, topic: str) -> list[str]: ...

    def delays(self, topic: str) -> list[str]: ...

    def lag(self, group: str, topic: str) -> int: ...

    def now(self) -> datetime: ...

    def until(self, condition: Callable[[], object], what: str) -> None: ...

    def close(self) -> None: ...


class KitWorld:
    """The test kit's broker."""

    name = "kit"

    def __init__(self) -> None:
        self.broker = TestBroker()
        self.producer = self.broker.producer
        self.consumer = self.broker.consumer
        self.create_group = self.broker.create_group
        self.lag = self.broker.group_lag
        self.now = self.broker.clock.now
        self.close = self.broker.close

    def act_on_key(self, group: str, action: str, key: str) -> None:
        getattr(self.broker, action)(group, key)

    def blocked_keys(self, group: str) -> list[Row]:
        rows = self.broker.blocked_keys(group)
        return [{"key": row.key, "state": row.state, "attempts": row.attempts} for row in rows]

    def dead_letters(self, group: str) -> list[Row]:
        return [
            {
                "key": letter.key or "",
                "body": letter.body.decode(),
                "reason": letter.reason,
                "error": letter.error,
                "attempts": letter.attempts,
                "topic": letter.topic,
            }
            for letter in self.broker.dead_letters(group)
        ]

    def bodies(self, topic: str) -> list[str]:
        return [message.body.decode() for message in self.broker.messages(topic)]

    def bodies_if_any(self, topic: str) -> list[str]:
        return self.bodies(topic) if topic in self.broker.server.list_topics() else []

    def delays(self, topic: str) -> list[str]:
        return [each.body.decode() for each in self.broker.delayed_messages() if each.topic == topic]

    def until(self, condition: Callable[[], object], what: str) -> None:
        for _ in range(STEPS):
            self.broker.run_until_idle()
            if condition():
                return
            self.broker.clock.advance(STEP)
        raise AssertionError(f"not seen: {what}")


class ServerWorld:
    """A real server. Its clients end with the scenario."""

    name = "server"

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._clients: list[Producer | Consumer] = []

    def producer(self, **options: Any) -> Producer:
        producer = Producer(self._server.producers, **options)
        self._clients.append(producer)
        return producer

    def consumer(self, group: str, topics: str, handler: Callable[..., object], **options: Any) -> Consumer:
        options = {"start": "first", **options}
        consumer = Consumer(self._server.consumers, group, topics, handler=handler, **options)
        self._clients.append(consumer)
        consumer.start()
        return consumer

    def create_group(self, group: str, topic: str, **settings: Any) -> None:
        if topic not in [row["topic"] for row in self._request("GET", "topics")]:
            self._request("POST", "topics", topic, body={})
        self._request("POST", "groups", group, "topics", topic, body={"start": "first", **settings})

    def act_on_key(self, group: str, action: str, key: str) -> None:
        self._request("POST", "groups", group, "keys", body={"action": action, "key": key})

    def blocked_keys(self, group: str) -> list[Row]:
        rows = self._request("GET", "groups", group, "keys")
        return [{name: row[name] for name in ("key", "state", "attempts")} for row in rows]

    def dead_letters(self, group: str) -> list[Row]:
        rows = self._request("GET", "dlq", group)["shown"]
        names = ("key", "reason", "error", "attempts", "topic")
        return [{"body": row["preview"]} | {name: row[name] for name in names} for row in rows]

    def bodies(self, topic: str) -> list[str]:
        return [row["body"] for row in self._request("GET", "topics", topic, "messages")]

    def bodies_if_any(self, topic: str) -> list[str]:
        """The same, also before the topic is there."""
        topics = [row["topic"] for row in self._request("GET", "topics")]
        return self.bodies(topic) if topic in topics else []

    def delays(self, topic: str) -> list[str]:
        rows = self._request("GET", "delay", "messages")
        return [row["preview"] for row in rows["messages"] if row["topic"] == topic]

    def lag(self, group: str, topic: str) -> int:
        rows = self._request("GET", "groups", group)["subscriptions"]
        return sum(row["lag"] for row in rows if row["topic"] == topic)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def until(self, condition: Callable[[], object], what: str) -> None:
        until(condition, what)

    def close(self) -> None:
        for client in reversed(self._clients):
            client.close() if isinstance(client, Producer) else client.stop(5_000)

    def _request(self, method: str, *path: str, body: Row | None = None) -> Any:
        host, _, port = self._server.admin.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            payload = None if body is None else json.dumps(body)
            target = "/" + "/".join(quote(segment, safe="") for segment in path)
            connection.request(method, target, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        assert response.status == 200, (response.status, text)
        return json.loads(text)
