"""Two consumer proxies as processes of their own over one directory, and clients at either of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddmq_client import Consumer, FetchConsumer, Message, Producer
from tests.interop.apache_client import Client, PullError, done
from tests.scenarios.real_server import RealServer, write_config
from tests.support.installations import installed
from tests.support.waits import until

CONFIG = {"proxy_consumer": {"drain_leases_ms": 0, "idle_ms": 1_000}}


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[tuple[RealServer, RealServer]]:
    folder = tmp_path_factory.mktemp("two")
    config = write_config(folder / "conf", **CONFIG)
    with installed(engine) as installation:
        first = RealServer(folder, config, installation=installation)
        second = RealServer(folder, config, command="consumer", installation=installation)
        try:
            yield first.start(), second.start()
        finally:
            second.end()
            first.end()


def prepared(server: RealServer, name: str, count: int, **settings: object) -> None:
    server.admin("POST", "topics", name, body={"create": True, "queues": 4})
    server.admin("POST", "groups", f"g-{name}", body={"topics": [name], "start": "first"})
    with Producer(f"127.0.0.1:{server.ports['producer']}") as producer:
        for number in range(count):
            producer.send(name, b"%d" % number, queue=number % 4)


def test_every_ack_goes_to_the_other_proxy(
    proxies: tuple[RealServer, RealServer],
) -> None:
    """Both pull; whatever one delivers is acknowledged at the other."""
    prepared(proxies[0], "crossed", 80)
    got: dict[str, list[int]] = {"one": [], "two": []}
    with Client(proxies[0].ports["consumer"]) as one, Client(proxies[1].ports["consumer"]) as two:

        def round_trip(name: str, here: Client, there: Client) -> None:
            answer = here.pull("g-crossed", "crossed", maxLingerTime=20, maxBatchSize=4)
            if answer.messages:
                got[name] += [int(message.value) for message in answer.messages]
                until(lambda: _is_accepted(there, answer), "the acknowledgement is taken")

        def all_done() -> bool:
            round_trip("one", one, two)
            round_trip("two", two, one)
            (stats,) = one.stats("g-crossed", "crossed")
            return sum(stats.consumeOffsets.values()) == 80

        until(all_done, "everything is acknowledged")
        assert set(got["one"] + got["two"]) == set(range(80))
        assert got["two"], "the second proxy holds queues, too"
        assert not one.pull("g-crossed", "crossed").messages
    passed_on = [_forwarded(server) for server in proxies]
    assert sum(passed_on) > 0


def _is_accepted(client: Client, answer: object) -> bool:
    try:
        return client.submit(done(answer))  # type: ignore[arg-type]
    except PullError as error:
        if "send the results again" in error.text or "cannot be reached" in error.text:
            return False
        raise


def _forwarded(server: RealServer) -> int:
    status, page = server.request("GET", "/metrics")
    assert status == 200
    lines = [line for line in str(page).splitlines() if line.startswith("ddmq_results_forwarded_total{")]
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if 'outcome="forwarded"' in line)


def test_queues_are_fetched_from_both_proxies(proxies: tuple[RealServer, RealServer]) -> None:
    prepared(proxies[0], "fetched", 80)
    addresses = [f"127.0.0.1:{server.ports['consumer']}" for server in proxies]
    got: list[int] = []
    with FetchConsumer(addresses, "g-fetched") as consumer:

        def more() -> bool:
            for queue in consumer.fetch(5, linger_ms=40):
                got.extend(int(message.body) for message in queue.messages)
            assert consumer.ack() in (True, False)
            return len(set(got)) == 80 and len(consumer.assignments) == 4

        until(more, "all messages")
        until(consumer.ack, "everything is stored")
        for queue in range(4):
            of_queue = [number for number in dict.fromkeys(got) if number % 4 == queue]
            assert of_queue == sorted(of_queue), "each queue in order"


def test_broadcasting_over_a_real_proxy_that_dies(
    proxies: tuple[RealServer, RealServer], tmp_path: Path
) -> None:
    """Two instances get everything; the second proxy is killed and its client goes on at the first."""
    name = "news"
    proxies[0].admin("POST", "topics", name, body={"create": True, "queues": 2})
    first, second = [f"127.0.0.1:{server.ports['consumer']}" for server in proxies]
    got: dict[str, list[bytes]] = {"a": [], "b": []}

    def consumer(instance: str, where: list[str]) -> Consumer:
        def handle(message: Message) -> None:
            got[instance].append(message.body)

        return Consumer(
            where,
            "g-news",
            name,
            handler=handle,
            model="broadcasting",
            instance=instance,
            offsets_file=tmp_path / instance,
            linger_ms=100,
        )

    with (
        consumer("a", [first]) as a,
        consumer("b", [second, first]),
        Producer(f"127.0.0.1:{proxies[0].ports['producer']}") as producer,
    ):
        until(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists(), "both have their place")
        for number in range(50):
            producer.send(name, b"%d" % number)
        until(lambda: all(len(set(each)) == 50 for each in got.values()), "both have everything")
        proxies[1].kill()
        for number in range(50, 100):
            producer.send(name, b"%d" % number)
        until(lambda: all(len(set(each)) == 100 for each in got.values()), "both have everything again")
        assert a.counts().pull_errors == 0
