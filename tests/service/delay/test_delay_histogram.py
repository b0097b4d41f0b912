"""GET /delay/histogram: the range that it covers, and one answer of all processes with a delay service."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq.server.admin.contract.queries import DelayHistogramQuery
from ddmq.server.delays.histogram import DAY, STEPS, answer_histogram, choose_steps, count_next_hour
from ddmq.server.delays.owners import DelayOwners
from ddmq.server.http.routing import AdminRequest
from ddmq_client import Producer
from ddmq_common.errors import CallerError
from delay_service.config import DelayConfig
from tests.scenarios.real_server import RealServer, running
from tests.service.delay.delay_rig import DelayRig
from tests.support.installations import Installation
from tests.support.waits import until

MINUTE = 60_000
HOUR = 60 * MINUTE


@given(
    start=st.integers(0, 40_000_000),
    length=st.integers(0, 2_000_000) | st.integers(0, 300),
    buckets=st.integers(1, 200),
)
def test_the_shortest_steps_that_fit_cover_the_range(start: int, length: int, buckets: int) -> None:
    steps = choose_steps(start, start + length, buckets)
    assert steps.start <= start <= start + length <= steps.end
    assert steps.start % steps.step == steps.end % steps.step == 0
    assert (steps.end - steps.start) // steps.step <= buckets
    allowed = [*STEPS, *(days * DAY for days in range(1, steps.step // DAY + 1))]
    shorter = [step for step in allowed if step < steps.step]
    assert all(-(-(start + length) // step) - start // step > buckets for step in shorter)
    assert choose_steps(steps.start, steps.end, buckets) == steps, "another process chooses the same"


@pytest.fixture
def owners(tmp_path: Path) -> tuple[DelayRig, DelayOwners]:
    rig = DelayRig(DelayConfig(shards=3))
    return rig, DelayOwners(rig.backend, rig.service, rig.clock)


def ask(owners: DelayOwners, **query: object) -> dict[str, object]:
    request = AdminRequest({}, DelayHistogramQuery(**query), {}, "GET", "/delay/histogram")  # type: ignore[arg-type]
    answer = answer_histogram(owners, request)
    assert answer.exact
    assert not answer.missing
    return {
        "counts": {item.from_ms: item.count for item in answer.items if item.count},
        "outside": (answer.before, answer.after, answer.total),
        "range": (answer.from_ms, answer.to_ms, answer.step_ms),
    }


def test_shards_are_added_up_and_the_rest_is_outside(owners: tuple[DelayRig, DelayOwners]) -> None:
    rig, delays = owners
    now = rig.clock.wall_ms() // HOUR * HOUR
    for number in range(30):
        rig.add(number, now + HOUR + number * MINUTE)
    rig.settle()
    answer = ask(delays, from_ms=now + HOUR + 10 * MINUTE, to_ms=now + HOUR + 20 * MINUTE)
    assert answer["counts"] == {now + HOUR + number * MINUTE: 1 for number in range(10, 20)}
    assert answer["outside"] == (10, 10, 30)
    assert ask(delays)["range"] == (now + HOUR, now + 2 * HOUR, MINUTE)
    assert ask(delays, buckets=1)["counts"] == {now + HOUR: 30}
    assert ask(delays, topic="others")["outside"] == (0, 0, 0)
    assert count_next_hour(delays, rig.clock) == sum(
        now + HOUR + number * MINUTE < rig.clock.wall_ms() // MINUTE * MINUTE + HOUR for number in range(30)
    )
    rig.close()


def test_an_open_range_and_a_reversed_one(owners: tuple[DelayRig, DelayOwners]) -> None:
    rig, delays = owners
    assert ask(delays)["range"] == (None, None, None)
    due = rig.clock.wall_ms() + HOUR
    rig.add(1, due)
    rig.settle()
    assert ask(delays, from_ms=due + HOUR)["outside"] == (1, 0, 1)
    assert ask(delays, to_ms=due - HOUR)["outside"] == (0, 1, 1)
    with pytest.raises(CallerError, match="allowed: a time after from_ms"):
        ask(delays, from_ms=5, to_ms=5)
    rig.close()


def check_lists(server: RealServer, due_ms: list[int]) -> None:
    """Assert that the server lists and counts exactly the messages with these due times, in both forms."""
    counted = server.request("GET", "/delay/count?topic=t")[1]
    assert (counted["count"], counted["exact"], counted["elsewhere"]) == (len(due_ms), True, [])
    overview = server.admin("GET", "delay")
    assert (overview["topics"], overview["pending"]) == ({"t": len(due_ms)}, len(due_ms))
    assert [row["shard"] for row in overview["shards"]] == list(range(4))
    assert (overview["elsewhere"], overview["not_open"], overview["health"]["ready"]) == ([], [], True)
    half = server.request("GET", f"/delay/count?topic=t&from_ms={due_ms[len(due_ms) // 2]}")[1]
    assert (half["count"], half["exact"]) == (len(due_ms) - len(due_ms) // 2, True)
    for form, items in (("1", "messages"), ("2", "items")):
        listed, after = list[int](), ""
        while True:
            page = server.request("GET", f"/delay/messages?topic=t&form={form}&count=7{after}")[1]
            listed += [row["due_ms"] for row in page[items]]
            assert (page["elsewhere"], page["orders_waiting"]) == ([], 0)
            assert page.get("total", len(due_ms)) == len(due_ms)
            if page.get("next") is None:
                break
            after = f"&after={page['next']}"
        assert listed == due_ms


@pytest.mark.slow
def test_two_servers_and_a_process_without_a_delay_service_answer_as_one(
    installation: Installation, tmp_path: Path
) -> None:
    due = int(time.time() * 1000) // HOUR * HOUR + 48 * HOUR
    with running(tmp_path, installation=installation) as server:
        others = [
            RealServer(tmp_path, command=command, installation=installation)
            for command in ("delay-service", "consumer")
        ]
        try:
            for other in others:
                other.start()
            server.admin("POST", "topics", "t", body={"queues": 1})
            until(lambda: server.describe_own_shards()["elsewhere"], "two processes share the shards")
            with Producer(f"127.0.0.1:{server.ports['producer']}") as producer:
                for number in range(40):
                    producer.send(
                        "t", b"tea", deliver_at=datetime.fromtimestamp((due + number * MINUTE) / 1000, UTC)
                    )
            for each in (server, *others):
                until(
                    lambda each=each: each.admin("GET", "delay", "histogram")["total"] == 40,
                    "all messages are counted",
                )
                answer = each.admin("GET", "delay", "histogram")
                assert (answer["exact"], answer["missing"]) == (True, {})
                assert (answer["from_ms"], answer["to_ms"]) == (due, due + HOUR)
                assert [item["count"] for item in answer["items"]] == [1] * 40 + [0] * 20
                check_lists(each, [due + number * MINUTE for number in range(40)])
        finally:
            for other in others:
                other.end()
