"""A topic and a group ready to be measured: made, joined, and with nothing left to deliver."""

from __future__ import annotations

import http.client
import json
from typing import Any

from bench import frames, load
from bench.servers import Running


def establish(server: Running, topic: bytes, group: bytes, queues: int = 4, **settings: Any) -> None:
    """Make both and consume one message, so that everything sent from now on is delivered to the group."""
    admin(server, "POST", f"/topics/{topic.decode()}", {"queues": queues})
    send_once(server, topic)
    subscribe(server, topic, group, **settings)
    consumer = load.connect(server.addresses["consumer"], 1)
    count = 0

    def next_frame(_: int, reply: bytes | None) -> bytes | None:
        nonlocal count
        answer = None if reply is None else frames.pulled(reply)
        if answer is not None:
            count += answer.messages
            return frames.pull(group, topic, 100, 20, (answer.qid, answer.offsets))
        return None if count else frames.pull(group, topic, 100, 1000, None)

    load.closed_loop(consumer, next_frame)
    consumer[0].close()
    if count != 1:
        raise AssertionError(f"1 message sent to {topic!r}, {count} delivered")


def subscribe(server: Running, topic: bytes, group: bytes, **settings: Any) -> None:
    """Make a group that starts with the topic's first message."""
    body = {"topics": [topic.decode()], "start": "first"} | settings
    admin(server, "POST", f"/groups/{group.decode()}", body)


def send_once(server: Running, topic: bytes) -> None:
    """One small message, stored; the topic exists then."""
    producer = load.connect(server.addresses["producer"], 1)
    replies = []

    def next_frame(_: int, reply: bytes | None) -> bytes | None:
        if reply is None:
            return frames.send_sync(topic, b"", b"first", 0)
        replies.append(reply)
        return None

    load.closed_loop(producer, next_frame)
    producer[0].close()
    if not frames.reply_ok(replies[0]):
        raise AssertionError(f"not stored: {replies[0]!r}")


def stored(server: Running, topic: bytes) -> int:
    """How many messages the topic's queues have taken."""
    status = admin(server, "GET", f"/topics/{topic.decode()}")
    return sum(int(queue["next"]) for queue in status["by_queue"])


def lag(server: Running, group: bytes) -> int:
    """Messages not yet acknowledged durably."""
    status = admin(server, "GET", f"/groups/{group.decode()}")
    return sum(int(each["lag"]) for each in status["subscriptions"])


def admin(server: Running, method: str, path: str, body: Any = None) -> Any:
    """Ask the admin API."""
    connection = http.client.HTTPConnection(*server.addresses["admin"], timeout=30)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status >= 300:
        raise AssertionError(f"{method} {path}: {answer.status} {text!r}")
    return json.loads(text) if text else None
