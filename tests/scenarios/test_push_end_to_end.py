"""Push on a real server on each engine: nothing is lost over kill -9, dead letters by the rules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddmq_client import Producer
from tests.scenarios.real_server import running, write_config

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "service" / "consumer" / "push"))
from tests.service.consumer.push.http_receiver import receiver
from tests.support.installations import Installation
from tests.support.waits import until

MESSAGES = 400


@pytest.mark.slow
def test_pushed_over_a_kill_and_in_order_of_their_keys(installation: Installation, tmp_path: Path) -> None:
    with receiver() as there:
        settings = {
            "start": "first",
            "order_key": "$.key",
            "concurrency": 16,
            "actions": ["Json", "Script", "FormParams", "AsyncHttp"],
            "push": {"http": {"urls": [there.url()]}, "script": {"filter": "body.n >= 0"}},
        }
        config = write_config(
            tmp_path / "conf",
            proxy_consumer={"push_targets": ["127.0.0.1"]},
            topics={"topics": {"T": {"queues": 2}}},
            groups={"groups": {"G": {"topics": {"T": settings}}}},
        )
        with running(tmp_path, config, installation=installation) as server:
            with Producer(f"127.0.0.1:{server.ports['producer']}") as producer:
                for number in range(MESSAGES):
                    body = b'{"key":"k%d","n":%d}' % (number % 7, number if number % 10 else -1)
                    producer.send("T", body, queue=number % 7 % 2)
            until(lambda: len(there.requests) > 50, "some were pushed")
            server.kill()
            server.start()
            expected = {number for number in range(MESSAGES) if number % 10}
            until(lambda: numbers(there.requests) == expected, "all were pushed")
            for key in range(7):
                first_deliveries = list(dict.fromkeys(n for n in in_order(there.requests) if n % 7 == key))
                assert first_deliveries == sorted(first_deliveries)


def in_order(deliveries: list) -> list[int]:  # type: ignore[type-arg]
    return [int(each.fields["params"].rpartition(":")[2].rstrip("}")) for each in deliveries]


def numbers(deliveries: list) -> set[int]:  # type: ignore[type-arg]
    return set(in_order(deliveries))
