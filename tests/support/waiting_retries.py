"""Messages on the retry path of a group on real servers, and where each of them is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ddmq_client import Consumer, Message, Producer
from tests.scenarios.real_server import RealServer
from tests.support.waits import until

WAITS = ["1s", "2s", "1h"]  # the first retry waits at the third level
TOPIC, GROUP = "T", "G"
COUNT_MAX = 1_000


def subscribe(server: RealServer) -> None:
    server.admin("POST", "topics", TOPIC, body={"create": True, "queues": 2})
    body = {"topics": [TOPIC], "start": "first", "retry_intervals_ms": []}
    server.admin("POST", "groups", GROUP, body=body)


def fail_messages(server: RealServer, bodies: Iterable[str]) -> None:
    """Send messages, and fail each of them once: they wait for an hour."""
    bodies = list(bodies)
    before = sum(1 for _ in list_retries(server))

    def fail(message: Message) -> None:
        raise ValueError("on purpose")

    with Producer(server.address("producer")) as producer:
        for body in bodies:
            producer.send(TOPIC, body, key=body)
    with Consumer(server.address("consumer"), GROUP, [TOPIC], handler=fail, linger_ms=50):
        until(lambda: sum(1 for _ in list_retries(server)) == before + len(bodies), "all wait for a retry")


def list_retries(server: RealServer) -> Iterator[dict[str, Any]]:
    """The messages on the retry path, page by page; those that are due are in the retry topic."""
    after = ""
    while True:
        status, answer = ask(server, f"/retries?form=2&group={GROUP}&count={COUNT_MAX}{after}")
        assert status == 200, answer
        yield from answer["items"]
        if "next" not in answer:
            return
        after = f"&after={answer['next']}"


def ask(server: RealServer, target: str) -> tuple[int, Any]:
    """Status and answer of a GET request, which is repeated as long as it is answered with "try again"."""

    def request() -> tuple[int, Any] | None:
        status, answer = server.request("GET", target)
        return None if status == 503 else (status, answer)

    return until(request, f"{target} is answered")


def list_places(server: RealServer) -> list[tuple[str, str]]:
    """The key and the place of each message: waiting, due or dead; sorted."""
    places = [(row["key"], row["state"]) for row in list_retries(server)]
    status, answer = ask(server, f"/dlq/{GROUP}?count={COUNT_MAX}")
    if status == 200:
        places += [(row["key"], "dead") for row in answer["shown"]]
    return sorted(places)


def plan(server: RealServer, action: str, **chosen: Any) -> dict[str, Any]:
    body = {"kind": "retries", "action": action, "filter": {"group": GROUP, **chosen}}
    return dict(server.admin("POST", "operations", body=body))


def start(server: RealServer, planned: dict[str, Any], rate: int | None = None) -> None:
    body = {"token": planned["token"], "rate": rate}
    server.admin("POST", "operations", planned["id"], "start", body=body)


def wait_until_done(server: RealServer, planned: dict[str, Any]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []

    def is_done() -> bool:
        rows.append(dict(server.admin("GET", "operations", planned["id"])))
        return bool(rows[-1]["state"] == "done")

    until(is_done, lambda: f"the operation is done: {rows[-1]}")
    return rows[-1]
