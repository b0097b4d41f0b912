"""Where incidents happen: servers with applications, and bystanders that no repair may change.

The bystanders are a parked key, unfinished messages, a dead letter and a delayed message, with topics, groups
and settings of their own. Findings appear within seconds (tests/support/soon_alerted).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from ddmq_client import Consumer, Producer
from tests.scenarios.incident_operators import CommandOperator, HttpOperator, Operator, Row
from tests.scenarios.real_server import RealServer
from tests.support.installations import Installation
from tests.support.variants import mark_others_long
from tests.support.waits import until

SOON = Path(__file__).resolve().parents[1] / "support/soon_alerted"
BYSTANDER = "bystander"
WITHOUT_RETRIES: Row = {"start": "first", "retry_steps": 0, "retry_intervals_ms": []}


class IncidentServer(RealServer):
    """Reports its findings soon. A GET request is repeated as long as its answer is "try again"."""

    environment: Mapping[str, str] = {"PYTHONPATH": str(SOON)}

    def request(self, method: str, target: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        if method != "GET":
            return super().request(method, target, body)
        send = partial(super().request, method, target, body)
        return until(lambda: answer if (answer := send())[0] != 503 else None, f"{target} is answered")


class IncidentWorld:
    """Servers over one installation, and the clients of one incident."""

    def __init__(self, engine: str, deployment: str) -> None:
        self.engine = engine
        self.deployment = deployment
        self.servers: list[IncidentServer] = []
        self._clients = ExitStack()

    @property
    def server(self) -> IncidentServer:
        """The one whose proxies the clients use."""
        return self.servers[0]

    @property
    def other_server(self) -> IncidentServer:
        """One at which no client is, if there are several."""
        return self.servers[-1]

    def create_topic(self, topic: str, **settings: Any) -> None:
        self.server.admin("POST", "topics", topic, body=settings)

    def subscribe(self, group: str, topic: str, **settings: Any) -> None:
        self.server.admin("POST", "groups", group, "topics", topic, body={"start": "first", **settings})

    def producer(self) -> Producer:
        return self._clients.enter_context(Producer(self.server.address("producer"), timeout_ms=60_000))

    def consumer(
        self, group: str, topics: str | list[str], handler: Callable[..., object], threads: int = 4
    ) -> Consumer:
        consumer = Consumer(
            self.server.address("consumer"), group, topics, handler=handler, threads=threads, linger_ms=100
        )
        return self._clients.enter_context(consumer)

    def stop_clients(self) -> None:
        self._clients.close()

    def alert(self, front_end: type[Operator], rule: str, **labels: str) -> tuple[Operator, Row]:
        """The operator at the server whose findings contain the alert, once one has it."""

        def find() -> tuple[Operator, Row] | None:
            for server in self.servers:
                operator = front_end(server)
                for item in operator.list_findings():
                    if item["id"] == rule and labels.items() <= item["labels"].items():
                        return operator, item
            return None

        operator, finding = until(find, f"{rule} is among the findings")
        operator.follow(finding)
        return operator, finding

    def await_calm(self, front_end: type[Operator], rule: str, **labels: str) -> None:
        """Wait until no server reports the finding."""

        def is_calm() -> bool:
            items = [item for server in self.servers for item in front_end(server).list_findings()]
            return not any(item["id"] == rule and labels.items() <= item["labels"].items() for item in items)

        until(is_calm, f"{rule} is no longer among the findings")

    # --- bystanders

    def add_bystanders(self) -> None:
        """Create them, once."""
        server = self.server
        orders, audit = f"{BYSTANDER}-orders", f"{BYSTANDER}-audit"
        self.create_topic(orders, queues=2, body_bytes_max=100_000)
        self.subscribe(f"{BYSTANDER}-billing", orders, order_key="KEY", concurrency=7)
        self.subscribe(audit, orders, **WITHOUT_RETRIES)
        with Producer(server.address("producer")) as producer:
            producer.send(orders, "dead", key="dead")
        with Consumer(server.address("consumer"), audit, orders, linger_ms=100) as consumer:
            until(lambda: [each.fail(reason="ValueError: no") for each in consumer.pull(1, timeout_ms=500)])
            until(lambda: self.list_letters(audit), "the bystander's message is dead")
        with Producer(server.address("producer")) as producer:
            for key in ("parked", "parked", "free"):
                producer.send(orders, f"of {key}", key=key)
            producer.send(orders, "later", delay=timedelta(days=20))
        key = {"action": "park", "key": "parked"}
        server.admin("POST", "groups", f"{BYSTANDER}-billing", "keys", body=key)

    def observe_bystanders(self) -> Row:
        """Everything about them that a repair could change."""
        server = self.server
        groups = (f"{BYSTANDER}-billing", f"{BYSTANDER}-audit")
        topic = server.admin("GET", "topics", f"{BYSTANDER}-orders")
        keys = server.admin("GET", "groups", groups[0], "keys")
        return {
            "topic": topic,
            "settings": [self.settings_of(group) for group in groups],
            "offsets": [server.admin("GET", "groups", group, "offsets") for group in groups],
            "parked": [row["key"] for row in keys if row["state"] == "parked"],
            "letters": self.list_letters(groups[1]),
            "delays": self.list_delays(f"{BYSTANDER}-orders"),
        }

    def settings_of(self, group: str) -> dict[str, Row]:
        """By topic: the settings of its subscriptions, and whether they are paused."""
        rows = self.server.admin("GET", "groups", group)["subscriptions"]
        return {row["topic"]: {**row["settings"], "paused": row["paused"]} for row in rows}

    def list_letters(self, group: str) -> list[tuple[int, str]]:
        """Offset and text of every open dead letter, up to 1,000."""
        rows = self.server.admin("GET", "dlq")
        if group not in [row["group"] for row in rows]:
            return []
        status, answer = self.server.request("GET", f"/dlq/{group}?count=1000")
        assert status == 200, answer
        return [(row["offset"], row["preview"]) for row in answer["shown"]]

    def list_delays(self, topic: str) -> dict[str, int]:
        """Due time by id, of up to 1,000."""
        status, answer = self.server.request("GET", f"/delay/messages?topic={topic}&count=1000")
        assert status == 200, answer
        return {row["id"]: row["due_ms"] for row in answer["messages"]}


DEPLOYMENTS = ("one process", "processes", "two servers")
FRONT_ENDS: tuple[type[Operator], ...] = (HttpOperator, CommandOperator)
WAYS = list(itertools.product(DEPLOYMENTS, FRONT_ENDS))  # each incident is resolved in every way
COMMON_WAYS = (("one process", HttpOperator), ("processes", CommandOperator))
WAY_PARAMS = mark_others_long(WAYS, COMMON_WAYS)


def describe_way(way: tuple[str, type[Operator]]) -> str:
    """Name a way as the ids of tests do."""
    deployment, front_end = way
    return f"{deployment}-{front_end.__name__}"


@contextmanager
def deployed(
    deployment: str,
    folder: Path,
    installation: Installation,
    config: Path | None = None,
    disk_free: int | None = None,
) -> Iterator[IncidentWorld]:
    """Servers that are ready, over one data directory, or over what the installation is.

    `disk_free`: the free bytes of a disk that the data directory has for itself.
    """
    environment = {} if disk_free is None else {"TEST_DISK_FREE": str(disk_free)}
    with ExitStack() as stack:
        world = IncidentWorld(installation.engine, deployment)
        for folder_of_server in _folders(deployment, folder):
            server = IncidentServer(
                folder_of_server, config, deployment == "processes", installation=installation
            )
            if installation.engine == "file_log":
                server.data_dir = folder / "data"
            server.environment = {**server.environment, **environment}
            stack.callback(server.end)
            world.servers.append(server.start())
        stack.callback(world.stop_clients)
        world.add_bystanders()
        yield world


def _folders(deployment: str, folder: Path) -> Iterable[Path]:
    return (folder / "a", folder / "b") if deployment == "two servers" else (folder / "a",)
