"""Three producer and three consumer proxies as processes of their own, which fill the same bounds at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product

import pytest

from ddmq_client.idl.codes import Code
from tests.interop.apache_client import Client, PullError
from tests.scenarios.real_server import RealServer, write_config
from tests.support.waits import until

BOUND = 40
CONNECTIONS = 4  # to each proxy
ATTEMPTS = 15  # of each connection
KEYS = 20
CONFIG = {
    "proxy_producer": {"topics_max": BOUND},
    "proxy_consumer": {"groups_max": BOUND, "drain_leases_ms": 0},
    "file_log": {"idempotency_keys_max": KEYS},
    "topics": {"topics": {"T": {}}},
}
Attempt = Callable[[Client, str], tuple[int, str]]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RealServer]]:
    folder = tmp_path_factory.mktemp("bounds")
    config = write_config(folder / "conf", **CONFIG)
    commands = ["serve", "producer", "producer", "consumer", "consumer"]
    with ExitStack() as ends:
        started = []
        for command in commands:
            started.append(RealServer(folder, config, command=command))
            ends.callback(started[-1].end)
            started[-1].start()
        yield started


def ports_of(servers: list[RealServer], component: str) -> list[int]:
    return [server.ports[component] for server in servers if component in server.ports]


def race(ports: list[int], attempt: Attempt) -> list[tuple[int, str]]:
    """Make attempts over several connections to each proxy at once; return code and text of each."""

    def run(target: tuple[int, int]) -> list[tuple[int, str]]:
        port, connection = target
        with Client(port) as client:
            return [attempt(client, f"{port}-{connection}-{number}") for number in range(ATTEMPTS)]

    assert len(ports) == 3
    with ThreadPoolExecutor(3 * CONNECTIONS) as pool:
        rows = list(pool.map(run, product(ports, range(CONNECTIONS))))
    return [result for row in rows for result in row]


def send_with_key(client: Client, name: str) -> tuple[int, str]:
    result = client.send("T", key="k", idempotencyKey=name)
    return result.code, result.msg


def send_to_new_topic(client: Client, name: str) -> tuple[int, str]:
    result = client.send(f"t-{name}", key="k")
    return result.code, result.msg


def pull_as_new_group(client: Client, name: str) -> tuple[int, str]:
    try:
        client.pull(f"g-{name}", "T", maxLingerTime=1_000)
    except PullError as error:
        return error.code, str(error)
    return Code.OK, ""


def test_keys_are_counted_for_all_proxies(servers: list[RealServer]) -> None:
    """One topic gets half of them."""
    results = race(ports_of(servers, "producer"), send_with_key)
    assert Counter(code for code, _ in results)[Code.OK] == KEYS // 2
    assert {text.count("idempotency_keys_max") for code, text in results if code == Code.BUSY} == {1}


def test_topics_are_counted_for_all_proxies(servers: list[RealServer]) -> None:
    producers = ports_of(servers, "producer")
    before = topic_names(servers[0])
    results = race(producers, send_to_new_topic)
    after = topic_names(servers[0])
    assert len(after) == BOUND
    assert Counter(code for code, _ in results)[Code.OK] == len(after - before)
    assert {text.count("there are 40 topics") for code, text in results if code == Code.BUSY} == {1}
    servers[0].admin("DELETE", "topics", min(after - before))
    with Client(producers[2]) as proxy:
        until(lambda: proxy.send("later").code == Code.OK, "the deleted topic made room at another proxy")
    for port in producers:
        with Client(port) as proxy:
            assert proxy.send("one-more").code == Code.BUSY


def test_groups_are_counted_for_all_proxies(servers: list[RealServer]) -> None:
    consumers = ports_of(servers, "consumer")
    results = race(consumers, pull_as_new_group)
    until(lambda: group_count(servers[0]) == BOUND, lambda: f"{group_count(servers[0])} groups are there")
    assert {code for code, _ in results} == {Code.OK, Code.BUSY}, (
        "one that loses the race may be answered empty"
    )
    assert {text.count("groups_max is 40") for code, text in results if code == Code.BUSY} == {1}
    for port in consumers:
        with Client(port) as proxy, pytest.raises(PullError, match="groups_max is 40"):
            proxy.pull("one-more", "T", maxLingerTime=20)


def topic_names(server: RealServer) -> set[str]:
    status, answer = server.request("GET", "/topics?internal=1")
    assert status == 200, answer
    return {topic["topic"] for topic in answer}


def group_count(server: RealServer) -> int:
    return len(server.admin("GET", "groups"))
