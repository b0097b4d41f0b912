"""Messages found by text and SQL, and the retry path of a group message by message, on real servers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ddmq_client import Consumer, Producer
from tests.service.cli.conftest import Shell
from tests.support.waits import until


def search(shell: Shell, topic: str, **body: Any) -> Any:
    return shell.server.admin("POST", "topics", topic, "search", body=body)


def test_messages_are_found_by_text_and_by_sql(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "2")
    with Producer(f"127.0.0.1:{shell.server.ports['producer']}") as producer:
        for number in range(40):
            kind = "large" if number % 10 == 0 else "small"
            producer.send(topic, f"order {number}", key=f"k{number}", properties={"size": kind})
    found = search(shell, topic, sql="size = 'large'")
    assert sorted(item["body"] for item in found["items"]) == ["order 0", "order 10", "order 20", "order 30"]
    assert (found["exact"], found["total"], found["scanned"]) == (True, 4, 40)
    assert [item["key"] for item in search(shell, topic, text="order 17")["items"]] == ["k17"]
    assert search(shell, topic, text="order 1", sql="size = 'large'")["total"] == 1
    assert search(shell, topic, text="order", from_ms=int(time.time() * 1000) + 3_600_000)["total"] == 0
    assert search(shell, topic, text="order", to_ms=1)["total"] == 0
    bodies, after = list[str](), None
    for _ in range(40):
        page = search(shell, topic, text="order", count=7, **({"after": after} if after else {}))
        bodies += [item["body"] for item in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert sorted(bodies) == sorted(f"order {number}" for number in range(40))
    status, error = shell.server.request("POST", f"/topics/{topic}/search", {"sql": "size ="})
    assert status == 400, error
    assert shell.server.request("POST", f"/topics/{topic}-none/search", {"text": "x"})[0] == 404


@pytest.mark.slow
def test_the_retry_path_is_listed_message_by_message(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1")
    shell("group", "set", topic, "--topic", topic, "--start", "first", "--retry-intervals-ms", "")
    shell("send", topic, "one", "two", "--key", "k")

    def fail(_: Any) -> None:
        raise RuntimeError("no such customer")

    def rows() -> list[dict[str, Any]]:
        return get(shell, topic)

    with Consumer(f"127.0.0.1:{shell.server.ports['consumer']}", topic, topic, handler=fail):
        until(lambda: len(rows()) == 2, "both are on the retry path")
    first = rows()[0]
    assert (first["topic"], first["key"], first["group"]) == (topic, "k", topic)
    assert first["error"] == "RuntimeError: no such customer"
    assert first["deliveries"] >= 1
    assert sorted(row["offset"] for row in rows()) == [0, 1]
    page = shell.server.request("GET", f"/retries?group={topic}&count=1")[1]
    assert len(page["items"]) == 1
    rest = shell.server.request("GET", f"/retries?group={topic}&after={page['next']}")[1]
    assert {row["id"] for row in page["items"] + rest["items"]} == {row["id"] for row in rows()}
    assert "no such customer" in shell("group", "retries", topic)
    assert len(shell.json("group", "retries", topic, "--text", "such customer")["items"]) == 2
    assert shell.json("group", "retries", topic, "--text", "two")["items"][0]["offset"] == 1
    assert shell.json("group", "retries", topic, "--text", "three")["items"] == []


def get(shell: Shell, group: str) -> list[dict[str, Any]]:
    status, answer = shell.server.request("GET", f"/retries?group={group}")
    assert status == 200, answer
    return list(answer["items"])
