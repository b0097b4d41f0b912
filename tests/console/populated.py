"""What a server has when its console is looked at: failing keys, dead letters, a late group, delays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ddmq_client import Consumer, OutgoingMessage, Producer
from tests.scenarios.real_server import RealServer
from tests.support.waits import until

FAILING_KEYS = ("3", "7")
DELAYS = 60
HOSTILE = "<script>alert(1)</script>\u202e\x00<b>"
HOSTILE_TOPIC = "a-hostile-topic"
ORDERED = {
    "order_key": "KEY",
    "ordered_deliveries_max": -1,
    "ordered_interval_ms": 60_000,  # keys stay blocked without a new attempt each second
}
WITHOUT_RETRIES = {"retry_intervals_ms": [], "retry_steps": 0}
HOSTILE_GROUPS = {
    "hostile-keys": ORDERED,
    "hostile-retries": {"retry_intervals_ms": []},
    "hostile-letters": WITHOUT_RETRIES,
}
BIG_BODY = "x" * (2 << 20)
TIMEOUT_MS = 60_000


def _bill(message: Any) -> None:
    if message.key in FAILING_KEYS:
        raise ValueError(f"customer {message.key} has no address")


def _mail(message: Any) -> None:
    raise KeyError("iban")


def _raise_hostile(message: Any) -> None:
    raise ValueError(HOSTILE)


@contextmanager
def populate(server: RealServer) -> Iterator[None]:
    """Fill the server and keep its clients running: `billing` with blocked keys, `mailer` with dead letters,
    `audit` without a client, delays of `mail`, an open transaction, and hostile names and bodies."""
    server.admin("POST", "topics", "orders", body={"queues": 2})
    server.admin("POST", "topics", "mail", body={"queues": 1})
    server.admin("POST", "topics", HOSTILE_TOPIC, body={"queues": 1})
    server.admin("POST", "groups", "billing", body={"topics": ["orders"], "start": "first", **ORDERED})
    server.admin(
        "POST",
        "groups",
        "mailer",
        body={"topics": ["mail"], "start": "first", **WITHOUT_RETRIES},
    )
    server.admin("POST", "groups", "audit", body={"topics": ["orders"], "start": "first"})
    consumer = server.address("consumer")
    with ExitStack() as opened:
        producer = opened.enter_context(
            Producer(server.address("producer"), timeout_ms=TIMEOUT_MS, producer_group="shop")
        )
        orders = [OutgoingMessage("orders", json.dumps({"order": n}), key=str(n % 10)) for n in range(100)]
        producer.send_batch(orders)
        producer.send_batch(
            [OutgoingMessage("mail", json.dumps({"to": f"u{n}"}), key=f"u{n}") for n in range(20)]
        )
        producer.send(HOSTILE_TOPIC, HOSTILE, key=HOSTILE, tags="plain")
        producer.send(HOSTILE_TOPIC, BIG_BODY, key="big")
        transaction = opened.enter_context(producer.transaction(reference="order-17"))
        transaction.send("mail", "prepared", key="order-17")
        for number in range(DELAYS):
            body = {
                "topic": "mail",
                "key": f"late-{number}",
                "body": "wrong price",
                "delay_ms": (number + 1) * 600_000,
            }
            server.admin("POST", "messages", body=body)
        server.admin(
            "POST",
            "messages",
            body={"topic": HOSTILE_TOPIC, "key": HOSTILE, "body": HOSTILE, "delay_ms": 3_600_000},
        )
        for group, more in HOSTILE_GROUPS.items():
            server.admin("POST", "groups", group, body={"topics": [HOSTILE_TOPIC], "start": "first", **more})
            opened.enter_context(Consumer(consumer, group, [HOSTILE_TOPIC], handler=_raise_hostile))
        opened.enter_context(Consumer(consumer, "billing", ["orders"], handler=_bill, client_id="billing-1"))
        opened.enter_context(Consumer(consumer, "mailer", ["mail"], handler=_mail, client_id="mailer-1"))
        until(lambda: len(server.admin("GET", "groups", "billing", "keys")) >= len(FAILING_KEYS))
        until(lambda: any(row["letters"] >= 20 for row in server.admin("GET", "dlq")))
        yield


def fill_in(server: RealServer, path: str) -> str:
    """Replace {message}, {delay} and {transaction} in the path of a page by the ids of such things."""
    if "{message}" in path:
        return path.format(message=server.messages("mail")[0]["id"])
    if "{delay}" in path:
        return path.format(delay=server.admin("GET", "delay", "messages")["messages"][0]["id"])
    if "{transaction}" in path:
        return path.format(transaction=server.admin("GET", "transactions")["transactions"][0]["transaction"])
    return path
